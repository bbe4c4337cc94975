"""Chat templates of released checkpoints: conversations as the text that a model was tuned on, and which of it is learned.

A template is Jinja, rendered in its sandbox with what `transformers` offers to it: `raise_exception`, `strftime_now`, loop
controls, `tojson`, and `{% generation %}` around what the assistant says. It comes from a file of a model's publisher, can reach
nothing but the conversation, and is stopped where it does more than rendering one takes. A turn of the assistant is learned up to
the special token that ends it; without one, the model would never learn to stop.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data import untrusted
from data.task import DataError
from data.vocabularies import files
from data.vocabularies.marks import BEGIN, END, TemplateRefusal
from data.vocabularies.tokenizers import Tokenizer

Message = dict[str, Any]  # "role" and "content", and whatever else a template reads
Span = tuple[int, int]  # places in a text


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
        given = json.dumps([list(messages), tools], ensure_ascii=False)
        if BEGIN in given or END in given:
            raise TemplateRefusal("a turn holds U+FDD0 or U+FDD1, which no text may hold")
        return self._program.render(
            len(given), messages=messages, add_generation_prompt=prompt, tools=tools, documents=None, **self._tokens
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

    def turns_of(self, rendered: Rendered, messages: Sequence[Message], tools: Any = None) -> list[int]:
        """Returns, for each learned place of a conversation, the number of the message that it belongs to.

        Templates may mark some turns alone, as the last. A place belongs to the first turn up to whose end, which is where the
        assistant's next turn begins, the template marks it.
        """
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not self.marked:
            return answers
        turns: dict[Span, int] = {}
        for turn, end in zip(answers, [*answers[1:], len(messages)], strict=True):
            for place in self.rendered(messages[:end], tools).learned:
                turns.setdefault(place, turn)
        return [turns[place] for place in rendered.learned]


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
        """Returns the id of the token that ends a turn of the assistant; raises DataError if the template teaches none."""
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        ids, learned = self.conversation(turns)
        if not learned.any():
            raise DataError(f"{self.folder}: its chat template leaves out what the assistant says, or marks nothing of it")
        return int(ids[np.flatnonzero(learned)[-1]])

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of a conversation up to where the assistant's next turn begins."""
        return self.tokenizer.encode(self.template(messages, prompt=True))

    def conversation(self, messages: Sequence[Message], tools: Any = None, *, given: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids, which of them are learned: 1 or 0). Turns of `weight` 0 are not.

        Args:
          given: how many messages, the first ones, are not learned.

        Raises:
          DataError: the template ends a turn without a special token, or gives what is learned no place.
          TemplateRefusal: the template does not take such a conversation.
        """
        rendered = self.template.rendered(messages, tools)
        ids, starts = self.tokenizer.encode_starts(rendered.text)
        starts = np.array([*starts, len(rendered.text)])
        weights, special = np.zeros(len(ids), np.int32), np.isin(ids, self._special)
        learned, left_out = rendered.learned, [i < given or m.get("weight") == 0 for i, m in enumerate(messages)]
        if any(left_out):
            turns = self.template.turns_of(rendered, messages, tools)
            learned = [place for place, turn in zip(learned, turns, strict=True) if not left_out[turn]]
        for begin, end in learned:
            if begin == end:
                continue
            first, last = (int(np.searchsorted(starts, edge)) for edge in (begin, end))
            if starts[first] > begin:
                first -= 1  # a token that begins before the first character reaches into it
            inside, behind = first + np.flatnonzero(special[first:last]), last + np.flatnonzero(special[last:])
            if len(inside) and not rendered.text[starts[inside[-1] + 1] : end].strip():
                ending = inside[-1]  # marks may hold a line break behind it
            elif self.template.marked and len(behind) and not rendered.text[end : starts[behind[0]]].strip():
                ending = behind[0]  # marks may leave it out
            else:
                raise DataError(
                    f"{self.folder}: its chat template ends a turn of the assistant without a special token, from which a "
                    "model would not learn to stop; write one behind the content"
                )
            weights[first : ending + 1] = 1
        return np.array(ids, np.int32), weights


def _unmarked(text: str) -> Rendered:
    """Returns a text without marks, and where they were."""
    parts, learned, at = text.split(BEGIN), [], 0
    plain = [parts[0]]
    at += len(parts[0])
    for part in parts[1:]:
        generated, _, after = part.partition(END)
        learned.append((at, at + len(generated)))
        plain += [generated, after]
        at += len(generated) + len(after)
    return Rendered("".join(plain), tuple(learned))


def has_template(folder: Path) -> bool:
    """Returns whether a vocabulary has a chat template beside it."""
    return (folder / files.TEMPLATE).exists() or bool(files.read_object(folder / files.CONFIG).get("chat_template"))


def _read(folder: Path) -> tuple[str, dict[str, str]]:
    """Returns the template of a folder, and the special tokens that it may name."""
    config = files.read_object(folder / files.CONFIG)
    named = {k: v.get("content") if isinstance(v, dict) else v for k, v in config.items() if k.endswith("_token")}
    tokens = {k: v for k, v in named.items() if isinstance(v, str)}
    if (folder / files.TEMPLATE).exists():
        return untrusted.read_text(folder / files.TEMPLATE, files.VocabularyError), tokens
    source = config.get("chat_template")
    if isinstance(source, list):  # several by name: for tools, for retrieval
        named = [each for each in source if isinstance(each, dict) and each.get("name") == "default"]
        source = named[-1].get("template") if named else None
    if not isinstance(source, str):
        raise DataError(
            f"{folder}: no chat template, neither {files.TEMPLATE} nor chat_template in {files.CONFIG}; take the folder of a "
            "checkpoint that was tuned on conversations, or write one"
        )
    return source, tokens
