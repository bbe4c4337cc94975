"""Made-up conversations, and a small vocabulary with a chat template, such as lies beside a released checkpoint."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers as library

from data.chat.caches import ChatCache
from data.chat.maker import ChatMaker
from data.vocabularies import files, tokenizers
from data.vocabularies.chat_templates import ChatEncoder
from tests.helpers.caches import finish, texts
from tests.helpers.conversations import WORDS

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = """{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\n' -}}
        {%- generation -%}
            {{- message.content | trim -}}{{- '<|im_end|>' -}}
        {%- endgeneration -%}
    {%- elif message.role == 'user' or loop.first -%}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>' -}}
    {%- else -%}
        {{- raise_exception('only user and assistant, after a system message') -}}
    {%- endif -%}
    {{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


def write_vocabulary(
    folder: Path,
    template: str | None = CHATML,
    size: int = 320,
    special: Sequence[str] = (START, END),
    named: Mapping[str, str] | None = None,
    lines: Iterable[str] = (),
) -> Path:
    """Writes a byte-level vocabulary of `size` and special tokens more, that begin and end a turn, with a chat template.

    Args:
      named: special tokens by the names that a template has for them.
      lines: texts of which it is made; by default made-up ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.train_bpe([*lines] or [*texts(200, 0), "system user assistant " * 9] * 2, folder / files.TOKENIZER, size)
    tokenizer = library.Tokenizer.from_file(str(folder / files.TOKENIZER))
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / files.TOKENIZER))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": "<|endoftext|>"} | dict(named or {})
    (folder / files.CONFIG).write_text(json.dumps(config))
    if template is not None:
        (folder / files.TEMPLATE).write_text(template)
    return folder


def learned(encoder: ChatEncoder, messages: list[dict], **options) -> list[str]:
    """Returns the pieces of a conversation that are learned."""
    ids, predicted = encoder.conversation(messages, **options)
    edges = np.flatnonzero(np.diff(predicted, prepend=0, append=0)).reshape(-1, 2)
    texts = encoder.tokenizer._tokenizer
    return [texts.decode(ids[begin:end].tolist(), skip_special_tokens=False) for begin, end in edges]


def turns(*contents: str) -> list[dict]:
    """Returns messages of a user and an assistant by turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def conversations(n: int, seed: int) -> list[dict]:
    """Conversations of two or four turns: the assistant says "yes" and what the user said last."""
    rng = np.random.default_rng(seed)
    chats = []
    for _ in range(n):
        said = [" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in range(rng.integers(1, 3))]
        chats.append({"messages": turns(*(text for s in said for text in (s, f"yes {s}")))})
    return chats


def write_chat_cache(folder: Path, length: int = 64) -> Path:
    """Writes a cache of 60 conversations and 20 held-out ones ("test"), with a vocabulary of 322."""
    write_vocabulary(folder)
    (folder / "train").mkdir()
    maker = ChatMaker("chats", ChatCache(source="", length=length), folder)
    maker.folder, maker.encoder, maker.splits = folder, ChatEncoder(folder), {"train": conversations(60, 0)}
    maker.write_part(maker.PART)
    part = maker.counts(maker.PART, maker.tallies[maker.PART])
    finish(folder, conversations(20, 1), maker.encoder.tokenizer, length, rows=1, kind="chat")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"parts": {maker.PART: part}}))
    return folder
