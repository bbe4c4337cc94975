"""Scores of labelled text: classes are scored from a confusion matrix, answers from their texts. NumPy only.

A confusion matrix has counts [true class, predicted class]. Scores are shares from 0 to 1, Matthews' correlation is from -1 to 1.
"""

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

# GLUE scores these by the F1 of one class, equivalent and duplicate, and CoLA by Matthews' correlation (arXiv 1804.07461).
_F1_CLASS = {"glue_mrpc": 1, "glue_qqp": 1}
_BY_MATTHEWS = ("glue_cola",)
MEANINGS = {
    "majority": "the accuracy of always naming the most frequent class",
    "macro_f1": "the mean over classes of F1, the harmonic mean of precision and recall",
    "f1": "of the positive class; of an answer, over the words that it shares with the nearest reference",
    "matthews": "the correlation of predicted with true classes, -1 to 1; 0 is chance",
    "exact_match": "the share of answers that are a reference but for case, articles and punctuation",
    "pearson": "the correlation of predicted with true values, -1 to 1",
    "spearman": "the correlation of their ranks, -1 to 1",
    "invalid": "the share of outputs that are no label",
}
"""Explains these scores (data.task.Task.meanings)."""


def scores_of(task: str, confusion: np.ndarray) -> dict[str, float]:
    """Returns the scores of a task's classes by name, beside the accuracy, which needs no confusion matrix.

    Args:
      task: a key of `data.labelled.sources.TASKS`; GLUE's tasks have scores of their own.
      confusion: [C, C], or [C, C + 1] with a last column of predictions that are no class, for tasks of more than two.

    Returns:
      `macro_f1`, and `majority`, the accuracy of always naming the most frequent class; `f1` of MRPC and QQP, `matthews` of
      CoLA.
    """
    true = confusion.sum(axis=1)
    scores = {"macro_f1": macro_f1(confusion), "majority": float(true.max() / max(true.sum(), 1))}
    if task in _F1_CLASS:
        scores["f1"] = float(_class_f1(confusion)[_F1_CLASS[task]])
    if task in _BY_MATTHEWS:
        scores["matthews"] = matthews(confusion)
    return scores


def confusion_of(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> np.ndarray:
    """Returns the counts [C, C] of pairs of labels; the classes are those that occur, in the order of their text."""
    classes = {label: n for n, label in enumerate(sorted({*targets, *predictions}, key=str))}
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    for target, prediction in zip(targets, predictions, strict=True):
        confusion[classes[target], classes[prediction]] += 1
    return confusion


def accuracy(confusion: np.ndarray) -> float:
    """Returns the share of predictions that are right."""
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def macro_f1(confusion: np.ndarray) -> float:
    """Returns the mean of the classes' F1, over the classes that occur among targets or predictions.

    That is scikit-learn's `f1_score(average="macro")` without `labels`. A class that is predicted and never true counts with
    an F1 of 0; one that occurs on neither side does not count.

    Args:
      confusion: [C, C], or [C, D] where the columns from C on count predictions that are no class.
    """
    occurs = _occurrences(confusion) > 0
    return float(_class_f1(confusion)[occurs].mean()) if occurs.any() else 0.0


def _class_f1(confusion: np.ndarray) -> np.ndarray:
    """Returns the F1 [C] of each class: 2 TP / (2 TP + FP + FN), or 0 where the class does not occur."""
    return 2 * np.diag(confusion) / np.maximum(_occurrences(confusion), 1)


def _occurrences(confusion: np.ndarray) -> np.ndarray:
    """Returns how often each class [C] is true plus how often it is predicted."""
    return confusion.sum(axis=1) + confusion.sum(axis=0)[: len(confusion)]


def matthews(confusion: np.ndarray) -> float:
    """Returns Matthews' correlation of two classes from counts [2, 2]; 0 where targets or predictions are all alike."""
    (tn, fp), (fn, tp) = confusion.astype(np.float64)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return float((tp * tn - fp * fn) / np.sqrt(product)) if product else 0.0


def correlations(confusion: np.ndarray, values: Sequence[float]) -> dict[str, float]:
    """Returns `pearson` and `spearman`, the correlations of classes that stand for numbers; 0 where either side is constant.

    Args:
      confusion: counts [C, C], or [C, D] where the columns from C on are left out.
      values: the number that each class stands for, ascending.
    """
    counts = confusion[:, : len(values)].astype(np.float64)
    ranks = [np.cumsum(side) - (side - 1) / 2 for side in (counts.sum(axis=1), counts.sum(axis=0))]
    return {"pearson": _correlation(counts, values, values), "spearman": _correlation(counts, *ranks)}


def _correlation(counts: np.ndarray, rows: Sequence[float] | np.ndarray, columns: Sequence[float] | np.ndarray) -> float:
    """Returns the correlation of the numbers of the rows and of the columns of a table of counts."""
    shares = counts / max(counts.sum(), 1)
    x, y = np.asarray(rows, np.float64), np.asarray(columns, np.float64)
    x, y = x - shares.sum(axis=1) @ x, y - shares.sum(axis=0) @ y
    variances = (shares.sum(axis=1) @ x**2) * (shares.sum(axis=0) @ y**2)
    return float(x @ shares @ y / np.sqrt(variances)) if variances > 0 else 0.0


_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalise_answer(text: str) -> str:
    """Returns an answer in the form that SQuAD compares: lower case, without punctuation and articles, single blanks."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLE.sub(" ", text).split())


def squad(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns SQuAD v1.1's `exact_match` and `f1` of words, each for the best of a question's answers (Rajpurkar et al. 2016)."""
    exact, overlap = 0.0, 0.0
    for wanted, predicted in zip(answers, predictions, strict=True):
        wanted, predicted = [normalise_answer(answer) for answer in wanted], normalise_answer(predicted)
        exact += predicted in wanted
        overlap += max(_word_f1(answer.split(), predicted.split()) for answer in wanted)
    return {"exact_match": exact / max(len(predictions), 1), "f1": overlap / max(len(predictions), 1)}


def _word_f1(wanted: list[str], predicted: list[str]) -> float:
    common = (Counter(wanted) & Counter(predicted)).total()
    return 2 * common / (len(wanted) + len(predicted)) if common else 0.0
