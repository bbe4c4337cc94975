"""Tests of which way metrics are better."""

import numpy as np
import pytest

from configs import registry
from configs.registry import ConfigError
from data.kinds import task_of
from data.labelled import metrics
from data.task import Task
from data.translation import decoding
from trainers.evaluation.directions import lower_is_better
from trainers.evaluation.evaluator import legend


def task(name: str) -> Task:
    return task_of(registry.load(name).data)


def test_errors_fall_and_hits_rise():
    """The last part of a metric's name decides, wherever it was measured; a task says it of its own scores."""
    assert lower_is_better("eval/cross_entropy", {}) and lower_is_better("eval/next_sentence/cross_entropy", {})
    assert not lower_is_better("eval/accuracy", {}) and not lower_is_better("eval/next_sentence/accuracy", {})
    text, labelled, translated = (task(name).directions for name in ("gpt.quickstart", "bert.base_mnli", "gshard_m4.quickstart"))
    assert lower_is_better("eval/perplexity", text) and lower_is_better("eval/bits_per_byte", text)
    assert not lower_is_better("eval/macro_f1", labelled) and not lower_is_better("eval/stripped_bleu_low", translated)


def test_every_score_of_translations_and_classes_has_a_direction():
    """They all count what is right; "majority" is no score of a model's."""
    classes = [metrics.scores_of(name, np.eye(2)) for name in ("glue_mrpc", "glue_cola")]
    answers = metrics.squad([["yes"]], ["yes"])
    labelled = {*classes[0], *classes[1], *answers} - {"majority"}
    translated = set(decoding.score(["a b c d"], ["a b c d"]))
    assert {"f1", "matthews", "exact_match"} < labelled and "bleu" in translated
    for name, names in (("bert.base_mnli", labelled), ("gshard_m4.quickstart", translated)):
        directions = task(name).directions
        assert not any(lower_is_better(score, directions) for score in names)


@pytest.mark.parametrize("name", ["eval/examples", "eval/majority", "eval/moe/experts_1", "eval/acuracy"])
def test_a_metric_without_a_direction_is_refused(name):
    """A number of examples is no score; a new metric is not guessed at."""
    with pytest.raises(ConfigError, match=f"metric '{name}': neither more nor less of it is known to be better"):
        lower_is_better(name, task("bert.base_mnli").directions)


def test_every_score_with_a_direction_is_explained():
    """Each score of every task of the zoo has a line, but accuracy, which is known."""
    tasks = {type(made).__name__: made for made in map(task, registry.names())}
    assert len(tasks) > 10
    for made in tasks.values():
        for name in set(made.directions) - {"accuracy"}:
            assert legend({"all": {f"lead_1/{name}": 0.0}}, made.meanings), name


def test_a_legend_explains_what_is_printed():
    """Scores, parts and baselines that a report has, in the order of the task's table, and no others."""
    scores = {"all": {"csi_0.2": 1.0, "examples": 3.0}, "baselines": {"copied": {"csi_0.2": 0.5}}}
    meanings = {"cs": "no", "csi": "hits", "crps": "no", "copied": "nothing forecast"}
    assert legend(scores, meanings) == ["csi     hits", "copied  nothing forecast"]
    assert legend(scores, {}) == []
