"""A layout changes where numbers are computed, never the numbers: all layouts, on all meshes, against one device."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from data.batches import Batches, batch_shapes, open_source
from models.gshard_m4.layouts import LAYOUTS
from tests.conftest import exact
from trainers import inspection, state, step

MESHES = [(2, 4), (8, 1), (4, 2)]
STEPS = 5


def train(layout, devices) -> tuple[list[dict], dict]:
    """Metrics of the first steps in double precision, and the collectives of the compiled step."""
    e = exact(registry.tiny(registry.load("gshard_m4.quickstart"), (1, 8)))
    e = dataclasses.replace(
        e,
        layout=layout,
        # Big steps from the first on, so that an error in one of them shows in the next losses.
        optimizer=dataclasses.replace(e.optimizer, schedule=dataclasses.replace(e.optimizer.schedule, flat=1, warmup=0)),
    )
    with jax.enable_x64(True):
        p = state.plan(e, devices)
        batches = Batches(open_source(e.data, e.model, None), e.data, p.batch_sharding())
        compiled = step.compile_step(p, batch_shapes(e.data))
        current = state.create(p)
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
        for key in ("moe/load_encoder", "moe/load_decoder", "moe/dropped", "moe/experts_0", "moe/experts_2"):
            assert_allclose(got[key], want[key], rtol=1e-6, err_msg=key)  # counts, kept in float32: identical routing
        for key in ("loss", "cross_entropy", "auxiliary_loss", "gradient_norm"):
            assert_allclose(got[key], want[key], rtol=1e-9, err_msg=key)
    losses = [m["loss"] for m in found]
    assert len(set(map(float, losses))) == STEPS  # the steps do something


def test_layouts_communicate_as_they_should():
    """The equality above is not one program run many times: each layout has the collectives of its mode.

    Data parallel only reduces; fully sharded gathers weights; tensor parallel reduces activations inside layers; expert
    parallel exchanges tokens by all-to-all and gathers no expert; mixed does both in one program.
    """
    kinds = {name: {k: v["count"] for k, v in on_mesh(name, (2, 4))[1].items() if k != "expert_gathers"} for name in LAYOUTS}
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
