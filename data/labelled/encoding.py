"""Encodes raw examples into packed rows, for training and for evaluation alike. No TensorFlow.

A sequence of ids is [CLS] text [SEP], or [CLS] text [SEP] pair [SEP] with type 1 from the second text on; where the vocabulary
says so, as RoBERTa's, two separators stand between the texts. It carries its labels in slots: positions with a target each.
What a slot is, and its target, is the task's form:

    classification   the [CLS], with the class; several times where there are several opinions, each with its own
    tagging          the first piece of every word, with the word's tag
    span             the [CLS], with the first and last position of the answer; both are the [CLS]'s own where a window
                     of the context doesn't hold the answer
    pair             the [CLS] of either text, which is a sequence of its own; the next slot is the other one's. The
                     target is the number of the pair in the row, from 0, in both

A row packs sequences first-fit into L tokens and P slots. It is a dict of int32 arrays:

    tokens [L]     ids; 0 is padding
    segments [L]   the sequence's number in the row, from 1; 0 is padding
    positions [L]  within the sequence, from 0
    types [L]      0 in the first text of a sequence, 1 in the second
    slots [P]      positions in the row; 0 where there is none
    targets [P]    targets, with positions in the row; -1 where there is no slot or no label. [P, 2] for spans
    owners [P]     the number of the slot's example, from 0 in the order given; -1 where there is no slot
    offsets [L, 2] for spans only: a token's start and end in the context, in characters; -1 outside the context

On disk a row is one vector of the first six, in that order: 4 L + 2 P numbers, or 4 L + 3 P for spans.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from data.reading import packing
from data.reading.tally import Tally
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import Tokenizer

Form = Literal["classification", "tagging", "span", "pair"]
Row = dict[str, np.ndarray]

_STORED = ("tokens", "segments", "positions", "types", "slots", "targets")
_QUESTION = 64  # the most tokens of a question
_STRIDE = 128  # tokens between the starts of neighbouring windows of a context, as in BERT's run_squad


class Encoded(NamedTuple):
    """Sequences that must share a row: one, or the two of a pair. n tokens and s slots in all, int32.

    Attributes:
      tokens, types, members [n]: ids, types, and the number of the sequence, 0 or 1.
      slots [s]: positions.
      targets [s]: targets; [s, 2] for spans.
      offsets [n, 2]: as above for spans, else empty [0, 2].
    """

    tokens: np.ndarray
    types: np.ndarray
    members: np.ndarray
    slots: np.ndarray
    targets: np.ndarray
    offsets: np.ndarray


def check_marks(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Returns the ids of [CLS], [SEP] and [UNK]; raises VocabularyError for a vocabulary without them."""
    if tokenizer.cls_id is None or tokenizer.sep_id is None or tokenizer.unk_id is None:
        raise VocabularyError(f"{tokenizer.path}: labelled text needs a vocabulary with [CLS], [SEP] and [UNK]")
    return tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id


