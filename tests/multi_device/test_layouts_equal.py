"""A layout changes where numbers are computed, never the numbers: all families, all layouts, against one device."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec
from numpy.testing import assert_array_equal

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import Adafactor, Constant
from models.families import family_of
from models.gshard_m4.layouts import LAYOUTS
from models.sharding.layout import Layout, LayoutError, rules
from models.sharding.layouts import LAYOUTS as DENSE
from trainers import state
from trainers.programs import equality, tables
from trainers.programs.equality import Trial

MESH = {2: (2, 4), 3: (2, 2, 2)}  # by the number of sizes that a layout takes
STEPS = 3
GAVE_UP = "nvoluntary full rematerialization"  # XLA: a tensor is copied whole because nothing better was found
GPT, BERT, M4 = "gpt.quickstart", "bert.quickstart_pairs", "gshard_m4.quickstart"

# Every layout of every family, and one of each variant of the dense families on a mesh that cuts everything.
TABLE = [
    *(
        (e, name, MESH[len(make.axes)])
        for e in (GPT, BERT, M4)
        for name, make in family_of(registry.load(e).model).layouts.items()
    ),
    ("gpt.palm_8b", "two_d", (2, 4)),
    *(("gpt.gspmd_64b", name, (2, 4)) for name in ("two_d", "two_d_sequence", "context_ring", "context_ring_balanced")),
    ("gpt.llama2_70b", "tensor_parallel", (2, 4)),
    ("gpt.llama2_70b", "pipeline_1f1b", (4, 2, 1)),
    ("bert.base_squad", "two_d", (2, 4)),
    ("bert.base_squad", "pipeline_interleaved", (2, 1, 4)),
    ("bert.minilm_l6", "fully_sharded", (2, 4)),
    *((M4, name, (4, 2)) for name in ("expert_parallel", "expert_fully_sharded", "mixed")),
    (M4, "expert_fully_sharded", (8, 1)),
]


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


@functools.cache
def experiment(name: str) -> Experiment:
    return equality.comparable(registry.tiny(registry.load(name)))


@functools.cache
def initial(name: str) -> state.State:
    """The state before the first step, made on one device."""
    with jax.enable_x64(True):
        return equality.start(experiment(name))


@functools.cache
def reference(name: str) -> Trial:
    with jax.enable_x64(True):
        return equality.reference(experiment(name), STEPS, initial(name))


def run(e: Experiment, start: state.State) -> Trial:
    """The first steps on all devices; fails if XLA gave up on a tensor."""
    with jax.enable_x64(True), said_by_xla() as said:
        found = equality.trial(e, STEPS, jax.devices(), start)
        assert GAVE_UP not in said(), f"{e.layout.name}: {said()[:600]}"
        return found


@functools.cache
def trial(name: str, layout: str, mesh: tuple[int, ...]) -> Trial:
    e = experiment(name)
    return run(dataclasses.replace(e, layout=family_of(e.model).layouts[layout](*mesh)), initial(name))


@pytest.mark.parametrize(
    ("name", "layout", "mesh"), TABLE, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x
)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and tokens go to the same experts."""
    want = reference(name)
    far = equality.differences(trial(name, layout, mesh), want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far
    assert len({float(m["loss"]) for m in want.metrics}) == STEPS  # the steps do something


@functools.cache
def random_reference(name: str, length: int = 0) -> tuple[Experiment, state.State, Trial]:
    """An experiment with random draws, in rows of this length if given, its first state, and what it does on one device."""
    e = registry.tiny(registry.load(name))
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, dropout=0.1))
    if length:
        e = dataclasses.replace(e, data=dataclasses.replace(e.data, batch_size=2, length=length))
    e = dataclasses.replace(equality.exact(e), optimizer=Adafactor(schedule=Constant(value=0.3)))
    with jax.enable_x64(True):
        start = equality.start(e)
        return e, start, equality.reference(e, STEPS, start)


