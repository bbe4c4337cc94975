import numpy as np
import pytest
from scipy import stats

from data.labelled import metrics
from data.labelled.sources import TASKS


@pytest.mark.parametrize(
    ("targets", "predictions", "expected"),
    [
        # The example of scikit-learn's documentation of f1_score: F1 of 4/5, 0 and 0.
        ([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1], 0.8 / 3),
        # A class that is predicted and never true counts, as 0: F1 of 2/3 and 0, not 2/3 alone.
        (["a", "a"], ["a", "b"], (2 / 3 + 0) / 2),
        # So does one that is true and never predicted.
        (["a", "b"], ["a", "a"], (2 / 3 + 0) / 2),
        (["a", "a"], ["a", "a"], 1.0),
    ],
)
def test_macro_f1_is_scikit_learns(targets, predictions, expected):
    """The mean of F1 is over the classes that occur among targets or predictions; classes on neither side do not count."""
    confusion = metrics.confusion_of(targets, predictions)
    assert metrics.macro_f1(confusion) == pytest.approx(expected)
    assert metrics.macro_f1(np.pad(confusion, (0, 3))) == pytest.approx(expected)
    assert metrics.scores_of("spam", confusion)["macro_f1"] == pytest.approx(expected)


def test_a_confusion_matrix_by_hand():
    """Rows are true classes, columns predicted ones; four of five are right."""
    confusion = metrics.confusion_of(["x", "y", "x", "x", "y"], ["x", "y", "y", "x", "y"])
    assert confusion.tolist() == [[2, 1], [0, 2]] and metrics.accuracy(confusion) == 0.8


def test_the_majority_by_hand():
    """Always naming the class of three of four examples is right three times in four; of nothing the scores are 0."""
    assert metrics.scores_of("spam", np.array([[2, 1, 0], [1, 0, 0], [0, 0, 0]]))["majority"] == 0.75
    assert metrics.scores_of("spam", np.zeros((2, 2))) == {"macro_f1": 0.0, "majority": 0.0}


def test_matthews_correlation():
    """1 for equal answers, -1 for opposite ones, 0 for a constant answer; otherwise the correlation of 0s and 1s."""
    assert metrics.matthews(np.array([[1, 0], [0, 3]])) == 1.0
    assert metrics.matthews(np.array([[0, 2], [2, 0]])) == -1.0
    assert metrics.matthews(np.array([[0, 2], [0, 2]])) == 0.0
    targets, predictions = [1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1]
    expected = np.corrcoef(targets, predictions)[0, 1]
    assert metrics.matthews(metrics.confusion_of(targets, predictions)) == pytest.approx(expected)


def test_glue_has_scores_of_its_own():
    """MRPC and QQP add F1 of their second class (4/7 of 2 right, 3 wrong), CoLA Matthews' correlation, others nothing."""
    confusion = np.array([[5, 1], [2, 2]])
    scores = {task: metrics.scores_of(task, confusion) for task in TASKS if task.startswith("glue_")}
    more = {task: of_task for task, of_task in scores.items() if of_task.keys() - {"macro_f1", "majority"}}
    assert more.keys() == {"glue_mrpc", "glue_qqp", "glue_cola"}
    assert more["glue_mrpc"]["f1"] == more["glue_qqp"]["f1"] == pytest.approx(4 / 7)
    assert more["glue_cola"]["matthews"] == pytest.approx((2 * 5 - 1 * 2) / np.sqrt(3 * 4 * 6 * 7))
    assert TASKS["glue_mrpc"].labels[1] == "equivalent" and TASKS["glue_qqp"].labels[1] == "duplicate"


def test_squad_by_hand():
    """Case, articles and punctuation don't count; the best of several answers does; words that are shared count in part."""
    targets = [["The cat!", "a dog"], ["on the mat"], ["two words"], ["one"]]
    predictions = ["cat", "Mat, on", "two other words", ""]
    assert metrics.squad(targets, predictions) == {"exact_match": 0.25, "f1": pytest.approx((1 + 1 + 0.8 + 0) / 4)}


def test_predictions_that_are_no_class():
    """Columns after the classes count among what is true, and are no class whose F1 is averaged: F1 of 2/3, 2/3 and 0."""
    confusion = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 1]])
    assert metrics.macro_f1(confusion) == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    assert metrics.accuracy(confusion) == 2 / 5
    assert metrics.scores_of("brown_tags", confusion)["majority"] == 2 / 5


def test_correlations_are_scipys():
    """They are those of the pairs that a table stands for; a last column of predictions that are no class is left out."""
    counts, values = np.array([[3, 1, 0], [1, 0, 2], [0, 1, 4]]), (0.0, 1.0, 4.0)
    pairs = np.array([(values[i], values[j]) for i in range(3) for j in range(3) for _ in range(counts[i, j])])
    scores = metrics.correlations(np.pad(counts, ((0, 0), (0, 1)), constant_values=7), values)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(pairs[:, 0], pairs[:, 1])[0])
    assert scores["spearman"] == pytest.approx(stats.spearmanr(pairs[:, 0], pairs[:, 1])[0])
    assert metrics.correlations(np.diag([4, 0, 0]), values) == {"pearson": 0.0, "spearman": 0.0}
