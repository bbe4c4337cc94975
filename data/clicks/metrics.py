"""Scores of probabilities and of rankings. NumPy and SciPy alone.

N rows; labels are 0 or 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import rankdata

from data.task import DataError

TOP = 10  # places of a ranking that are looked at

MEANINGS = {
    "auc": "the share of pairs of a positive and a negative row in which the positive one has the higher score; equal ones count "
    "half",
    "log_loss": "the mean of -log of the probability that a row's own label is given, in nats",
    "normalized_entropy": "log_loss divided by that of the mean label as each row's probability; below 1, something is learned",
    "ndcg": "labels of a ranking's first ten items, the later the less (1 / log2(1 + place)), as a share of the best order's",
    "hit_rate": "the share of rankings that have a positive item among the first ten",
    "popularity": "each item's share of positive training rows, drawn to the mean of all by ten rows",
    "factors": "logistic matrix factorisation of users and items with biases, fitted to the training rows",
    "bayes": "the probabilities that the labels were drawn with: no model is better on average",
}
"""Explains the scores and the baselines (data.task.Task.meanings)."""


def auc(labels_N: np.ndarray, scores_N: np.ndarray) -> float:
    """Returns the area under the ROC curve, by the ranks of the positive rows; equal scores share their mean rank.

    Raises:
      DataError: all rows have one label.
    """
    positive_N = np.asarray(labels_N) > 0.5
    count, positives = len(positive_N), int(positive_N.sum())
    if not 0 < positives < count:
        raise DataError(f"all {count:,} rows have label {int(positives > 0)}: an AUC compares rows of both")
    ranks_N = rankdata(np.asarray(scores_N, np.float64))
    above = ranks_N[positive_N].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (count - positives)))


def probabilities(logits_N: np.ndarray) -> np.ndarray:
    """Returns the probabilities of logits, float64."""
    logits_N = np.asarray(logits_N, np.float64)
    return np.exp(-np.logaddexp(0, -logits_N))


def log_loss(labels_N: np.ndarray, logits_N: np.ndarray, weights_N: np.ndarray | None = None) -> float:
    """Returns the weighted mean of the cross entropy of logits, in nats: finite for any finite logit."""
    labels_N, logits_N = np.asarray(labels_N, np.float64), np.asarray(logits_N, np.float64)
    losses_N = np.logaddexp(0, logits_N) - labels_N * logits_N
    return float(np.average(losses_N, weights=weights_N))


def normalized_entropy(labels_N: np.ndarray, logits_N: np.ndarray, weights_N: np.ndarray | None = None) -> float:
    """Returns the log-loss as a multiple of that of the mean label (He et al. 2014, "Practical lessons from predicting clicks on
    ads at Facebook", section 3).

    Raises:
      DataError: all rows have one label.
    """
    mean = float(np.average(np.asarray(labels_N, np.float64), weights=weights_N))
    if not 0 < mean < 1:
        raise DataError(f"all {len(labels_N):,} rows have label {int(mean)}: their entropy is 0, which nothing is a multiple of")
    entropy = -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    return log_loss(labels_N, logits_N, weights_N) / float(entropy)


def of_logits(extra: Mapping[str, np.ndarray], logits_N: np.ndarray) -> dict[str, float]:
    """Returns the scores of logits, by name.

    Args:
      extra: arrays [N]: "label", and perhaps "weight" and "group".
    """
    labels_N, weights_N = extra["label"], extra.get("weight")
    scores = {
        "auc": auc(labels_N, logits_N),
        "log_loss": log_loss(labels_N, logits_N, weights_N),
        "normalized_entropy": normalized_entropy(labels_N, logits_N, weights_N),
    }
    return scores | (rankings(labels_N, logits_N, extra["group"]) if "group" in extra else {})


def of_outputs(
    extra: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray], count: int, baselines: Sequence[str]
) -> dict[str, float]:
    """Returns the scores of a model's logits, and as "popularity/auc" those of the baselines whose logits `extra` has.

    Args:
      extra: as `of_logits` takes it.
      outputs: logits of rows, of which those behind `count` are of padding; empty if only the names of the scores are asked for.
    """
    logits_N = np.array(outputs[:count], np.float64).reshape(count) if len(outputs) else np.zeros(count)
    scores = of_logits(extra, logits_N)
    for name in baselines:
        if name in extra:
            scores |= {f"{name}/{score}": value for score, value in of_logits(extra, extra[name]).items()}
    return scores


def check_labels(labels_N: np.ndarray, split: str, cache: str, limit: int) -> None:
    """Raises DataError where the rows of a split, of which there are some, have one label."""
    try:
        auc(labels_N, labels_N)
    except DataError as problem:
        raise DataError(f"{split} of cache {cache!r}: {problem}{f' (eval.limit={limit})' if limit else ''}") from None


def of_ranks(ranks_N: np.ndarray, top: int = TOP) -> dict[str, float]:
    """Returns NDCG and hit rate of the first `top` places of N rankings, whose one positive item is at these ranks, from 1 on."""
    hits_N = np.asarray(ranks_N) <= top
    gains_N = hits_N / np.log2(1.0 + np.asarray(ranks_N))
    return {"ndcg": float(gains_N.mean()), "hit_rate": float(hits_N.mean())}


def rankings(labels_N: np.ndarray, scores_N: np.ndarray, groups_N: np.ndarray, top: int = TOP) -> dict[str, float]:
    """Returns NDCG and hit rate of the first `top` rows by score, as means over the groups with a positive row.

    Rows of equal score share the mean of the gains, and hit by chance, as if they came in random order.

    Returns:
      ndcg, hit_rate: 0 to 1. Empty where no group has both labels.
    """
    order_N = np.lexsort((-np.asarray(scores_N, np.float64), groups_N))
    labels_N, scores_N, groups_N = (np.asarray(x)[order_N] for x in (labels_N, scores_N, groups_N))
    starts = np.flatnonzero(groups_N[1:] != groups_N[:-1]) + 1
    ndcgs, hits = [], []
    for labels, scores in zip(np.split(labels_N, starts), np.split(scores_N, starts), strict=True):
        if 0 < labels.sum() < len(labels):
            ndcgs.append(ndcg(labels, scores, top))
            hits.append(hit_rate(labels, scores, top))
    return {"ndcg": float(np.mean(ndcgs)), "hit_rate": float(np.mean(hits))} if ndcgs else {}


def ndcg(labels_K: np.ndarray, scores_K: np.ndarray, top: int = TOP) -> float:
    """Returns the normalised discounted cumulative gain of K rows whose scores fall; 0 where no label is positive."""
    discounts_K = np.where(np.arange(len(labels_K)) < top, 1 / np.log2(np.arange(len(labels_K)) + 2), 0.0)
    gain = float(np.sum(_means_of_ties(np.asarray(labels_K, np.float64), scores_K) * discounts_K))
    best = float(np.sum(np.sort(labels_K)[::-1] * discounts_K))
    return gain / best if best else 0.0


def hit_rate(labels_K: np.ndarray, scores_K: np.ndarray, top: int = TOP) -> float:
    """Returns the chance that one of the first `top` of K rows whose scores fall is positive, equal ones in random order."""
    labels_K = np.asarray(labels_K) > 0.5
    if len(labels_K) <= top:
        return float(labels_K.any())
    tied_K = scores_K == scores_K[top - 1]
    first = int(np.argmax(tied_K))
    if labels_K[:first].any():
        return 1.0
    size, positives, places = int(tied_K.sum()), int(labels_K[tied_K].sum()), top - first
    missed = 1.0
    for n in range(places):  # no positive among `places` of the tied rows, drawn without replacement
        missed *= max(size - positives - n, 0) / (size - n)
    return 1.0 - missed


def _means_of_ties(values_K: np.ndarray, scores_K: np.ndarray) -> np.ndarray:
    """Returns values with those of rows of equal score, which are neighbours, replaced by their mean."""
    _, ties_K = np.unique(-np.asarray(scores_K, np.float64), return_inverse=True)
    return (np.bincount(ties_K, weights=values_K) / np.bincount(ties_K))[ties_K]
