"""Pairs of segments for next-sentence prediction (BERT, appendix A.2), as packed rows. No TensorFlow.

An example is [CLS] A [SEP] B [SEP]: A is a few sentences of a text, B goes on from there half of the time, and is
otherwise the beginning, middle or end of another text of the same origin. Together they fill a row, but for one in ten.
An origin with fewer than two texts of two sentences or more is left out: each of its pairs would go on, and segments of
other origins would be told by their style.

A row is int32 [4 * L + 2 * Q], for at most Q examples:

    tokens [L], segment ids [L], positions [L], types [L]      see `data.reading.packing`; the type is 1 from B on, else 0
    slots [Q], targets [Q]      where the examples' [CLS] stand, and 1 where B goes on from A, 0 where not; unused: 0, -1
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence

import numpy as np

from data.reading import packing
from data.vocabularies.tokenizers import Tokenizer

_SEED = 0
_SHORT = 0.1  # of the examples are shorter than a row, by chance
_LEAST = 8  # tokens of such an example, both segments together
_TRIES = 10  # to find another text that is long enough

Sentences = list[list[int]]

# After a full stop, also one within quotation marks or brackets; lines are sentences in any case.
_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"')\]])\s+|\n+")


def sentences(text: str, tokenizer: Tokenizer, longest: int) -> Sentences:
    """The ids of a text's sentences; longer ones are cut."""
    found = []
    for sentence in _END.split(text):
        ids = tokenizer.encode(sentence)
        found += [ids[start : start + longest] for start in range(0, len(ids), longest)]
    return found


def examples(texts: Sequence[str], tokenizer: Tokenizer, length: int, seed: str = "") -> Iterator[packing.Example]:
    """Pairs from texts of one origin, in order: (tokens and types int32 [n, 2], target int32 [1]); none from a single text."""
    chance = random.Random(f"{_SEED} {seed}")
    room = length - 3
    documents = [found for text in texts if len(found := sentences(text, tokenizer, room // 2)) > 1]
    if len(documents) < 2:
        return
    for number, document in enumerate(documents):
        at = 0
        while at < len(document) - 1:
            wanted = chance.randint(_LEAST, room) if chance.random() < _SHORT else room
            size, end = 0, at
            while end < len(document) and (size < wanted or end < at + 2):
                size += len(document[end])
                end += 1
            if end < at + 2:
                break
            split = chance.randint(at + 1, end - 1)
            first, second = _joined(document[at:split]), _joined(document[split:end])
            follows = chance.random() < 0.5
            if not follows:  # the sentences that B would have had come again, in the next example
                full = size >= wanted
                needed = wanted - len(first) if full else len(second)
                second = _other(documents, number, needed, full, chance)
            at = end if follows else split
            _shorten(first, second, wanted, chance)
            yield _example(first, second, tokenizer), np.array([follows], np.int32)


def _joined(some: Sentences) -> list[int]:
    return [id_ for sentence in some for id_ in sentence]


def _other(
    documents: Sequence[Sentences], number: int, wanted: int, at_least: bool, chance: random.Random
) -> list[int]:
    """Whole sentences from anywhere in another text, about as long as wanted, so that the length gives nothing away.

    Args:
      at_least: not shorter, where that can be.
    """
    other: Sentences = []
    for _ in range(_TRIES):
        other = documents[(number + chance.randint(1, len(documents) - 1)) % len(documents)]
        if sum(map(len, other)) >= wanted:
            break
    remaining = itertools.accumulate(map(len, reversed(other)))
    first = sum(count < wanted for count in remaining)  # so many sentences at the end are too few
    found: list[int] = []
    for sentence in other[chance.randint(0, max(0, len(other) - first - 1)) :]:
        if found and len(found) + (0 if at_least else len(sentence) / 2) >= wanted:
            break
        found += sentence
    return found


def _shorten(first: list[int], second: list[int], length: int, chance: random.Random) -> None:
    """Takes tokens from either end of the longer segment until both together are no longer than that."""
    while (excess := len(first) + len(second) - length) > 0:
        longer = max(first, second, key=len)
        number = min(excess, max(1, abs(len(first) - len(second))))
        front = sum(chance.random() < 0.5 for _ in range(number))
        del longer[:front]
        del longer[len(longer) - (number - front) :]


def _example(first: list[int], second: list[int], tokenizer: Tokenizer) -> np.ndarray:
    tokens = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return np.array([tokens, types], np.int32).T


def lay_out(some: list[packing.Example], lengths: Sequence[int]) -> np.ndarray:
    """The row that the head of this file describes."""
    length, most = lengths
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in some)])
    types = np.zeros(length, np.int32)
    slots, targets = np.zeros(most, np.int32), np.full(most, -1, np.int32)
    types[: starts[-1]] = np.concatenate([tokens[:, 1] for tokens, _ in some])
    slots[: len(some)] = starts[:-1]
    targets[: len(some)] = np.concatenate([target for _, target in some])
    block = packing.lay_out([tokens[:, 0] for tokens, _ in some], length)
    return np.concatenate([block.ravel(), types, slots, targets])


def rows_of(
    texts: Sequence[str], tokenizer: Tokenizer, length: int, most: int, origins: Sequence[str] = ()
) -> np.ndarray:
    """Packed rows int32 [R, 4 * length + 2 * most] of texts.

    Args:
      most: examples of a row.
      origins: of the texts; of one origin if not given.
    """
    by_origin: dict[str, list[str]] = {}
    for text, origin in zip(texts, origins or [""] * len(texts), strict=True):
        by_origin.setdefault(origin, []).append(text)
    some = (example for origin, of_it in by_origin.items() for example in examples(of_it, tokenizer, length, origin))
    rows = list(packing.pack(some, (length, most), packing.Tally(), lay_out))
    return np.array(rows, np.int32).reshape(-1, 4 * length + 2 * most)
