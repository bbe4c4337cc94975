"""Scores of classified pictures. NumPy only."""

import numpy as np


def ranks(logits_NC: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Returns how many classes [N] come before the true one; equal logits rank by their number, and NaN comes first.

    So a model that gives all classes the same, as one with a head of zeros does, is right about class 0 alone.
    """
    true_N1 = np.take_along_axis(logits_NC, labels_N[:, None], axis=1)
    earlier_NC = np.arange(logits_NC.shape[1]) < labels_N[:, None]
    before_NC = ~(logits_NC <= true_N1) | ((logits_NC == true_N1) & earlier_NC)
    return np.sum(before_NC, axis=1)


def accuracies(ranks_N: np.ndarray) -> dict[str, float]:
    """Returns the share of pictures whose class is the likeliest, and among the five likeliest."""
    count = max(len(ranks_N), 1)
    return {"accuracy": float(np.sum(ranks_N < 1)) / count, "accuracy_top5": float(np.sum(ranks_N < 5)) / count}
