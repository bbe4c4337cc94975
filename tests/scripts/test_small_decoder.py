"""The small decoder of claims about experts: equal FLOPs a token, and figures of runs."""

import math
from typing import Any

import pytest

from scripts.reproductions import small_decoder, training
from trainers.hlo.model_flops import model_flops

LAYERS, DIM = 2, 64


@pytest.mark.parametrize("moe", [small_decoder.top2(8), small_decoder.top2(32), small_decoder.top1(8), small_decoder.top1(128)])
def test_mixtures_have_the_flops_of_the_dense_model_and_a_router(moe):
    """All arms cost the same, whatever the number of experts: otherwise a mixture would be a larger model."""
    dense, sparse = (small_decoder.arm("", each).experiment for each in (None, moe))
    router = 6 * small_decoder.TOKENS * LAYERS * DIM * moe.experts.count
    assert model_flops(sparse) - model_flops(dense) == router


def test_arms_differ_by_the_mixture_alone():
    """Data, optimizer, schedule and steps are those of the dense arm, and the schedule ends with the run."""
    dense, sparse = (small_decoder.arm("", each, steps=400).experiment for each in (None, small_decoder.top2(8)))
    assert (dense.data, dense.optimizer, dense.train, dense.eval) == (sparse.data, sparse.optimizer, sparse.train, sparse.eval)
    schedule: Any = dense.optimizer.schedule
    assert (schedule.steps, schedule.warmup, dense.train.steps, dense.train.eval_every) == (400, 20, 400, 50)


def _run(tmp_path, *losses: float) -> training.Run:
    """Returns a run with these held-out losses after 100, 200 ... steps, and a training loss a hundredth below."""
    lines = [{"step": 100 * n, "eval/cross_entropy": loss, "cross_entropy": loss - 0.01} for n, loss in enumerate(losses, 1)]
    return training.Run(tmp_path, False, lines)


def test_the_share_of_steps_is_of_the_dense_models(tmp_path):
    """A run that reaches the dense model's last loss half-way between two evaluations is placed there; one that never does counts
    as all steps, and the row says so."""
    dense = [_run(tmp_path, 5.0, 4.0, 3.0, 2.0)] * 2
    runs = [_run(tmp_path, 4.0, 1.0, 1.0, 1.0), _run(tmp_path, 5.0, 4.0, 3.0, 2.5)]
    row = small_decoder.share_of_steps("share", runs, dense, "below 0", "why")
    reached = 100 + 100 * (4 - 2) / (4 - 1)
    assert row.ours == pytest.approx(((reached / 400 - 1) + 0) / 2)
    assert "1 of 2 seeds never" in row.differs and row.differs.endswith("why") and row.comes_out is False


def test_claims_are_of_training_and_of_held_out_loss(tmp_path):
    """Both differences are taken seed by seed, and both must be below zero by their own error."""
    better = [_run(tmp_path, 3.0, loss) for loss in (1.0, 1.1, 1.2)]
    other = [_run(tmp_path, 3.0, loss + 0.5) for loss in (1.0, 1.1, 1.2)]
    rows = small_decoder.claims("8 less 1", better, other, "below 0", "")
    assert [row.label for row in rows] == ["8 less 1, training", "8 less 1, held-out"]
    assert all(row.comes_out and row.ours == pytest.approx(-0.5) for row in rows)


def test_a_note_on_routers_counts_tokens_of_an_expert(tmp_path):
    """400 steps of 2,048 tokens with two choices are 205 thousand for each of 8 experts."""
    lines = [{"step": 400, "eval/cross_entropy": 2.0, "moe/router_entropy": math.log(4), "moe/dropped": 0.125}]
    note = small_decoder.routers([training.Run(tmp_path, False, lines)], small_decoder.top2(8))
    assert note == "router entropy 1.39 of 2.08 nats, 12.5% of choices dropped, 205 thousand tokens an expert"
