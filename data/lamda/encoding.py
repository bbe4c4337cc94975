"""Encodes conversations as examples of packed rows, for training and for evaluation alike. No TensorFlow.

Each part of an example (context, response, rating) is encoded by itself, so that a response has the same tokens wherever it comes
from. A row is int32 [4 * L]: tokens, segment ids and positions (data/reading/packing.py), then `loss_weights`, how much a token
counts: 0 where it is given, 1 in a response. A rating counts as much as a response of the mean length, or it would hardly be
learned: there is one token of it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from data.lamda import prompt_format
from data.reading import packing
from data.task import DataError
from data.vocabularies.tokenizers import Tokenizer

RATING = 16  # what the token of a rating counts


def fitting_turns(turns: Sequence[str], tokenizer: Tokenizer, room: int) -> Sequence[str]:
    """Returns as many last turns as have room in `prompt_format.prompt`, at least one."""
    first = len(turns) - 1
    while first > 0 and len(tokenizer.encode(prompt_format.prompt(turns[first - 1 :]))) <= room:
        first -= 1
    return turns[first:]


def fitting_prompt(turns: Sequence[str], tokenizer: Tokenizer, room: int) -> list[int]:
    """Returns the ids of `prompt_format.prompt` of as many last turns as have room; of a single one without, the end."""
    return tokenizer.encode(prompt_format.prompt(fitting_turns(turns, tokenizer, room)))[-room:]


def response(turn: str, tokenizer: Tokenizer, most: int) -> list[int]:
    """Returns the ids of a response, at most so many: the end is cut."""
    return tokenizer.encode(prompt_format.response(turn))[:most]


def ratings(attribute: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids of the two ratings, (bad, good), which differ in the last alone.

    Raises:
      DataError: they do not, with this vocabulary.
    """
    bad, good = (tokenizer.encode(prompt_format.rated(attribute, value)) for value in (False, True))
    if bad[:-1] != good[:-1] or bad[-1] == good[-1]:
        raise DataError(f"the vocabulary has no token for each of the ratings 0 and 1 behind {attribute.upper()!r}")
    return bad, good


def generative(turns: Sequence[str], tokenizer: Tokenizer, length: int) -> packing.Example:
    """Returns the example (tokens, weights) in which the last turn is the response; half the length at most is its."""
    learned = response(turns[-1], tokenizer, length // 2)
    given = fitting_prompt(turns[:-1], tokenizer, length - len(learned))
    return _example(given, learned)


def discriminative(
    turns: Sequence[str], rated: Mapping[str, bool], tokenizer: Tokenizer, length: int
) -> Iterator[packing.Example]:
    """Yields an example for each rating of a conversation, whose last turn is the response."""
    for attribute, value in rated.items():
        ids = ratings(attribute, tokenizer)[value]
        given = judged(turns, tokenizer, length - len(ids))
        yield _example([*given, *ids[:-1]], ids[-1:], RATING)


def judged(turns: Sequence[str], tokenizer: Tokenizer, room: int) -> list[int]:
    """Returns the ids of a conversation up to the place of a rating; its last turn is the response."""
    last = response(turns[-1], tokenizer, room // 2)
    return [*fitting_prompt(turns[:-1], tokenizer, room - len(last)), *last]


def _example(given: Sequence[int], learned: Sequence[int], weight: int = 1) -> packing.Example:
    tokens = np.array([*given, *learned], np.int32)
    weights = np.repeat(np.array([0, weight], np.int32), [len(given), len(learned)])
    return tokens, weights
