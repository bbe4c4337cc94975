"""Metrics of ratings and ranks."""

import math
from collections.abc import Sequence

import numpy as np

MEANINGS = {
    "auc": "how often a conversation with a good rating is rated above one with a bad rating; 0.5 is chance",
    "accuracy": "the share of ratings that are told right",
    "good": "the share of ratings that are good",
    "chosen": "the share of good ratings among the responses that the model would choose of several",
    "reciprocal_rank": "the mean of 1 over the true response's place among others",
    "first": "the share of true responses that are likelier than all others",
}
"""Explains these scores (data.task.Task.meanings)."""


def auc(good: Sequence[bool], scores: Sequence[float]) -> float:
    """Returns the area under the ROC curve: how often a good example has a higher score than a bad one, ties by half.

    0.5 where there are no two kinds of examples.
    """
    labels, values = np.asarray(good, bool), np.asarray(scores, np.float64)
    if labels.all() or not labels.any():
        return 0.5
    pairs = values[labels][:, None] - values[~labels][None]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


def auc_error(area: float, good: int, bad: int) -> float:
    """Returns the standard error of an AUC over so many examples of each kind (Hanley and McNeil 1982, equation 1)."""
    two_good, two_bad = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (good - 1) * (two_good - area**2) + (bad - 1) * (two_bad - area**2)
    return math.sqrt(spread / (good * bad))


def accuracy(good: Sequence[bool], margins: Sequence[float]) -> float:
    """Returns the share of examples that are told right: as good where the margin, good over bad, is above 0."""
    return float(np.mean(np.asarray(good, bool) == (np.asarray(margins) > 0)))


def best_of(good: Sequence[bool], scores: Sequence[float], among: int) -> float:
    """Returns how often the best by score of so many examples is a good one, over all ways to draw them; ties by equal parts.

    Of one it is the share of good ones.
    """
    labels, values = np.asarray(good, bool), np.asarray(scores, np.float64)
    chances_N = _chances(len(labels), among)[np.argsort(np.argsort(-values, kind="stable"))]
    _, tied_N = np.unique(values, return_inverse=True)
    shared_N = np.bincount(tied_N, chances_N)[tied_N] / np.bincount(tied_N)[tied_N]
    return float(np.sum(shared_N * labels))


def best_of_error(share: float, total: int, among: int) -> float:
    """Returns the standard error of `best_of` over so many examples: few of them are ever the best, so that it is that of few."""
    return math.sqrt(share * (1 - share) * float(np.sum(_chances(total, among) ** 2)))


def _chances(total: int, among: int) -> np.ndarray:
    """Returns how often each of N examples in the order of scores is the best of n: the i-th, from 0, in C(N - 1 - i, n - 1) of
    C(N, n) draws."""
    among = min(among, total)
    return np.array([math.comb(total - 1 - i, among - 1) / math.comb(total, among) for i in range(total)])


def ranks(scores_NK: np.ndarray) -> dict[str, float]:
    """Returns how the first of K candidates fares: `reciprocal_rank`, a mean, and `first`, the share of N in which it is best.

    Candidates of the same score are before it.
    """
    place_N = 1 + np.sum(scores_NK[:, 1:] >= scores_NK[:, :1], axis=1)
    return {"reciprocal_rank": float(np.mean(1 / place_N)), "first": float(np.mean(place_N == 1))}
