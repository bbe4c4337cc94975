import numpy as np
import pytest

from data.labelled import metrics


def test_classes_by_hand():
    """Of four labels two are right; F1 is 2/3 for "a" (1 right, 1 taken for b), 1/2 for "b" and 0 for "c"."""
    targets, predictions = ["a", "a", "b", "b"], ["a", "b", "b", "c"]
    assert metrics.accuracy(targets, predictions) == {"accuracy": 0.5}
    assert metrics.macro_f1(targets, predictions)["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert metrics.f1_of("a")(targets, predictions) == {"f1": pytest.approx(2 / 3)}
    assert metrics.f1_of("d")(targets, predictions) == {"f1": 0.0}


def test_matthews_correlation():
    """Right, wrong and blind predictions of two classes correlate by 1, -1 and 0; counts of 4, 1, 2, 3 by formula."""
    targets = ["y", "y", "n", "n"]
    other = ["n", "n", "y", "y"]
    found = [metrics.matthews(targets, p)["matthews"] for p in (targets, other, ["y"] * 4)]
    assert found == [pytest.approx(1), pytest.approx(-1), 0]
    targets, predictions = ["y"] * 5 + ["n"] * 5, ["y"] * 4 + ["n"] + ["y"] * 2 + ["n"] * 3
    expected = (4 * 3 - 2 * 1) / (6 * 5 * 5 * 4) ** 0.5
    assert metrics.matthews(targets, predictions)["matthews"] == pytest.approx(expected)


def test_a_word_without_a_tag_is_wrong():
    """Three of five words have the right tag; two were never reached."""
    assert metrics.token_accuracy([["X", "Y", "X"], ["Y", "Y"]], [["X", "Y"], ["Y"]]) == {"token_accuracy": 0.6}


def test_squad_by_hand():
    """Articles, case and punctuation don't count; the best answer does; two common words of two and three give 0.8."""
    targets = [["The Cat."], ["on the mat", "mat"], ["red cat sat"], ["dog"]]
    predictions = ["cat", "a mat!", "the red cat", "cat"]
    assert metrics.squad(targets, predictions) == {"exact_match": 0.5, "f1": pytest.approx((1 + 1 + 0.8 + 0) / 4)}


def test_retrieval_by_hand():
    """The first text finds its other half first, the second finds the first's before its own."""
    texts, pairs = np.array([[2.0, 0], [3, 1]]), np.array([[1.0, 0], [0, 1]])
    assert metrics.retrieval(texts, pairs) == {"recall_at_1": 0.5, "mrr": 0.75}
    assert metrics.retrieval(texts, np.ones((2, 2))) == {"recall_at_1": 0.0, "mrr": 0.5}  # all alike: blind


def test_each_task_has_its_scores():
    """A task is scored as its benchmark does it, or else by its form."""
    names = {
        task: [name for metric in metrics.metrics_of(task, form) for name in metric(["a", "b"], ["b", "a"])]
        for task, form in {"spam": "classification", "glue_cola": "classification", "brown_tags": "tagging"}.items()
    }
    assert names == {
        "spam": ["accuracy", "macro_f1"],
        "glue_cola": ["matthews", "accuracy"],
        "brown_tags": ["token_accuracy"],
    }
