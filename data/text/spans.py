"""Span corruption (T5, arXiv 1910.10683, section 3.1.4) and prefixes (section 3.2.3): a row of text as inputs and targets.

A sentinel is an id that stands for a span: in the inputs for the tokens that are gone, in the targets for those that stay. Those
of a vocabulary of V tokens are the ids after it, the last one first: V + S - 1 for the first span of a row, of S sentinels.
"""

import numpy as np

from data.features import Example


def lengths(tokens: int, rate: float, mean: float) -> tuple[int, int]:
    """Returns how long inputs and targets of so many tokens are, a sentinel for each span and the end included.

    Of 568 tokens, 15 % of them in spans of 3 tokens on average, they are 512 and 114 long.
    """
    noise, spans = _counts(tokens, rate, mean)
    return tokens - noise + spans + 1, noise + spans + 1


def noise_mask(tokens: int, rate: float, mean: float, rng: np.random.Generator) -> np.ndarray:
    """Returns bool [tokens], True for tokens in a span that is taken out.

    As T5 draws it: the numbers of noise tokens and of spans are fixed, and both kinds of spans share their tokens at random, no
    span being empty. A row begins with a span that stays.
    """
    noise, spans = _counts(tokens, rate, mean)
    parts = [_segments(count, spans, rng) for count in (tokens - noise, noise)]
    return np.repeat(np.tile([False, True], spans), np.stack(parts, axis=1).reshape(-1))


def corrupt(
    tokens: np.ndarray, rng: np.random.Generator, *, rate: float, mean: float, first_sentinel: int, eos: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs, targets) of tokens int32 [n], n at least 2: each noise span is one sentinel in the inputs, each other
    span one in the targets; both end in `eos`."""
    mask = noise_mask(len(tokens), rate, mean, rng)
    return tuple(
        np.append(_with_sentinels(tokens, gone, first_sentinel), np.int32(eos)).astype(np.int32) for gone in (mask, ~mask)
    )  # pyright: ignore[reportReturnType]


def prefix(tokens: np.ndarray, rng: np.random.Generator, *, eos: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs, targets) of tokens [n], n at least 2: a beginning of at least one token, and the rest with `eos`."""
    at = int(rng.integers(1, len(tokens)))
    return tokens[:at].astype(np.int32), np.append(tokens[at:], np.int32(eos)).astype(np.int32)


def lay_out(sides: dict[str, np.ndarray], lengths: dict[str, int]) -> Example:
    """Returns the arrays of a row with one example: ids, segments and positions of each side, cut at its length."""
    row: Example = {}
    for side, ids in sides.items():
        ids, length = ids[: lengths[side]], lengths[side]
        real = np.arange(length) < len(ids)
        row[side] = np.pad(ids, (0, length - len(ids))).astype(np.int32)
        row[f"{side}_segments"] = real.astype(np.int32)
        row[f"{side}_positions"] = (np.arange(length) * real).astype(np.int32)
    return row


def _counts(tokens: int, rate: float, mean: float) -> tuple[int, int]:
    """Returns the numbers of noise tokens and of spans."""
    noise = min(max(round(tokens * rate), 1), tokens - 1)
    return noise, min(max(round(noise / mean), 1), tokens - noise)


def _segments(items: int, segments: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the lengths of so many segments, at least 1 each, that share the items at random: all ways are as likely."""
    ends = np.sort(rng.choice(items - 1, segments - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], ends, [items]]))


def _with_sentinels(tokens: np.ndarray, gone: np.ndarray, first: int) -> np.ndarray:
    """Returns the tokens with one sentinel, counting down from `first`, for each span that is gone."""
    starts = gone & ~np.concatenate([[False], gone[:-1]])
    marked = np.where(starts, first + 1 - np.cumsum(starts), tokens)
    return marked[starts | ~gone]
