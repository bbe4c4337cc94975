"""Model FLOPs are PaLM's: (6 N + 12 L H Q T) a token, whatever a program does."""

import dataclasses
from typing import Any

import pytest

from configs import registry
from models.gshard_m4.config import GShardM4Config
from trainers.plan import make_plan
from trainers.programs.model_flops import model_flops


@pytest.mark.parametrize("name", ["bert.mlperf_480b", "gpt.palm_540b", "gpt.maxtext_22b"])
def test_a_dense_models_flops(name):
    """N are all parameters of products: no norms, nothing that is only looked up; a tied table counts for its logits."""
    e = registry.load(name)
    c: Any = e.model
    rows, length = e.data.batch_size, e.data.features()["tokens"].shape[0]
    infos = make_plan(e, abstract=True).parameters
    n = sum(i.size for i in infos if i.is_matrix and not i.name.startswith(("position", "type")))
    attention = 12 * c.layers * c.heads * c.head_dim * length
    # An encoder's logits are of masked tokens alone: a thousandth less.
    assert model_flops(e) == pytest.approx(rows * length * (6 * n + attention), rel=2e-3)


def test_a_mixtures_flops_are_those_of_its_slots():
    """Twice as many experts with half the slots each change the router alone."""
    e = registry.load("gshard_m4.moe_512e_12l")
    assert isinstance(e.model, GShardM4Config) and e.model.moe
    moe = dataclasses.replace(e.model.moe, experts=1024)
    more = dataclasses.replace(e, model=dataclasses.replace(e.model, moe=moe))
    c: Any = e.model
    router = 6 * c.model_dim * 512 * (c.layers // 2) * e.data.batch_size * 128
    assert model_flops(more) - model_flops(e) == pytest.approx(router, rel=1e-6)


def test_recomputation_is_no_model_flops():
    """What is computed twice counts once."""
    e = registry.load("gpt.maxtext_22b")
    assert model_flops(e) == model_flops(
        dataclasses.replace(e, execution=dataclasses.replace(e.execution, remat="none"))
    )