@pytest.mark.parametrize(
    ("name", "layout", "length"),
    [
        (M4, "mixed", 0),
        (M4, "sequence_parallel", 0),
        (GPT, "context_gathered", 0),
        (GPT, "context_gathered", 264),  # which one device takes in blocks of 66 positions
    ],
)
def test_what_is_drawn_does_not_depend_on_the_layout(name, layout, length):
    """With dropout and second experts dropped at random, and Adafactor's factored statistics, losses are still those of one
    device: a layout changes no draw, unless it says so (rings, zigzag order, pipelines)."""
    e, start, want = random_reference(name, length)
    with jax.enable_x64(True):
        found = run(dataclasses.replace(e, layout=family_of(e.model).layouts[layout](2, 4)), start)
    far = equality.differences(found, want)
    assert max(far["losses"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far


AXIS_SETS = [(), ("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("c", "a"), ("a", "b", "c")]


@st.composite
def drawn_layouts(draw) -> Layout:
    """Meshes of eight devices with rules at random, such that no tensor is cut twice by one mesh axis."""
    mesh = draw(st.sampled_from([(8, 1, 1), (4, 2, 1), (2, 2, 2), (2, 1, 4)]))
    chosen = {name: draw(st.sampled_from(AXIS_SETS)) for name in ("batch", "embed", "mlp", "heads", "vocab")}
    chosen |= {f"act_{name}": draw(st.sampled_from(AXIS_SETS)) for name in ("embed", "mlp", "heads", "vocab")}
    first = {"act_": "batch", "": "embed"}
    for name in [name for name in chosen if name not in first.values()]:
        other = first["act_" if name.startswith("act_") else ""]
        chosen[name] = tuple(axis for axis in chosen[name] if axis not in chosen[other])
    return Layout(name="drawn", mesh=tuple(zip("abc", mesh, strict=True)), rules=rules(**chosen))


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(layout=drawn_layouts())
def test_any_valid_layout_gives_the_numbers_of_one_device(layout):
    """Whatever rules are drawn: either the layout is refused before anything runs, or losses, gradients and parameters are
    those of one device."""
    e = dataclasses.replace(experiment(GPT), layout=layout)
    try:
        state.plan(e, jax.devices())
    except LayoutError:
        reject()
    with jax.enable_x64(True):
        far = equality.differences(equality.trial(e, STEPS, jax.devices(), initial(GPT)), reference(GPT))
    assert max(far.values()) < 1e-9, far


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
    p = state.plan(dataclasses.replace(experiment(M4), layout=LAYOUTS["fully_sharded"](2, 4)), jax.devices())
    made = state.create(p)
    jax.tree.map(assert_array_equal, jax.device_get(made.params), jax.device_get(initial(M4).params))
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(made.params))


def test_layouts_communicate_as_they_should():
    """The equality above is not one program run many times: each layout has the collectives of its mode.

    Data parallel only reduces; fully sharded gathers weights; tensor parallel reduces activations inside layers; expert
    parallel exchanges tokens by all-to-all along the experts' axis alone and gathers no expert; mixed does both in one
    program.
    """
    found = {name: trial(M4, name, (2, 4)).sent for name, make in LAYOUTS.items() if len(make.axes) == 2}
    kinds = {name: Counter(c.kind for c in sent) for name, sent in found.items()}
    exchanges = {name: {c.axes for c in sent if c.kind == "all-to-all"} for name, sent in found.items()}
    assert set(kinds["data_parallel"]) == {"all-reduce"}
    assert kinds["zero1"]["all-gather"] > 0
    assert kinds["fully_sharded"]["all-gather"] > 5
    assert kinds["tensor_parallel"]["all-reduce"] > kinds["data_parallel"]["all-reduce"]
    assert {c.axes for c in found["data_parallel"]} == {("data", "model")}
    assert ("model",) in {c.axes for c in found["tensor_parallel"]}
    assert "all-to-all" not in kinds["tensor_parallel"]
    # Two exchanges forward and two backward, in the encoder's and in the decoder's MoE layer.
    assert kinds["expert_parallel"]["all-to-all"] == 8 and exchanges["expert_parallel"] == {("expert",)}
    assert kinds["mixed"]["all-to-all"] == 4 and exchanges["mixed"] == {("model",)}
    assert kinds["mixed"]["all-reduce"] > kinds["expert_parallel"]["all-reduce"]
    assert len({tuple(sorted(k.items())) for k in kinds.values()}) == len(found)


def test_positions_travel_as_they_should():
    """A sequence-sharded residual stream is gathered where sub-layers want it whole, and a whole one never is; with positions
    cut, keys and values are gathered, or in a ring travel by piece, in zigzag order by half a piece."""

    def shapes(name: str, layout: str, kind: str) -> Counter:
        found = trial(name, layout, (2, 4)).sent
        return Counter(shape.dims for c in found if c.kind == kind for shape in c.shapes)

    residual = (8, 16, 16)  # a device's share of 16 rows of 16 positions
    dense = "gpt.gspmd_64b"
    assert shapes(GPT, "sequence_parallel", "all-gather")[residual] >= 4
    assert shapes(dense, "two_d_sequence", "all-gather")[residual] >= 4
    assert residual not in shapes(GPT, "two_d_attempt_1", "all-gather")
    assert shapes(GPT, "context_gathered", "all-gather")[8, 16, 2, 8] >= 1  # two heads of 8
    for layout, piece in (("context_ring", (1, 8, 4, 4, 8)), ("context_ring_balanced", (1, 8, 2, 4, 8))):
        assert (8, 16, 4, 8) not in shapes(dense, layout, "all-gather")
        # Keys and values forward, these and their gradients backward, each in the first step and in the loop.
        assert shapes(dense, layout, "collective-permute")[piece] >= 12
        assert not shapes(dense, layout, "all-to-all")
    assert not shapes(GPT, "fsdp_within_data", "collective-permute")


def test_routing_groups_are_not_cut():
    """Positions of an MoE layer's tokens cannot be cut: the error names the component and the rule."""
    wrong = dataclasses.replace(experiment(M4), layout=DENSE["context_ring"](2, 4))
    with pytest.raises(LayoutError, match=r"'encoder.moe', layout 'context_ring': rule 'length' -> \('model',\), but"):
        state.plan(wrong)


def test_experts_stay_where_they_are():
    """Under expert parallelism no all-gather has the size of an expert weight or of the dispatched tokens."""
    for name in ("expert_parallel", "expert_fully_sharded"):
        e = dataclasses.replace(experiment(M4), layout=LAYOUTS[name](2, 4))
        assert tables.expert_gathers(e, trial(M4, name, (2, 4)).sent) == 0
    assert not any(c.kind == "all-gather" for c in trial(M4, "expert_parallel", (2, 4)).sent)


def test_a_gathered_expert_would_be_noticed():
    """With experts cut but their tokens' buffers not, the compiler must gather the weights, and they are counted."""
    layout = LAYOUTS["expert_parallel"](2, 4)
    cut = dict(layout.rules) | dict(rules(act_expert=None, expert_group=("data", "expert")))
    e = dataclasses.replace(experiment(M4), layout=dataclasses.replace(layout, rules=tuple(cut.items())))
    assert tables.communication(e)["expert_gathers"] > 0
