"""Which way metrics are better."""

import numpy as np
import pytest

from configs.registry import ConfigError
from data.labelled import metrics
from trainers.evaluation import translation
from trainers.evaluation.directions import HIGHER, LOWER, lower_is_better


def test_errors_fall_and_hits_rise():
    """The last part of a metric's name decides, wherever it was measured."""
    assert lower_is_better("eval/cross_entropy") and lower_is_better("eval/next_sentence/cross_entropy")
    assert lower_is_better("eval/perplexity") and lower_is_better("eval/bits_per_byte")
    assert not lower_is_better("eval/accuracy") and not lower_is_better("eval/next_sentence/accuracy")
    assert not lower_is_better("eval/macro_f1") and not lower_is_better("eval/stripped_bleu_low")
    assert not LOWER & HIGHER


def test_every_score_of_translations_and_classes_has_a_direction():
    """They all count what is right; "majority" is no score of a model's."""
    classes = [metrics.scores_of(task, np.eye(2)) for task in ("glue_mrpc", "glue_cola")]
    answers = metrics.squad([["yes"]], ["yes"])
    names = {*translation.score(["a b c d"], ["a b c d"]), *classes[0], *classes[1], *answers} - {"majority"}
    assert {"bleu", "f1", "matthews", "exact_match"} < names
    assert not any(map(lower_is_better, names))


@pytest.mark.parametrize("name", ["eval/examples", "eval/majority", "eval/moe/experts_1", "eval/acuracy"])
def test_a_metric_without_a_direction_is_refused(name):
    """A number of examples is no score; a new metric is not guessed at."""
    with pytest.raises(ConfigError, match=f"metric '{name}': neither more nor less of it is known to be better"):
        lower_is_better(name)
