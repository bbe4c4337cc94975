"""Packed rows of segment pairs for next-sentence prediction (BERT, appendix A.2). No TensorFlow.

An example is [CLS] A [SEP] B [SEP]: A is a few sentences of a text; B continues it half of the time, and is otherwise the
beginning, middle or end of another text of the same origin. Together they fill a row, except in one of ten examples. An
origin with fewer than two texts of two sentences or more is left out: B would continue A in each of its pairs, and segments
of other origins could be recognised by their style.

A row is int32 [4 * L + 2 * Q], for at most Q examples:

    tokens [L], segment ids [L], positions [L], types [L]      see `data.reading.packing`; the type is 1 from B on, else 0
    slots [Q], targets [Q]      positions of the examples' [CLS], and 1 where B continues A, else 0; unused: 0, -1
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence

import numpy as np

from data.reading import packing
from data.reading.tally import Tally
from data.vocabularies.tokenizers import Tokenizer

_SEED = 0
_SHORT = 0.1  # share of examples that are shorter than a row, chosen at random
_LEAST = 8  # the fewest tokens of such an example, in both segments together
_TRIES = 10  # attempts to find another text that is long enough

Sentences = list[list[int]]

# After a full stop, also one within quotation marks or brackets; lines are sentences in any case.
_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"')\]])\s+|\n+")


def sentences(text: str, tokenizer: Tokenizer, longest: int) -> Sentences:
    """Returns the ids of a text's sentences; those of more than `longest` tokens are cut into several."""
    pieces = []
    for sentence in _END.split(text):
        ids = tokenizer.encode(sentence)
        pieces += [ids[start : start + longest] for start in range(0, len(ids), longest)]
    return pieces


def examples(texts: Sequence[str], tokenizer: Tokenizer, length: int, seed: str = "") -> Iterator[packing.Example]:
    """Yields pairs from texts of one origin, in order: (tokens and types int32 [n, 2], target int32 [1]); none from one text."""
    chance = random.Random(f"{_SEED} {seed}")
    room = length - 3
    documents = [parts for text in texts if len(parts := sentences(text, tokenizer, room // 2)) > 1]
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
            if not follows:  # the sentences that would have been B are used in the next example
                full = size >= wanted
                needed = wanted - len(first) if full else len(second)
                second = _other(documents, number, needed, full, chance)
            at = end if follows else split
            _shorten(first, second, wanted, chance)
            yield _example(first, second, tokenizer), np.array([follows], np.int32)


def _joined(parts: Sentences) -> list[int]:
    return [id_ for sentence in parts for id_ in sentence]


def _other(documents: Sequence[Sentences], number: int, wanted: int, at_least: bool, chance: random.Random) -> list[int]:
    """Returns whole sentences from another text, `wanted` tokens or nearly, so that the length does not reveal the target.

    Args:
      at_least: returns no fewer tokens, if possible.
    """
    other: Sentences = []
    for _ in range(_TRIES):
        other = documents[(number + chance.randint(1, len(documents) - 1)) % len(documents)]
        if sum(map(len, other)) >= wanted:
            break
    remaining = itertools.accumulate(map(len, reversed(other)))
    first = sum(count < wanted for count in remaining)  # the number of sentences at the end that have too few tokens
    chosen: list[int] = []
    for sentence in other[chance.randint(0, max(0, len(other) - first - 1)) :]:
        if chosen and len(chosen) + (0 if at_least else len(sentence) / 2) >= wanted:
            break
        chosen += sentence
    return chosen


def _shorten(first: list[int], second: list[int], length: int, chance: random.Random) -> None:
    """Removes tokens from either end of the longer segment until both together have at most `length` tokens."""
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


def lay_out(pairs: list[packing.Example], lengths: Sequence[int]) -> np.ndarray:
    """Returns the row of these pairs, as described at the head of this file."""
    length, most = lengths
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in pairs)])
    types = np.zeros(length, np.int32)
    slots, targets = np.zeros(most, np.int32), np.full(most, -1, np.int32)
    types[: starts[-1]] = np.concatenate([tokens[:, 1] for tokens, _ in pairs])
    slots[: len(pairs)] = starts[:-1]
    targets[: len(pairs)] = np.concatenate([target for _, target in pairs])
    block = packing.lay_out([tokens[:, 0] for tokens, _ in pairs], length)
    return np.concatenate([block.ravel(), types, slots, targets])


def rows_of(texts: Sequence[str], tokenizer: Tokenizer, length: int, most: int, origins: Sequence[str] = ()) -> np.ndarray:
    """Returns packed rows int32 [R, 4 * length + 2 * most] of texts.

    Args:
      most: the most examples of a row.
      origins: the texts' origins; one for all texts by default.
    """
    by_origin: dict[str, list[str]] = {}
    for text, origin in zip(texts, origins or [""] * len(texts), strict=True):
        by_origin.setdefault(origin, []).append(text)
    pairs = (
        example for origin, origin_texts in by_origin.items() for example in examples(origin_texts, tokenizer, length, origin)
    )
    rows = list(packing.pack(pairs, (length, most), Tally(), lay_out))
    return np.array(rows, np.int32).reshape(-1, 4 * length + 2 * most)
