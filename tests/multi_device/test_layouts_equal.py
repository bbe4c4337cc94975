"""A layout changes where numbers are computed, never the numbers: all layouts, on all meshes, against one device."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.schema import Experiment
from data.batches import Batches, batch_shapes, open_source
from models.gshard_m4.layouts import LAYOUTS
from tests.conftest import exact
from trainers import inspection, state, step

MESHES = [(2, 4), (8, 1), (4, 2)]
STEPS = 5
COUNTS = ("moe/load_encoder", "moe/load_decoder", "moe/dropped", "moe/experts_0", "moe/experts_2")
LOSSES = ("loss", "cross_entropy", "auxiliary_loss", "gradient_norm")


def experiment(layout) -> Experiment:
    """Tiny, in double precision, with big steps from the first on: an error in one shows in the next losses."""
    e = exact(registry.tiny(registry.load("gshard_m4.quickstart")))
    schedule = dataclasses.replace(e.optimizer.schedule, flat=1, warmup=0)
    return dataclasses.replace(e, layout=layout, optimizer=dataclasses.replace(e.optimizer, schedule=schedule))


@functools.cache
def initial() -> state.State:
    """The state before the first step, on one device."""
    return state.create(state.plan(experiment(LAYOUTS["data_parallel"](1, 1)), jax.devices()[:1]))


def train(layout, devices) -> tuple[list[dict], dict]:
    """Metrics of the first steps, and the collectives of the compiled step."""
    e = experiment(layout)
    with jax.enable_x64(True):
        p = state.plan(e, devices)
        batches = Batches(open_source(e.data, e.model, None), e.data, p.batch_sharding())
        compiled = step.compile_step(p, batch_shapes(e.data))
        current = jax.device_put(jax.device_get(initial()), p.shardings)
        found = []
        for i in range(STEPS):
            current, metrics = compiled(current, batches(i))
            found.append(jax.tree.map(np.asarray, metrics))
        batches.close()
        return found, inspection.count_collectives(compiled.as_text(), p)


@functools.cache
def reference() -> list[dict]:
    return train(LAYOUTS["data_parallel"](1, 1), jax.devices()[:1])[0]


@functools.cache
def on_mesh(name: str, mesh: tuple[int, int]) -> tuple[list[dict], dict]:
    return train(LAYOUTS[name](*mesh), jax.devices())


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: f"{m[0]}x{m[1]}")
@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_equal_one_device(name, mesh):
    """The first five losses, gradient norms and routing counts equal those of one device to 1e-9."""
    found, _ = on_mesh(name, mesh)
    for got, want in zip(found, reference(), strict=True):
        for key in COUNTS:  # kept in float32: equal counts are identical routing
            assert_allclose(got[key], want[key], rtol=1e-6, err_msg=key)
        for key in LOSSES:
            assert_allclose(got[key], want[key], rtol=1e-9, err_msg=key)
    losses = [float(m["loss"]) for m in found]
    assert len(set(losses)) == STEPS  # the steps do something


def test_initial_weights_depend_on_the_seed_alone(float64):
    """Made on eight devices under a layout that cuts them, weights have the bits that one device gives them."""
    p = state.plan(experiment(LAYOUTS["fully_sharded"](2, 4)), jax.devices())
    made = state.create(p)
    jax.tree.map(assert_array_equal, jax.device_get(made.params), jax.device_get(initial().params))
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(made.params))


def test_layouts_communicate_as_they_should():
    """The equality above is not one program run many times: each layout has the collectives of its mode.

    Data parallel only reduces; fully sharded gathers weights; tensor parallel reduces activations inside layers; expert
    parallel exchanges tokens by all-to-all and gathers no expert; mixed does both in one program.
    """
    kinds = {}
    for name in LAYOUTS:
        found = on_mesh(name, (2, 4))[1]
        kinds[name] = {k: v["count"] for k, v in found.items() if k != "expert_gathers"}
    assert set(kinds["data_parallel"]) == {"all-reduce"}
    assert kinds["zero1"]["all-gather"] > 0
    assert kinds["fully_sharded"]["all-gather"] > 5
    assert kinds["tensor_parallel"]["all-reduce"] > kinds["data_parallel"]["all-reduce"]
    assert "all-to-all" not in kinds["tensor_parallel"]
    # Two exchanges forward and two backward, in the encoder's and in the decoder's MoE layer.
    assert kinds["expert_parallel"]["all-to-all"] == 8
    assert kinds["mixed"]["all-to-all"] == 4
    assert kinds["mixed"]["all-reduce"] > kinds["expert_parallel"]["all-reduce"]
    assert len({tuple(sorted(k.items())) for k in kinds.values()}) == len(LAYOUTS)


def test_experts_stay_where_they_are():
    """Under expert parallelism no all-gather has the size of an expert weight or of the dispatched tokens."""
    for name in ("expert_parallel", "expert_fully_sharded"):
        assert on_mesh(name, (2, 4))[1]["expert_gathers"] == 0
    assert "all-gather" not in on_mesh("expert_parallel", (2, 4))[1]
