"""A layout changes where a decoder's numbers are computed, never the numbers: all layouts, against one device."""

import dataclasses
import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from models.gpt.config import GptConfig
from models.gpt.layouts import LAYOUTS as GPT_LAYOUTS
from models.gpt.layouts import WITH_EXPERTS
from models.parts.moe.config import MoeLosses
from models.parts.nested import changed
from models.sharding.component import make_mesh
from models.sharding.layout import Layout, LayoutError, rules
from models.sharding.layouts import LAYOUTS
from tests.helpers.layouts import (
    GAVE_UP,
    STEPS,
    assert_equal_to_one_device,
    assert_same_draws,
    case_id,
    cases,
    experiment,
    initial,
    reference,
    said_by_xla,
    trial,
    without_program_cache,
)
from trainers.hlo import equality
from trainers.plan import make_plan

pytestmark = pytest.mark.integration

GPT, SPARSE = "gpt.quickstart", "gpt.moe_quickstart"
# What `make test` runs of the dense layouts: one that cuts each kind of thing. The others have the same rules in part.
KEPT = ("zero1", "two_d_sequence", "context_ring_balanced", "pipeline_interleaved")
SLOW = ("fully_sharded", "sequence_parallel", "two_d", "context_ring", "gpipe", "pipeline_1f1b")
# Every dense layout of the family, and one of each variant on a mesh that cuts everything. Mixtures are those of
# test_m4_layouts.py.
TABLE = [
    *cases(GPT, KEPT, SLOW, (name for name in GPT_LAYOUTS if name not in (*KEPT, *SLOW, *WITH_EXPERTS))),
    *cases(SPARSE, slow=("expert_fsdp", "expert_two_d"), nightly=("pipeline_with_experts", "expert_parallel", "two_d")),
    # Latent attention, dense layers before the stack, a shared expert.
    *cases("gpt.deepseek_v3", nightly=("expert_fsdp", "pipeline_with_experts")),  # with its second head, expert_fsdp is below
    # Windows in every second layer, sinks, biases of routers and experts.
    *cases("gpt.gpt_oss_20b", slow=("expert_two_d",)),
    # Layers of two kinds, in stages, and in a ring; norms of all heads together, cut by head.
    *cases("gpt.gemma3_4b", slow=("context_ring_balanced",), nightly=("pipeline_1f1b",)),
    *cases("gpt.gemma2_9b", nightly=("gpipe",)),
    *cases("gpt.smollm3_3b", nightly=("two_d",)),
    *cases("gpt.olmo2_7b", slow=("tensor_parallel",)),
    *cases("gpt.palm_8b", nightly=("two_d",)),
    # Parallel layers of two norms each; ALiBi, in a ring in zigzag order too, and a norm of the embeddings.
    *cases("gpt.pythia_6_9b", slow=("tensor_parallel",)),
    *cases("gpt.bloom_7b1", slow=("two_d",), nightly=("context_ring_balanced",)),
    *cases("gpt.gspmd_64b", nightly=("two_d", "context_ring_balanced")),
    *cases("gpt.llama2_70b", nightly=("tensor_parallel",)),
    # Two slices: gradients are summed inside each first; stages and experts are those of a slice.
    pytest.param(GPT, "2xfully_sharded", (2, 2)),
    *(
        pytest.param(
            name, layout, mesh, marks=pytest.mark.nightly if layout in ("2xgpipe", "2xexpert_parallel") else pytest.mark.slow
        )
        for name, layout, mesh in (
            (GPT, "2xzero1", (4, 1)),
            (GPT, "4xtensor_parallel", (1, 2)),
            (GPT, "2xcontext_ring_balanced", (2, 2)),
            (GPT, "2xpipeline_1f1b", (2, 2, 1)),
            (GPT, "2xgpipe", (2, 1, 2)),
            (SPARSE, "2xexpert_parallel", (2, 2)),
            (SPARSE, "2xexpert_parallel_2d", (2, 2)),
        )
    ),
    # Rows say how much each token counts: microbatches and devices have different sums.
    pytest.param("lamda.smollm2_chat", "pipeline_1f1b", (4, 2, 1), marks=pytest.mark.slow),
    # Adapters beside their matrices, and pairs of answers whose loss is complete in a row.
    pytest.param("chat.smollm2_dpo", "pipeline_1f1b", (4, 2, 1), marks=pytest.mark.slow),
    *cases("chat.smollm2_dpo", slow=("two_d",), nightly=("context_ring_balanced",)),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)


@pytest.mark.parametrize(
    "length", [0, pytest.param(264, marks=pytest.mark.slow)]
)  # which one device takes in blocks of 66 positions
def test_what_is_drawn_does_not_depend_on_the_layout(length):
    """With dropout, and Adafactor's factored statistics, losses are still those of one device: a layout changes no draw, unless
    it says so (rings, zigzag order, pipelines)."""
    assert_same_draws(GPT, "context_gathered", length)


