"""Masked language modelling: chooses the tokens of a row that are to be predicted, anew each time. NumPy only.

80 % of the chosen tokens become [MASK], 10 % a random token, and 10 % stay as they are (BERT, section 3.1).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

_MASKED, _RANDOM = 0.8, 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The properties of a vocabulary that masking needs.

    Attributes:
      mask_id: the id that replaces a masked token.
      special: bool [size], True for ids that are neither chosen nor used as replacements.
      continues: bool [size], True for pieces that continue a word.
      ordinary: int32, the ids that aren't special.
    """

    mask_id: int
    special: np.ndarray
    continues: np.ndarray
    ordinary: np.ndarray

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "Vocabulary":
        """Returns the properties of a `data.vocabularies.tokenizers.Tokenizer`; raises ValueError if it has no [MASK]."""
        if tokenizer.mask_id is None:
            raise ValueError(f"the vocabulary {tokenizer.path} has no [MASK]: it is not made for masking")
        special = np.zeros(tokenizer.size, bool)
        special[list(tokenizer.special_ids)] = True
        return cls(tokenizer.mask_id, special, tokenizer.continues, np.flatnonzero(~special).astype(np.int32))

    @classmethod
    def without_words(cls, size: int) -> "Vocabulary":
        """Returns the properties of random tokens: each is a word, and only padding, 0, and the mask, 1, are special."""
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
    """Returns a row with tokens to predict.

    floor(rate * N) of the N tokens that are neither special nor padding are chosen, at most `predictions`. Whole words are
    chosen while they fit, which falls short of that number if only words of several pieces are left.

    Args:
      row: `tokens` and `segments` int32 [L], and any other arrays.
      rate: share of tokens.
      whole_word: all pieces of a word are chosen, or none.
      predictions: P, the most tokens to predict.

    Returns:
      The row with changed `tokens`, and with `slots` int32 [P], the chosen positions in ascending order, padded with 0, and
      `targets` int32 [P], their original tokens, padded with -1.
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
    random_tokens = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=len(chosen))]
    originals = tokens[chosen]
    replaced = tokens.copy()
    replaced[chosen] = np.where(fate < _MASKED, vocabulary.mask_id, originals)
    replaced[chosen] = np.where(fate >= 1 - _RANDOM, random_tokens, replaced[chosen])
    slots, targets = np.zeros(predictions, np.int32), np.full(predictions, -1, np.int32)
    slots[: len(chosen)] = chosen
    targets[: len(chosen)] = originals
    return {**row, "tokens": replaced, "slots": slots, "targets": targets}


def hide(row: Mapping[str, np.ndarray], rng: np.random.Generator, vocabulary: Vocabulary, rate: float) -> dict[str, np.ndarray]:
    """Returns a row in which each token is replaced by [MASK] with probability `rate`, except special ones and padding.

    Args:
      row: `tokens` and `segments` int32 [L], and any other arrays.
    """
    tokens = row["tokens"]
    masked = (row["segments"] > 0) & ~vocabulary.special[tokens] & (rng.random(len(tokens)) < rate)
    return {**row, "tokens": np.where(masked, vocabulary.mask_id, tokens).astype(tokens.dtype)}


def _words(
    tokens: np.ndarray, segments: np.ndarray, positions: np.ndarray, number: int, rng: np.random.Generator, vocabulary: Vocabulary
) -> np.ndarray:
    """Returns which positions are chosen, bool: words are taken in random order, without those that no longer fit."""
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
        # Takes as many of the next words as fit, then skips the one that does not.
        fitting = int(np.searchsorted(np.cumsum(sizes[order[at:]]), number, "right"))
        words = order[at : at + fitting]
        taken[words] = True
        number -= int(sizes[words].sum())
        at += fitting + 1
    return taken[word_of]
