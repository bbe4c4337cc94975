"""Chat templates of released checkpoints: conversations as the text that a model was tuned on, and which of it is learned.

A template is Jinja, rendered in its sandbox with what `transformers` offers to it: `raise_exception`, `strftime_now`, loop
controls, `tojson`, and `{% generation %}` around what the assistant says. It comes from a file of a model's publisher, and can
reach nothing but the conversation. A turn of the assistant is learned up to the special token that ends it; without one, the
model would never learn to stop.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data import untrusted
from data.task import DataError
from data.vocabularies import files
from data.vocabularies.tokenizers import Tokenizer

Message = dict[str, Any]  # "role" and "content", and whatever else a template reads
Span = tuple[int, int]  # places in a text

# Characters of no text (Unicode's noncharacters), which stand around what is generated until their places are known.
BEGIN, END = "\ufdd0", "\ufdd1"


class TemplateRefusal(DataError):
    """A conversation that the template does not render, such as two turns of a user in sequence."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
      learned: the places of what the assistant says, in order, each with what ends its turn.
    """

    text: str
    learned: tuple[Span, ...]


class ChatTemplate:
    """The chat template that lies beside a vocabulary.

    Attributes:
      marked: whether it has `{% generation %}` blocks.

    Raises:
      DataError: there is none, or it is no Jinja.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        source, self._tokens = _read(folder)
        from data.vocabularies import jinja  # a machine that computes without texts does without Jinja

        self._program = jinja.Program(source, str(folder))
        self.marked = self._program.marked

    def __call__(self, messages: Sequence[Message], *, prompt: bool = False, tools: Any = None) -> str:
        """Returns a conversation as text.

        Args:
          prompt: up to where the assistant's next turn begins.

        Raises:
          TemplateRefusal: the template does not take such a conversation.
        """
        return self._render(messages, prompt, tools).replace(BEGIN, "").replace(END, "")

    def _render(self, messages: Sequence[Message], prompt: bool, tools: Any) -> str:
        if any(mark in json.dumps(list(messages), ensure_ascii=False) for mark in (BEGIN, END)):
            raise TemplateRefusal("a turn holds U+FDD0 or U+FDD1, which no text may hold")
        return self._program.render(
            messages=messages, add_generation_prompt=prompt, tools=tools, documents=None, **self._tokens
        )

    def rendered(self, messages: Sequence[Message], tools: Any = None) -> Rendered:
        """Returns a conversation with the places of what is learned.

        A template's own marks say where that is. Without marks, a turn of the assistant is what the conversation with it has
        behind the prompt that asks for it.

        Raises:
          DataError: the text of a conversation's beginning is not the beginning of its text.
          TemplateRefusal: the template does not take such a conversation.
        """
        if self.marked:
            return _unmarked(self._render(messages, False, tools))
        text, learned = self(messages, tools=tools), []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self(messages[:i], prompt=True, tools=tools), self(messages[: i + 1], tools=tools)
                if not (after.startswith(before) and text.startswith(after)):
                    raise DataError(
                        f"{self.folder}: with its chat template, a conversation does not begin as its beginning does, so that "
                        "what is learned has no place; mark it with {% generation %} ... {% endgeneration %} in the template"
                    )
                learned.append((len(before), len(after)))
        return Rendered(text, tuple(learned))


class ChatEncoder:
    """A vocabulary with its chat template.

    Args:
      folder: with both.

    Attributes:
      end: the id of the token that ends a turn of the assistant.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.template, self.tokenizer = ChatTemplate(folder), Tokenizer(folder, special=True)
        self._special = np.array(self.tokenizer.special_ids)

    @property
    def end(self) -> int:
        """Returns the id of the token that ends a turn of the assistant."""
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        ids, learned = self.conversation(turns)
        return int(ids[np.flatnonzero(learned)[-1]])

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of a conversation up to where the assistant's next turn begins."""
        return self.tokenizer.encode(self.template(messages, prompt=True))

    def conversation(
        self, messages: Sequence[Message], tools: Any = None, *, given: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids, which of them are learned: 1 or 0).

        Args:
          given: how many turns of the assistant, the first ones, are not learned.

        Raises:
          DataError: the template ends a turn without a special token, or gives what is learned no place.
          TemplateRefusal: the template does not take such a conversation.
        """
        rendered = self.template.rendered(messages, tools)
        ids, starts = map(np.array, self.tokenizer.encode_starts(rendered.text))
        predicted, special = np.zeros(len(ids), np.int32), np.isin(ids, self._special)
        for begin, end in rendered.learned[given:]:
            if begin == end:
                continue
            first, last = (int(np.searchsorted(starts, edge)) for edge in (begin, end))
            if first == len(ids) or starts[first] > begin:
                first -= 1  # a token that begins before the first character reaches into it
            if self.template.marked and not special[last - 1] and last < len(ids) and special[last]:
                last += 1  # marks may leave out the token that ends the turn
            ending = first + int(np.flatnonzero(special[first:last])[-1]) if special[first:last].any() else -1
            behind = rendered.text[starts[ending + 1] : end] if ending + 1 < last else ""
            if ending < 0 or behind.strip():
                raise DataError(
                    f"{self.folder}: its chat template ends a turn of the assistant without a special token, from which a "
                    "model would not learn to stop; write one behind the content"
                )
            predicted[first : ending + 1] = 1
        return ids.astype(np.int32), predicted


def _unmarked(text: str) -> Rendered:
    """Returns a text without marks, and where they were."""
    parts, learned, at = text.split(BEGIN), [], 0
    plain = [parts[0]]
    at += len(parts[0])
    for part in parts[1:]:
        said, _, rest = part.partition(END)
        learned.append((at, at + len(said)))
        plain += [said, rest]
        at += len(said) + len(rest)
    return Rendered("".join(plain), tuple(learned))


def has_template(folder: Path) -> bool:
    """Returns whether a vocabulary has a chat template beside it."""
    return (folder / files.TEMPLATE).exists() or bool(_config(folder).get("chat_template"))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / files.CONFIG
    return untrusted.read_json(path, files.VocabularyError) if path.exists() else {}


def _read(folder: Path) -> tuple[str, dict[str, str]]:
    """Returns the template of a folder, and the special tokens that it may name."""
    config = _config(folder)
    named = {k: v["content"] if isinstance(v, Mapping) else v for k, v in config.items() if k.endswith("_token")}
    tokens = {k: v for k, v in named.items() if isinstance(v, str)}
    if (folder / files.TEMPLATE).exists():
        return (folder / files.TEMPLATE).read_text(encoding="utf-8"), tokens
    source = config.get("chat_template")
    if isinstance(source, list):  # several by name: for tools, for retrieval
        source = {each["name"]: each["template"] for each in source}.get("default")
    if not isinstance(source, str):
        raise DataError(
            f"{folder}: no chat template, neither {files.TEMPLATE} nor chat_template in {files.CONFIG}; take the folder of a "
            "checkpoint that was tuned on conversations, or write one"
        )
    return source, tokens