@st.composite
def valid_layouts(draw) -> Layout:
    """Meshes of eight devices with rules at random, which no tensor forbids: each size is divided by its mesh axes, and names
    that stand in one tensor, embed or batch beside another, have different ones."""
    e = experiment(GPT)
    c: GptConfig = e.model  # pyright: ignore[reportAssignmentType]
    mesh = dict(zip("abc", draw(st.sampled_from([(8, 1, 1), (4, 2, 1), (2, 2, 2), (2, 1, 4)])), strict=True))
    sizes = {"embed": c.model_dim, "mlp": c.feed_forward.hidden_dim, "heads": c.attention.heads, "vocab": c.vocab}
    chosen: dict[str, tuple[str, ...]] = {}

    def choose(name: str, size: int, beside: str = "") -> None:
        free = [axis for axis in mesh if axis not in chosen.get(beside, ())]
        sets = [axes for n in range(len(free) + 1) for axes in itertools.permutations(free, n)]
        chosen[name] = draw(st.sampled_from([axes for axes in sets if size % math.prod(mesh[a] for a in axes) == 0]))

    choose("batch", e.data.batch_size)
    choose("embed", sizes["embed"])
    for name, size in sizes.items():
        choose(f"act_{name}", size, beside="batch")
        if name != "embed":
            choose(name, size, beside="embed")
    return Layout(name="drawn", mesh=tuple(mesh.items()), rules=rules(**chosen))


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layout=valid_layouts())
def test_any_valid_layout_gives_the_numbers_of_one_device(layout):
    """Whatever rules are drawn that no tensor forbids, others at every run: none is refused, and losses, gradients and parameters
    are those of one device."""
    e = dataclasses.replace(experiment(GPT), layout=layout)
    with jax.enable_x64(True):
        result = equality.trial(e, STEPS, jax.devices(), initial(GPT))
    far = equality.differences(result, reference(GPT))
    assert max(far.values()) < 1e-9, far


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    [("gpt.llama2_70b", "two_d_sequence"), ("gpt.llama2_70b", "context_ring_balanced"), ("gpt.deepseek_v3", "expert_fsdp")],
)
def test_a_second_prediction_head_is_that_of_one_device(name, layout):
    """Under layouts that cut its projection, its positions, which may lie in another order, and its experts."""
    e = experiment(name)
    e = dataclasses.replace(e, model=changed(e.model, {"output.mtp": 0.3}))
    with jax.enable_x64(True):
        start = equality.start(e)
        there = equality.reference(e, STEPS, start)
        result = equality.trial(dataclasses.replace(e, layout=GPT_LAYOUTS[layout](2, 4)), STEPS, jax.devices(), start)
    far = equality.differences(result, there)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far


@pytest.mark.slow
def test_a_pooled_balance_loss_is_that_of_the_whole_batch():
    """Released mixtures' balance loss compares all layers' tokens: GPipe, which adds up what it is made of, has the numbers of
    one device, and 1F1B, which would have a microbatch's, refuses."""
    e = experiment(SPARSE)
    assert isinstance(e.model, GptConfig) and e.model.moe
    losses = MoeLosses(balance="pooled", balance_weight=1.0)
    e = dataclasses.replace(e, model=changed(e.model, {"moe.losses": losses}))
    with jax.enable_x64(True):
        start = equality.start(e)
        want = equality.reference(e, STEPS, start)
        layouts = {name: GPT_LAYOUTS[name](2, 2, 2) for name in ("gpipe", "pipeline_1f1b")}
        result = equality.trial(dataclasses.replace(e, layout=layouts["gpipe"]), STEPS, jax.devices(), start)
    far = equality.differences(result, want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9, far
    with pytest.raises(LayoutError, match="compares rows of a batch with each other"):
        make_plan(dataclasses.replace(e, layout=layouts["pipeline_1f1b"]), jax.devices())


def test_giving_up_would_be_noticed():
    """A resharding for which XLA has nothing but a full copy makes it say so, where the tests above look."""
    mesh = make_mesh(LAYOUTS["data_parallel"](2, 4))

    def cut(x, *axes):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    def bad(x):
        return cut(jnp.sort(cut(x, "data", None, "model"), axis=2), None, ("model", "data"), None)

    with without_program_cache(), said_by_xla() as said:
        jax.jit(bad).lower(jax.ShapeDtypeStruct((8, 8, 16), jnp.float32)).compile()
        assert GAVE_UP in said()


def test_dense_layouts_communicate_as_they_should():
    """The equality above is not one program run many times: data parallel only reduces, over all devices; ZeRO gathers what it
    updated; fully sharded gathers weights; tensor parallel reduces activations inside layers."""
    collectives = {
        name: trial(GPT, name, (2, 4)).collectives for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel")
    }
    kinds = {name: Counter(c.kind for c in sent) for name, sent in collectives.items()}
    assert set(kinds["data_parallel"]) == {"all-reduce"}
    assert {c.axes for c in collectives["data_parallel"]} == {("data", "model")}
    assert kinds["zero1"]["all-gather"] > 0
    assert kinds["fully_sharded"]["all-gather"] > 5
    assert kinds["tensor_parallel"]["all-reduce"] > kinds["data_parallel"]["all-reduce"]
    assert ("model",) in {c.axes for c in collectives["tensor_parallel"]}


@pytest.mark.slow
def test_positions_travel_as_they_should():
    """A sequence-sharded residual stream is gathered where sub-layers want it whole, and a whole one never is; with positions
    cut, keys and values are gathered, or in a ring travel by piece, in zigzag order by half a piece."""

    def shapes(name: str, layout: str, kind: str) -> Counter:
        collectives = trial(name, layout, (2, 4)).collectives
        return Counter(shape.dims for c in collectives if c.kind == kind for shape in c.shapes)

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