class Encoder:
    """Encodes raw examples of one task.

    Args:
      tokenizer: a vocabulary with [CLS] and [SEP].
      form: the task's form.
      length, slots: the size of a row: the most tokens and the most labels of a sequence.
      labels: class names in the order of their ids.
      tally: its `cut` is incremented.
    """

    def __init__(
        self, tokenizer: Tokenizer, form: Form, length: int, slots: int, labels: Sequence[str] = (), tally: Tally | None = None
    ):
        self.tokenizer, self.length, self.slots = tokenizer, length, slots
        self.cls, self.sep, self.unknown = ([id_] for id_ in check_marks(tokenizer))
        self.between = self.sep * tokenizer.separators
        self.ids = {label: id_ for id_, label in enumerate(labels)}
        self.tally = tally or Tally()
        self._encode = getattr(self, f"_{form}")

    def __call__(self, example: Mapping[str, Any]) -> list[Encoded]:
        """Returns an example's encoded sequences: one, or for a span one for each window of its context.

        An example without its label (or tags, or answers) has targets -1. One with a list of labels has a slot for each.

        Raises:
          KeyError: a label that isn't among the task's.
        """
        return self._encode(example)

    def _classification(self, example: Mapping[str, Any]) -> list[Encoded]:
        texts = [self.tokenizer.encode(example[side]) for side in ("text", "pair") if side in example]
        room = self.length - len(self.cls + self.sep) - len(self.between) * (len(texts) - 1)
        self.tally.cut += sum(map(len, texts)) > room
        if len(texts) == 2:  # the longer one loses its end, then both do
            a, b = map(len, texts)
            a, b = min(a, max(room - b, (room + 1) // 2)), min(b, max(room - a, room // 2))
            texts = [texts[0][:a], texts[1][:b]]
        tokens = self.cls + texts[0][:room] + (self.between if len(texts) == 2 else self.sep)
        types = [0] * len(tokens)
        if len(texts) == 2:
            tokens += texts[1] + self.sep
            types += [1] * (len(tokens) - len(types))
        votes = example.get("label")
        targets = [self._id(vote) for vote in (votes if isinstance(votes, list) else [votes])]
        return [_encoded(tokens, [0] * len(targets), targets, types=types)]

    def _tagging(self, example: Mapping[str, Any]) -> list[Encoded]:
        words, tags = example["words"], example.get("tags")
        tokens, slots = list(self.cls), []
        for pieces in self.tokenizer.encode_words(words):
            pieces = pieces or self.unknown  # a word of characters that the vocabulary treats as blanks
            if len(tokens) + len(pieces) >= self.length or len(slots) == self.slots:
                self.tally.cut += 1
                break
            slots.append(len(tokens))
            tokens += pieces
        targets = [self._id(tag) for tag in (tags or [None] * len(words))[: len(slots)]]
        return [_encoded(tokens + self.sep, slots, targets)]

    def _span(self, example: Mapping[str, Any]) -> list[Encoded]:
        question = self.tokenizer.encode(example["question"])[:_QUESTION]
        context, offsets = self.tokenizer.encode_offsets(example["context"])
        head = self.cls + question + self.between
        room = self.length - len(head) - 1
        stride = min(_STRIDE, room // 2)
        answer = _answer(example.get("answers"), offsets)
        windows = []
        for start in range(0, max(1, len(context) - room + stride), stride):
            end = min(start + room, len(context))
            tokens = head + context[start:end] + self.sep
            target = [0, 0]
            if answer and start <= answer[0] and answer[1] < end:
                target = [len(head) + at - start for at in answer]
            windows.append(
                _encoded(
                    tokens,
                    [0],
                    [target if "answers" in example else [-1, -1]],
                    types=[0] * len(head) + [1] * (len(tokens) - len(head)),
                    offsets=[(-1, -1)] * len(head) + offsets[start:end] + [(-1, -1)],
                )
            )
        return windows

    def _pair(self, example: Mapping[str, Any]) -> list[Encoded]:
        texts = [self.tokenizer.encode(example[side]) for side in ("text", "pair")]
        room = self.length // 2 - 2
        self.tally.cut += any(len(text) > room for text in texts)
        first, second = (self.cls + text[:room] + self.sep for text in texts)
        members = [0] * len(first) + [1] * len(second)
        return [_encoded(first + second, [0, len(first)], [0, 0], members=members)]

    def _id(self, label: str | None) -> int:
        return -1 if label is None else self.ids[label]


def _encoded(
    tokens: Sequence[int],
    slots: Sequence[int],
    targets: Sequence[Any],
    types: Sequence[int] | None = None,
    members: Sequence[int] | None = None,
    offsets: Sequence[tuple[int, int]] = (),
) -> Encoded:
    none = np.zeros(len(tokens), np.int32)
    return Encoded(
        np.array(tokens, np.int32),
        none if types is None else np.array(types, np.int32),
        none if members is None else np.array(members, np.int32),
        np.array(slots, np.int32),
        np.array(targets, np.int32),
        np.array(offsets, np.int32).reshape(-1, 2),
    )


def _answer(answers: Sequence[Mapping[str, Any]] | None, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Returns the first and last token of the first answer, or None if there is no answer."""
    if not answers:
        return None
    start, end = answers[0]["start"], answers[0]["start"] + len(answers[0]["text"])
    inside = [at for at, (first, last) in enumerate(offsets) if first < end and last > start]
    return (inside[0], inside[-1]) if inside else None


def rows_of(
    examples: Iterable[Mapping[str, Any]],
    tokenizer: Tokenizer,
    form: Form,
    length: int,
    slots: int,
    labels: Sequence[str] = (),
    tally: Tally | None = None,
) -> Iterator[Row]:
    """Yields packed rows of raw examples, as described at the head of this file.

    Args:
      examples: raw examples, in the order in which they are placed.
      tokenizer, form, length, slots, labels: see `Encoder`.
      tally: incremented.
    """
    tally = tally or Tally()
    encode = Encoder(tokenizer, form, length, slots, labels, tally)

    def sides() -> Iterator[packing.Example]:
        for owner, example in enumerate(examples):
            tally.examples += 1
            for encoded in encode(example):
                yield *encoded[:3], encoded.slots, np.full(len(encoded.slots), owner), encoded.targets, encoded.offsets

    packed = Tally()
    # Tokens and slots bound a row, and with them everything that comes in the same numbers.
    lengths = (length, length, length, slots, slots, slots, length)
    for row in packing.pack(sides(), lengths, packed, lambda units, _: _lay_out(units, form, length, slots)):
        yield _split(row, form, length, slots)
    # A raw example may be several of a row, and counts as one.
    tally.rows, tally.tokens, tally.left_out = packed.rows, packed.tokens[:1], packed.left_out


def _lay_out(units: list[packing.Example], form: Form, length: int, slots: int) -> np.ndarray:
    """Returns all arrays of a row, concatenated in the order in which `_split` separates them."""
    tokens, segments, positions, types = np.zeros((4, length), np.int32)
    offsets = np.full((length if form == "span" else 0, 2), -1, np.int32)
    places = np.zeros(slots, np.int32)
    owners = np.full(slots, -1, np.int32)
    targets = np.full((slots, 2) if form == "span" else slots, -1, np.int32)
    start = slot = segment = 0
    for number, (ids, kinds, members, at, owner, target, where) in enumerate(units):
        end, last = start + len(ids), slot + len(at)
        tokens[start:end], types[start:end] = ids, kinds
        segments[start:end] = segment + 1 + members
        second = np.argmax(members)  # 0 where there is one sequence
        positions[start:end] = np.arange(len(ids)) - second * members
        places[slot:last], owners[slot:last] = start + at, owner
        match form:
            case "pair":
                targets[slot:last] = number
            case "span":
                targets[slot:last] = np.where(target < 0, -1, start + target)
                offsets[start:end] = where
            case _:
                targets[slot:last] = target
        start, slot, segment = end, last, segment + 1 + int(members[-1])
    return np.concatenate([tokens, segments, positions, types, places, targets.ravel(), owners, offsets.ravel()])


def _split(row: np.ndarray, form: Form, length: int, slots: int) -> Row:
    span = form == "span"
    shapes = {
        **dict.fromkeys(_STORED[:4], (length,)),
        "slots": (slots,),
        "targets": (slots, 2) if span else (slots,),
        "owners": (slots,),
        **({"offsets": (length, 2)} if span else {}),
    }
    arrays, start = {}, 0
    for name, shape in shapes.items():
        end = start + int(np.prod(shape))
        if end > len(row):  # a stored row ends before `owners`
            break
        arrays[name], start = row[start:end].reshape(shape), end
    return arrays


def record_of(row: Row) -> np.ndarray:
    """Returns a row as it is stored: int32 [4 L + 2 P], or [4 L + 3 P] for spans."""
    return np.concatenate([row[name].ravel() for name in _STORED])


def row_of(record: bytes, form: Form, length: int, slots: int) -> Row:
    """Returns a row from its record."""
    return _split(np.frombuffer(record, "<i4"), form, length, slots)


def shown(row: Row, tokenizer: Tokenizer, form: Form, labels: Sequence[str]) -> str:
    """Returns a row for a person: its tokens as text with their marks, and behind a slot its target in braces."""
    targets = {int(at): target for at, target in zip(row["slots"], row["targets"], strict=True) if np.any(target >= 0)}
    parts, start, end = [], 0, int((row["segments"] > 0).sum())
    for at in [*sorted(targets), end - 1]:
        parts.append(tokenizer.marked(row["tokens"][start : at + 1]))
        start = at + 1
        if at not in targets or form == "pair":
            continue
        target = targets[at]
        name = tokenizer.marked(row["tokens"][target[0] : target[1] + 1]) if form == "span" else labels[target]
        parts.append(f"{{{name}}}")
    return " ".join(part for part in parts if part)
