"""Scores of labelled text, each a share from 0 to 1, of targets and predictions in the same order."""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

Metric = Callable[[Sequence, Sequence], dict[str, float]]


def accuracy(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """The share of predictions that are right."""
    return {"accuracy": sum(map(_equal, targets, predictions)) / len(targets)}


def macro_f1(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """The mean of the classes' F1, over those that occur among targets or predictions."""
    right = Counter(target for target, predicted in zip(targets, predictions, strict=True) if target == predicted)
    occurrences = Counter(targets) + Counter(predictions)
    return {"macro_f1": sum(2 * right[label] / count for label, count in occurrences.items()) / len(occurrences)}


def f1_of(positive: Hashable) -> Metric:
    """The metric `f1` of one class, as GLUE has it for MRPC and QQP."""

    def f1(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
        right = sum(t == p == positive for t, p in zip(targets, predictions, strict=True))
        occurrences = sum(t == positive for t in targets) + sum(p == positive for p in predictions)
        return {"f1": 2 * right / occurrences if occurrences else 0.0}

    return f1


def matthews(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """Matthews' correlation of two classes, -1 to 1, as GLUE has it for CoLA; 0 where either side is constant."""
    classes = sorted({*targets, *predictions}, key=str)
    t, p = (np.array([classes.index(label) for label in side]) for side in (targets, predictions))
    return {"matthews": float(np.corrcoef(t, p)[0, 1]) if t.std() and p.std() else 0.0}


def token_accuracy(
    targets: Sequence[Sequence[Hashable]], predictions: Sequence[Sequence[Hashable]]
) -> dict[str, float]:
    """The share of words with the right tag. Words that a prediction doesn't reach count as wrong."""
    right = sum(sum(map(_equal, tags, predicted)) for tags, predicted in zip(targets, predictions, strict=True))
    return {"token_accuracy": right / sum(map(len, targets))}


def _equal(target: Hashable, predicted: Hashable) -> bool:
    return target == predicted


_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalise_answer(text: str) -> str:
    """An answer as SQuAD compares it: lower case, without punctuation and articles, single blanks."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLE.sub(" ", text).split())


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """SQuAD v1.1's exact match and F1 of words, each to the best of a question's answers (Rajpurkar et al. 2016)."""
    exact, overlap = 0.0, 0.0
    for answers, predicted in zip(targets, predictions, strict=True):
        wanted = [normalise_answer(answer) for answer in answers]
        found = normalise_answer(predicted)
        exact += found in wanted
        overlap += max(_word_f1(answer.split(), found.split()) for answer in wanted)
    return {"exact_match": exact / len(targets), "f1": overlap / len(targets)}


def _word_f1(wanted: list[str], found: list[str]) -> float:
    common = (Counter(wanted) & Counter(found)).total()
    return 2 * common / (len(wanted) + len(found)) if common else 0.0


def retrieval(texts: np.ndarray, pairs: np.ndarray) -> dict[str, float]:
    """How well embeddings find a text's other half among all of them, by cosine.

    Args:
      texts, pairs [N, D]: embeddings; those of the same row belong together.

    Returns:
      recall_at_1, and mrr, the mean of 1 / rank. Of equal similarities the right one comes last.
    """
    a, b = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (texts, pairs))
    similarity = a @ b.T
    ranks = (similarity >= np.diag(similarity)[:, None]).sum(axis=1)
    return {"recall_at_1": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}


_CLASSIFICATION = (accuracy, macro_f1)
_OF_TASK: Mapping[str, tuple[Metric, ...]] = {
    "glue_cola": (matthews, accuracy),
    "glue_mrpc": (accuracy, f1_of("equivalent")),
    "glue_qqp": (accuracy, f1_of("duplicate")),
}
_OF_FORM: Mapping[str, tuple[Metric, ...]] = {
    "classification": _CLASSIFICATION,
    "tagging": (token_accuracy,),
    "span": (squad,),
    "pair": (),
}


def metrics_of(task: str, form: str) -> tuple[Metric, ...]:
    """What a task is scored by, on label names, tags or answers. Pairs have none of these: see `retrieval`."""
    return _OF_TASK.get(task, _OF_FORM[form])
