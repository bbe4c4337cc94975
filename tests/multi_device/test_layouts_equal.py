"""A layout changes where numbers are computed, never the numbers: all layouts, on all meshes, against one device."""

import contextlib
import dataclasses
import functools
import os
import tempfile

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.schema import Adafactor, Constant, Experiment
from models.common.layouts import LAYOUTS as DENSE_LAYOUTS
from models.gshard_m4.layouts import LAYOUTS
from trainers import inspection, state

MESHES = [(2, 4), (8, 1), (4, 2)]
STEPS = 5
COUNTS = ("moe/load_encoder", "moe/load_decoder", "moe/dropped", "moe/experts_0", "moe/experts_2")
GAVE_UP = "nvoluntary full rematerialization"  # XLA: a tensor is copied whole because nothing better was found
LOSSES = ("loss", "cross_entropy", "auxiliary_loss", "gradient_norm")


@pytest.fixture(autouse=True, scope="module")
def no_program_cache():
    """Programs are really compiled here: one that is read from a cache can't warn."""
    for enabled in (False, True):
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # JAX decides once, at the first program, whether there is a cache
        if not enabled:
            yield


@contextlib.contextmanager
def said_by_xla():
    """Yields a function that returns what was written to the process's standard error inside the block."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def text() -> str:
            return os.pread(file.fileno(), 1 << 20, 0).decode()

        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)


M4 = "gshard_m4.quickstart"
ELSEWHERE = {  # in test_sequence_layouts.py
    "sequence_parallel", "two_d_sequence", "two_d_attempt_1", "fsdp_within_data", "context_gathered", "context_ring",
    "context_ring_balanced",
}  # fmt: skip
M4_LAYOUTS = [name for name in LAYOUTS if name not in ELSEWHERE]
# One of each variant of the dense families, on the one mesh that cuts everything.
DENSE = [
    *(("gpt.quickstart", name) for name in DENSE_LAYOUTS if name not in ELSEWHERE),
    *(("bert.quickstart_pairs", name) for name in DENSE_LAYOUTS if name not in ELSEWHERE),
    ("gpt.palm_8b", "two_d"),
    ("gpt.gspmd_64b", "two_d"),
    ("gpt.llama2_70b", "tensor_parallel"),
    ("bert.base_squad", "two_d"),
    ("bert.minilm_l6", "fully_sharded"),
]


def experiment(name: str, layout, **fields) -> Experiment:
    """Tiny, in double precision, with big steps from the first on: an error in one shows in the next losses."""
    e = inspection.exact(registry.tiny(registry.load(name)))
    model = dataclasses.replace(e.model, **fields)
    return dataclasses.replace(e, model=model, layout=layout, optimizer=Adafactor(schedule=Constant(value=0.3)))


@functools.cache
def initial(name: str) -> state.State:
    """The state before the first step, on one device."""
    return state.create(state.plan(experiment(name, LAYOUTS["data_parallel"](1, 1)), jax.devices()[:1]))


def train(name: str, layout, devices, steps: int = STEPS, **fields) -> tuple[list[dict], dict]:
    """Metrics of the first steps, and the collectives of the compiled step; fails if XLA gave up on a tensor."""
    with jax.enable_x64(True), said_by_xla() as said:
        found = inspection.trial(experiment(name, layout, **fields), steps, devices, jax.device_get(initial(name)))
        assert GAVE_UP not in said(), f"{layout.name}: {said()[:600]}"
        return found


@functools.cache
def reference(name: str = M4) -> list[dict]:
    return train(name, LAYOUTS["data_parallel"](1, 1), jax.devices()[:1])[0]


@functools.cache
def on_mesh(name: str, mesh: tuple[int, int]) -> tuple[list[dict], dict]:
    return train(M4, LAYOUTS[name](*mesh), jax.devices())


@pytest.mark.parametrize(("name", "layout"), DENSE)
def test_dense_losses_equal_one_device(name, layout):
    """The first losses and gradient norms of decoders and encoders under every layout equal those of one device to 1e-9."""
    found, collectives = train(name, DENSE_LAYOUTS[layout](2, 4), jax.devices(), steps=3)
    for got, want in zip(found, reference(name), strict=False):
        for key in LOSSES:
            assert_allclose(got[key], want[key], rtol=1e-9, err_msg=f"{key} of {name} under {layout}")
    assert ("all-gather" in collectives) == (layout != "data_parallel")


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: f"{m[0]}x{m[1]}")
@pytest.mark.parametrize("name", M4_LAYOUTS)
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


def test_giving_up_would_be_noticed():
    """A resharding for which XLA has nothing but a full copy makes it say so, where the tests above look."""
    mesh = state.make_mesh(LAYOUTS["data_parallel"](2, 4))

    def cut(x, *axes):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    def bad(x):
        return cut(jnp.sort(cut(x, "data", None, "model"), axis=2), None, ("model", "data"), None)

    with said_by_xla() as said:
        jax.jit(bad).lower(jax.ShapeDtypeStruct((8, 8, 16), jnp.float32)).compile()
        assert GAVE_UP in said()


def test_initial_weights_depend_on_the_seed_alone(float64):
    """Made on eight devices under a layout that cuts them, weights have the bits that one device gives them."""
    p = state.plan(experiment(M4, LAYOUTS["fully_sharded"](2, 4)), jax.devices())
    made = state.create(p)
    jax.tree.map(assert_array_equal, jax.device_get(made.params), jax.device_get(initial(M4).params))
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(made.params))


def test_layouts_communicate_as_they_should():
    """The equality above is not one program run many times: each layout has the collectives of its mode.

    Data parallel only reduces; fully sharded gathers weights; tensor parallel reduces activations inside layers; expert
    parallel exchanges tokens by all-to-all and gathers no expert; mixed does both in one program.
    """
    kinds = {}
    for name in M4_LAYOUTS:
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
    assert len({tuple(sorted(k.items())) for k in kinds.values()}) == len(kinds)


def test_experts_stay_where_they_are():
    """Under expert parallelism no all-gather has the size of an expert weight or of the dispatched tokens."""
    for name in ("expert_parallel", "expert_fully_sharded"):
        assert on_mesh(name, (2, 4))[1]["expert_gathers"] == 0
    assert "all-gather" not in on_mesh("expert_parallel", (2, 4))[1]
