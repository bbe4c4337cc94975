"""Accuracies of pictures."""

import numpy as np

from data.images.metrics import accuracies, ranks


def test_ranks_count_what_comes_before():
    """The greatest logit has rank 0; of equal ones the class with the lower number comes first."""
    logits = np.array([[3, 2, 1], [1, 2, 3], [2, 2, 2], [2, 2, 2.0]])
    assert ranks(logits, np.array([0, 0, 0, 2])).tolist() == [0, 2, 0, 2]


def test_a_model_without_an_opinion_is_no_better_than_chance():
    """Equal logits, or none that are numbers, are right about a tenth of ten equally frequent classes at most."""
    labels = np.repeat(np.arange(10), 10)
    assert accuracies(ranks(np.zeros((100, 10)), labels)) == {"accuracy": 0.1, "accuracy_top5": 0.5}
    assert accuracies(ranks(np.full((100, 10), np.nan), labels)) == {"accuracy": 0.0, "accuracy_top5": 0.0}
    broken = np.zeros((1, 10))
    broken[0, 3] = np.nan
    assert ranks(broken, np.array([0])).tolist() == [1] and ranks(broken, np.array([3])).tolist() == [10]
