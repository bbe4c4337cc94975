"""Conversations: a tiny decoder learns ratings and responses, and is scored."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from configs import registry
from configs.optimizers import AdamW, Constant
from data.lamda.config import RateAndRank
from models.sharding.params import with_params
from tests.helpers.conversations import write_dialog_cache
from tests.helpers.models import compiled
from tests.helpers.runs import run, with_train
from trainers import trainer
from trainers.evaluation.candidates import CandidatesEvaluator
from trainers.monitoring import metrics
from trainers.plan import fresh_state, make_plan

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_dialog_cache(root / "caches" / "toy", 64)
    return root


@pytest.fixture
def e(data, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = registry.tiny(registry.load("lamda.smollm2_chat"))
    return with_train(
        dataclasses.replace(
            e,
            model=dataclasses.replace(e.model, vocab=320, layers=2, model_dim=32, dropout=0.0),
            data=dataclasses.replace(e.data, cache="toy", batch_size=8, length=64),
            optimizer=AdamW(schedule=Constant(value=3e-3)),
            eval=RateAndRank(split="test", batch_size=8, responses=10, others=3, tokens=12),
        ),
        finetune={"init_from": "", "freeze": (), "freeze_layers": 0},
        steps=200,
        checkpoint={"every": 0},
        log_every=40,
    )


def test_likelihoods_are_those_of_the_whole_text(data, e):
    """A candidate that is read behind the cached prompt has the log-probabilities that it has in a pass over both."""
    plan = make_plan(e, jax.devices()[:1])
    params, folder = fresh_state(plan).params, data / "caches" / "toy"
    evaluator = CandidatesEvaluator(plan.model, e, folder, folder)
    ranks = evaluator.sets[1]
    prompt, candidates, scores = ranks.prompts[0], ranks.candidates[0], evaluator.log_probabilities(params, ranks)[0]
    model = with_params(plan.model, params)
    for ids, logp in zip(candidates, scores, strict=True):
        whole = np.array([*prompt, *ids])
        batch = {"tokens": whole, "segments": np.ones_like(whole), "positions": np.arange(len(whole))}
        arrays = {k: np.pad(x, (0, 64 - len(x)))[None].astype(np.int32) for k, x in batch.items()}
        wanted = log_softmax(np.asarray(compiled(model, arrays))[0], axis=-1)[np.arange(len(prompt) - 1, len(whole) - 1), ids]
        np.testing.assert_allclose(logp, wanted, atol=1e-5)


@pytest.mark.slow
def test_ratings_are_learned(e, tmp_path):
    """The first word of the last turn decides about the rating: after 120 steps the model orders nearly all pairs."""
    assert run(e, tmp_path / "run") == trainer.DONE
    last = metrics.read(tmp_path / "run")[-1]
    assert min(last[f"eval/auc_{name}"] for name in ("witty", "upbeat", "interesting")) > 0.9
    assert last["eval/perplexity"] == pytest.approx(math.exp(last["eval/cross_entropy"]), rel=1e-5)
    assert 0.25 <= last["eval/reciprocal_rank"] <= 1 and last["eval/examples"] == 20
