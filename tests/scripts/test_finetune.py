"""The commands of docs/FINETUNE.md, from a checkpoint's folder and a file of conversations to a folder of `transformers`."""

import dataclasses
import functools
import io
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers as library
from numpy.testing import assert_allclose

from configs import registry
from data.vocabularies import files
from data.vocabularies.tokenizers import Tokenizer
from models.parts.nested import changed
from scripts import chat, cli, convert, evaluate, generate, prepare_data, train
from tests.helpers.chats import END, START, conversations, write_vocabulary
from tests.helpers.runs import with_train
from trainers import trainer
from trainers.checkpoints import checkpoint
from trainers.inference.generation import Generator
from trainers.plan import fresh_state, make_plan
from trainers.weights import huggingface, peft
from trainers.weights.load_any import open_model, open_weights
from trainers.weights.source import Arrays

pytestmark = pytest.mark.integration

# A form of conversations that no released model has, as its template and as `written` writes it.
NAMES = {"system": "rule", "user": "human", "assistant": "bot"}
TEMPLATE = (
    f"{{% for m in messages %}}{{{{ '{START}' + {NAMES}[m.role] + ': ' + m.content + '{END}' }}}}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{{{{ '{START}bot: ' }}}}{{% endif %}}"
)


def written(messages: list[dict]) -> str:
    """Returns the text of a conversation in TEMPLATE's form, up to where the next reply begins."""
    return "".join(f"{START}{NAMES[m['role']]}: {m['content']}{END}" for m in messages) + f"{START}bot: "


def talked(command, monkeypatch, checkpoint: Path, folder: Path) -> tuple[list[list[int]], list[list[dict]]]:
    """Returns the ids that a model reads in two conversations of three turns, the second with a system prompt; their messages."""
    prompts: list[list[int]] = []
    call = Generator.__call__
    saved = [folder / f"{n}.jsonl" for n in (1, 2)]
    lines = ["the cat", "why", "a red house", f"/save {saved[0]}", "/reset", "/system the old dog"]
    lines += ["and so", "the bird", "a road", f"/save {saved[1]}"]
    folder.mkdir()

    def spy(self, params, given, *seed):
        prompts.extend(given)
        return call(self, params, given, *seed)

    with monkeypatch.context() as spied:
        spied.setattr(Generator, "__call__", spy)
        spied.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        command(chat, "--checkpoint", checkpoint, "--tokens", 8)
    return prompts, [json.loads(path.read_text())["messages"] for path in saved]


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command in this process on one device; returns what it printed."""

    def run(module, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        assert not module.main()
        return capsys.readouterr().out

    for name in ("use_devices", "use_devices_of_all"):
        monkeypatch.setattr(cli, name, lambda *_, **__: None)
    monkeypatch.setattr(trainer, "train", functools.partial(trainer.train, devices=jax.devices()[:1]))
    return run


def test_from_a_folder_to_a_folder(command, tmp_path, monkeypatch):
    """Rows in the checkpoint's template, adapters of all projections, held-out loss, PEFT's form, and a merged folder: with the
    weights that the run has, its chat template, and an end of text that is the end of a turn. Both are talked with in that
    template, with the same words."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    e = registry.tiny(registry.load("chat.smollm2_lora"))
    model = changed(
        e.model, {"vocab": 329, "layers": 2, "attention.heads": 4, "attention.head_dim": 4, "dropout": 0.0}
    )  # unlike the experiment's
    e = with_train(dataclasses.replace(e, model=model), finetune={"lora": type(e.train.finetune.lora)(), "init_from": ""})
    plan = make_plan(e, jax.devices()[:1])
    start = tmp_path / "start"
    vocabulary = write_vocabulary(tmp_path / "vocabulary", TEMPLATE)
    huggingface.write_folder(Arrays(model, fresh_state(plan).params, vocabulary), start)
    talks = tmp_path / "talks.jsonl"
    talks.write_text("".join(json.dumps(c) + "\n" for c in conversations(80, 0)))
    run, adapter, merged = (tmp_path / name for name in ("run", "adapter", "merged"))

    code = prepare_data.main(["talks", "--from", str(talks), "--vocabulary", str(start), "--length", "64"])
    assert code == 0
    command(
        train,
        "chat.smollm2_lora",
        "--model-from-weights",
        "--train.finetune.init-from",
        start,
        "--data.cache",
        "talks",
        "--data.length",
        64,
        "--data.batch-size",
        4,
        "--train.finetune.lora.targets",
        "all-linear",
        "--train.steps",
        12,
        "--optimizer.schedule.peak",
        "0.01",
        "--optimizer.schedule.warmup",
        2,
        "--train.log-every",
        1,
        "--workdir",
        run,
    )
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert losses[-1] < losses[0]
    scores = json.loads(command(evaluate, "--checkpoint", run, "--json"))
    assert "perplexity" in json.dumps(scores)
    command(convert, "to-peft", run, "--to", adapter)
    command(convert, "to-hf", run, "--to", merged)
    prompts, talks = talked(command, monkeypatch, merged, tmp_path / "talks of merged")
    encoder = library.Tokenizer.from_file(str(start / files.TOKENIZER))
    assert [len(messages) for messages in talks] == [6, 7] and talks[1][0] == {"role": "system", "content": "the old dog"}
    expected = [written(messages[: i + 1]) for messages in talks for i, m in enumerate(messages) if m["role"] == "user"]
    assert prompts == [encoder.encode(text, add_special_tokens=False).ids for text in expected]
    assert talked(command, monkeypatch, run, tmp_path / "talks of run") == (prompts, talks)
    reply = command(generate, "--checkpoint", merged, "--chat", "--tokens", 8, "the cat")
    assert reply.strip() == talks[0][1]["content"].strip()

    _, _, stored, _ = checkpoint.read_stored(run)
    want = checkpoint.read_params(run)[2]
    before, after, again = open_weights(start), open_weights(merged), open_weights(adapter)
    assert isinstance(again, peft.Peft) and before.config == after.config
    for name, x in want.items():
        assert_allclose(after.read(name, ()), x, rtol=1e-6, err_msg=name)
        assert_allclose(again.read(name, ()), x, rtol=1e-5, atol=1e-6, err_msg=name)
    assert any(np.any(before.read(name, ()) != x) for name, x in want.items())
    assert any(name.startswith("lora.") for name in stored)
    end = Tokenizer(merged).id_of(END)
    assert json.loads((merged / files.GENERATION).read_text())["eos_token_id"] == [end]
    assert (merged / files.TEMPLATE).read_text() == (start / files.TEMPLATE).read_text()
    _, opened = open_model(merged)
    assert opened.vocabulary == merged
