"""Masked language modelling: which tokens of a row are to be predicted, chosen anew each time. NumPy only.

Of the chosen tokens 80 % become [MASK], 10 % another token by chance, and 10 % stay as they are (BERT, section 3.1).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

_MASKED, _RANDOM = 0.8, 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """What masking knows of a vocabulary.

    Attributes:
      mask_id: takes the place of a masked token.
      special: bool [size], True for ids that are neither chosen nor put in another's place.
      continues: bool [size], True for pieces that go on with the word before.
      ordinary: int32, the ids that aren't special.
    """

    mask_id: int
    special: np.ndarray
    continues: np.ndarray
    ordinary: np.ndarray

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """That of a `data.vocabularies.tokenizers.Tokenizer`. Raises ValueError where it has no [MASK]."""
        if tokenizer.mask_id is None:
            raise ValueError(f"the vocabulary {tokenizer.path} has no [MASK]: it is not made for masking")
        special = np.zeros(tokenizer.size, bool)
        special[list(tokenizer.special_ids)] = True
        return cls(tokenizer.mask_id, special, tokenizer.continues, np.flatnonzero(~special).astype(np.int32))

    @classmethod
    def without_words(cls, size: int) -> "Vocabulary":
        """That of random tokens: each is a word, and only padding, 0, and the mask, 1, are special."""
        special = np.arange(size) < 2
        return cls(1, special, np.zeros(size, bool), np.arange(2, size, dtype=np.int32))


def mask(
    row: Mapping[str, np.ndarray],
    rng: np.random.Generator,
    vocabulary: Vocabulary,
    *,
    rate: float,
    whole_word: bool,
    predictions: int,
) -> dict[str, np.ndarray]:
    """A row with tokens to predict.

    Of N tokens that aren't special or padding floor(rate * N) are chosen, `predictions` at most. Of whole words as many as
    fit are chosen, which falls short of that number where only words of several pieces are left.

    Args:
      row: `tokens` and `segments` int32 [L], and whatever else.
      rate: share of tokens.
      whole_word: all pieces of a word are chosen, or none.
      predictions: P.

    Returns:
      The row with other `tokens`, and with `slots` int32 [P], the chosen positions ascending, then 0, and `targets`
      int32 [P], the tokens that stood there, then -1.
    """
    tokens, segments = row["tokens"], row["segments"]
    positions = np.flatnonzero((segments > 0) & ~vocabulary.special[tokens])
    number = min(int(rate * len(positions)), predictions)
    if whole_word:
        chosen = positions[_words(tokens, segments, positions, number, rng, vocabulary)]
    else:
        chosen = rng.choice(positions, number, replace=False, shuffle=False)
    chosen.sort()
    fate = rng.random(len(chosen))
    by_chance = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=len(chosen))]
    originals = tokens[chosen]
    replaced = tokens.copy()
    replaced[chosen] = np.where(fate < _MASKED, vocabulary.mask_id, originals)
    replaced[chosen] = np.where(fate >= 1 - _RANDOM, by_chance, replaced[chosen])
    slots, targets = np.zeros(predictions, np.int32), np.full(predictions, -1, np.int32)
    slots[: len(chosen)] = chosen
    targets[: len(chosen)] = originals
    return {**row, "tokens": replaced, "slots": slots, "targets": targets}


def hide(
    row: Mapping[str, np.ndarray], rng: np.random.Generator, vocabulary: Vocabulary, rate: float
) -> dict[str, np.ndarray]:
    """A row that has lost tokens, each with probability `rate`; special ones and padding stay.

    Args:
      row: `tokens` and `segments` int32 [L], and whatever else.

    Returns:
      The row with [MASK] in their place.
    """
    tokens = row["tokens"]
    lost = (row["segments"] > 0) & ~vocabulary.special[tokens] & (rng.random(len(tokens)) < rate)
    return {**row, "tokens": np.where(lost, vocabulary.mask_id, tokens).astype(tokens.dtype)}


def _words(
    tokens: np.ndarray,
    segments: np.ndarray,
    positions: np.ndarray,
    number: int,
    rng: np.random.Generator,
    vocabulary: Vocabulary,
) -> np.ndarray:
    """Which of the positions are chosen, bool: words in random order, those that no longer fit left out."""
    if not len(positions):
        return np.zeros(0, bool)
    goes_on = vocabulary.continues[tokens[positions]]
    goes_on[1:] &= (np.diff(positions) == 1) & (np.diff(segments[positions]) == 0)
    goes_on[0] = False  # a chunk may begin inside a word: its first piece is then a word
    word_of = np.cumsum(~goes_on) - 1
    sizes = np.bincount(word_of)
    order = rng.permutation(len(sizes))
    taken = np.zeros(len(sizes), bool)
    at = 0
    while number and at < len(order):
        # As many of the next words as fit, then past the one that doesn't.
        fitting = int(np.searchsorted(np.cumsum(sizes[order[at:]]), number, "right"))
        some = order[at : at + fitting]
        taken[some] = True
        number -= int(sizes[some].sum())
        at += fitting + 1
    return taken[word_of]
