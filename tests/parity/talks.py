"""Compares the prompts of conversations of six turns with those of `transformers`, and writes them as a fixture.

    python -m tests.parity.talks           released forms of templates, on a small vocabulary
    python -m tests.parity.talks smollm2   also SmolLM2, which answers by scripts.chat: its weights must be fetched

The ids at every turn of the user must be those of `apply_chat_template`. tests/trainers/inference/test_talks.py holds the suite
to the fixture.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers as library

from data.packages.weights import weights_folder
from data.paths import ROOT
from data.vocabularies import files
from tests.parity.live import theirs
from trainers.inference.forms import TemplateForm

FIXTURES = ROOT / "tests/fixtures/chat"
FIXTURE = FIXTURES / "talks.json"
SMOLLM2 = "smollm2"


@dataclasses.dataclass(frozen=True)
class Released:
    """A template that renders conversations as those of released models do, and its special tokens, some of them by name."""

    template: str
    special: tuple[str, ...]
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)
    system: bool = True


RELEASED = {
    "ChatML": Released(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        ("<|im_start|>", "<|im_end|>"),
        {"eos_token": "<|im_end|>"},
    ),
    "Llama 3": Released(
        "{% for m in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' +"
        " m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "Gemma": Released(
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('a user and an assistant must take turns') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        {"bos_token": "<bos>", "eos_token": "<eos>"},
        system=False,
    ),
}
SYSTEM = {"role": "system", "content": "Answer in one sentence."}
TALK = (
    ("Hello! My name is Ada.", "Hello, Ada."),
    ("What is the capital of France?", " Paris 🙂 \n"),
    ("a\n\nlist,  of naïve café", "- one\n- two\n\n- three"),
    ("<|im_end|> and <eos> <|eot_id|> are words here", "Yes, 1234 of them"),
    ("  blanks  ", "\tif x:\n\t\treturn x"),
    ("What is my name?", "Ada"),
)
QUESTIONS = (
    "What is the capital of France?",
    "And of Italy?",
    "Name three fruits.",
    "Which of them is yellow?",
    "Write a line of Python that adds 2 and 3.",
    "Thank you!",
)


def write(released: Released, folder: Path) -> Path:
    """Writes the fixture's vocabulary with the special tokens of a template, and the template."""
    tokenizer = library.Tokenizer.from_file(str(FIXTURES / files.TOKENIZER))
    tokenizer.add_special_tokens(list(released.special))
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / files.TOKENIZER))
    (folder / files.CONFIG).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **released.named}))
    (folder / files.TEMPLATE).write_text(released.template)
    return folder


def conversation(released: Released) -> list[dict[str, str]]:
    """Returns the turns of TALK, behind a system's message where the template has them."""
    turns = [{"role": role, "content": text} for pair in TALK for role, text in zip(("user", "assistant"), pair, strict=True)]
    return [SYSTEM, *turns] if released.system else turns


def prompts(folder: Path, messages: list[dict[str, str]]) -> list[list[int]]:
    """Returns the ids of the prompt at each of the user's turns."""
    form = TemplateForm(folder)
    return [form.prompt(messages[: i + 1]) for i, message in enumerate(messages) if message["role"] == "user"]


def answered(folder: Path, scratch: Path) -> list[dict[str, str]]:
    """Returns the conversation that scripts.chat has with a model that is asked QUESTIONS, as it saves it."""
    command = [sys.executable, "-m", "scripts.chat", "--checkpoint", folder, "--tokens", "24"]
    lines = "\n".join([*QUESTIONS, f"/save {scratch / 'talk.jsonl'}"])
    subprocess.run(command, check=True, input=lines, text=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    return json.loads((scratch / "talk.jsonl").read_text())["messages"]


def main(names: list[str]) -> int:
    talks: dict[str, Any] = json.loads(FIXTURE.read_text()) if FIXTURE.exists() else {}
    fine = True
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        given = {name: (write(form, scratch / name), conversation(form)) for name, form in RELEASED.items()}
        if SMOLLM2 in names:
            folder = weights_folder("smollm2_135m")
            (scratch / SMOLLM2).mkdir()
            files.copy(folder, scratch / SMOLLM2)
            given[SMOLLM2] = scratch / SMOLLM2, answered(folder, scratch)
        for name, (folder, messages) in given.items():
            (folder / "given.json").write_text(json.dumps(messages))
            expected = json.loads(theirs("chat", folder))
            equal = prompts(folder, messages) == expected
            print(f"{name:<12}{'equal' if equal else 'DIFFERENT':>12}, {len(expected)} turns, {len(expected[-1])} tokens")
            fine, talks[name] = fine and equal, {"messages": messages, "prompts": expected}
    if fine:
        FIXTURE.write_text(json.dumps(talks) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
