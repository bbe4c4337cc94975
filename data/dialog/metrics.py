"""Metrics of ratings and ranks."""

from collections.abc import Sequence

import numpy as np


def auc(good: Sequence[bool], scores: Sequence[float]) -> float:
    """Returns the area under the ROC curve: how often a good example has a higher score than a bad one, ties by half.

    0.5 where there are no two kinds of examples.
    """
    labels, values = np.asarray(good, bool), np.asarray(scores, np.float64)
    if labels.all() or not labels.any():
        return 0.5
    pairs = values[labels][:, None] - values[~labels][None]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


def ranks(scores_NK: np.ndarray) -> dict[str, float]:
    """Returns how the first of K candidates fares: `reciprocal_rank`, a mean, and `first`, the share of N in which it is best.

    Candidates of the same score are before it.
    """
    place_N = 1 + np.sum(scores_NK[:, 1:] >= scores_NK[:, :1], axis=1)
    return {"reciprocal_rank": float(np.mean(1 / place_N)), "first": float(np.mean(place_N == 1))}
