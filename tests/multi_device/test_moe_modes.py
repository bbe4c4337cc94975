"""Gatings, dispatches and expert layouts change where an expert's rows are multiplied, never the numbers."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import Adafactor, Constant
from models.execution import Dispatch, Execution
from models.gshard_m4.layouts import LAYOUTS
from models.parts.attention.config import GroupedQuery
from models.parts.moe.config import Capacity, ExpertChoice, ExpertsConfig, MoeConfig, Top1
from models.parts.moe.layer import Moe
from models.parts.nested import changed
from models.parts.transformer_config import BlockConfig, Dense
from models.protocol import Context
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout, LayoutError, Pipeline, rules
from models.sharding.params import stack_modules
from tests.helpers.models import varied
from trainers import state
from trainers.hlo import equality, tables
from trainers.hlo.collectives import KINDS
from trainers.hlo.equality import Trial
from trainers.plan import fresh_state, make_plan

pytestmark = pytest.mark.integration

TRAINING = dataclasses.replace(Context.evaluation(), key=jax.random.key(3), training=True)
ONE = Component(Layout(name="one", mesh=()), "decoder.moe")
BOTH = ("data", "expert")
MODEL = 16
BLOCK = BlockConfig(
    model_dim=MODEL, attention=GroupedQuery(heads=1, head_dim=2), positions=None, feed_forward=Dense(hidden_dim=32)
)
MODES = {
    "top2": MoeConfig(experts=ExpertsConfig(count=8), group_size=32, capacity=Capacity(factor=1.0)),
    "top2_dropless": MoeConfig(experts=ExpertsConfig(count=8), group_size=32, capacity=Capacity(factor=0.0)),
    "top1": MoeConfig(experts=ExpertsConfig(count=8), router=Top1(jitter=0.01), group_size=32, capacity=Capacity(factor=1.25)),
    "top1_by_gate": MoeConfig(
        experts=ExpertsConfig(count=8), router=Top1(), group_size=32, capacity=Capacity(factor=0.5, batch_priority=True)
    ),
    "expert_choice": MoeConfig(
        experts=ExpertsConfig(count=8), router=ExpertChoice(), group_size=32, capacity=Capacity(factor=2.0)
    ),
}


def on(layout: Layout) -> Component:
    return Component(layout, "decoder.moe", make_mesh(layout))


def by(dispatch: Dispatch, scope: Component) -> Component:
    return dataclasses.replace(scope, execution=Execution(dispatch=dispatch))


def layer(c: MoeConfig, scope: Component):
    """A gated mixture in double precision, x_BLM and a mask with padding."""
    block = changed(BLOCK, {"feed_forward.activation": "silu", "feed_forward.gated": True, "feed_forward.bias": True})
    module = Moe(c, block, jax.random.key(0), scope)
    rng = np.random.default_rng(0)
    x_BLM, mask_BL = jnp.array(rng.normal(size=(8, 64, MODEL))), jnp.array(rng.random((8, 64)) < 0.8)
    # Biases begin as zeros: those that are added wrongly would not show.
    return jax.tree.map(lambda w: w.astype(jnp.float64) + 0.01 * rng.normal(size=w.shape), module), x_BLM, mask_BL


def run(c: MoeConfig, scope: Component):
    """((sum of squares, (y, statistics)), gradients for weights and inputs), and the compiled program's collectives."""
    module, x_BLM, mask_BL = layer(c, scope)

    def objective(module, x_BLM):
        y_BLM, stats = module(x_BLM, mask_BL, TRAINING)
        return jnp.sum(y_BLM**2) + stats["balance_loss"].sum, (y_BLM, stats)

    step = jax.jit(jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)).lower(module, x_BLM).compile()
    (value, (y_BLM, stats)), gradients = step(module, x_BLM)
    text = step.as_text() or ""
    kinds = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}
    return (value, y_BLM, jax.tree.leaves(gradients)), stats, kinds


@functools.cache
def oracle(mode: str):
    """The paper's dispatch by einsum, on one device."""
    with jax.enable_x64(True):
        return run(MODES[mode], by("einsum", ONE))[:2]


@pytest.mark.parametrize(
    ("mode", "layout", "dispatch"),
    [
        ("top2", "expert_parallel", "einsum"),
        pytest.param("top2", "expert_parallel", "sort", marks=pytest.mark.nightly),
        ("top2", "expert_parallel", "all_to_all"),
        pytest.param("top2", "expert_parallel", "ragged", marks=pytest.mark.nightly),
        pytest.param("top2_dropless", "expert_parallel", "all_to_all", marks=pytest.mark.nightly),
        ("top2_dropless", "expert_fully_sharded", "ragged"),
        ("top1", "expert_parallel_2d", "all_to_all"),
        pytest.param("top1", "expert_tensor_parallel", "ragged", marks=pytest.mark.nightly),
        ("top1_by_gate", "expert_parallel", "sort"),
        ("expert_choice", "expert_tensor_parallel", "all_to_all"),
        pytest.param("expert_choice", "expert_parallel_2d", "ragged", marks=pytest.mark.nightly),
        ("top1", "tensor_parallel", "ragged"),
    ],
)
def test_a_layer_on_eight_devices_is_the_papers_on_one(mode, layout, dispatch, float64):
    """Values and gradients equal those of the einsum on one device to 1e-9, and the same tokens meet the same experts; tokens
    travel by all-to-all, and nothing is gathered."""
    result, stats, kinds = run(MODES[mode], by(dispatch, on(LAYOUTS[layout](2, 4))))
    want, counts = oracle(mode)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-9, atol=1e-9), result, want)
    for name in set(counts) - {"balance_loss", "router_entropy"}:
        jax.tree.map(assert_array_equal, stats[name], counts[name])
    assert kinds["all-gather"] == 0
    # Tokens, gates and outputs there and back, and their gradients; ragged rows also their number. None where experts are whole.
    assert kinds["all-to-all"] == (0 if layout == "tensor_parallel" else 7 if dispatch == "ragged" else 6)


def test_tokens_travel_in_parts(float64):
    """To the first of a device's two experts, then to the second, without another value; dropout inside experts is refused."""
    scope = on(LAYOUTS["expert_parallel"](2, 4))
    scope = dataclasses.replace(scope, execution=Execution(dispatch="all_to_all", exchange_parts=4))
    result, _, kinds = run(MODES["top2"], scope)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-9, atol=1e-9), result, oracle("top2")[0])
    assert kinds["all-to-all"] == 12 and kinds["all-gather"] == 0
    with pytest.raises(LayoutError, match=r"dropout inside experts .* which exchange_parts divides; use 1"):
        run(changed(MODES["top2"], {"experts.dropout": 0.4}), scope)


@pytest.mark.parametrize("dispatch", ["all_to_all", pytest.param("ragged", marks=pytest.mark.slow)])
def test_written_exchanges_work_inside_a_pipeline(dispatch, float64):
    """Two layers at once, each on its own stage's devices, give what each gives alone, and their gradients."""
    cut = rules(layers="stage", batch=BOTH, group=BOTH, expert="expert", act_expert="expert", expert_group="data")
    layout = Layout(
        name="stages",
        mesh=(("stage", 2), ("data", 2), ("expert", 2)),
        rules=cut,
        pipelines=(("decoder", Pipeline(microbatches=1)),),
    )
    c = MODES["top2"]
    _, x_BLM, mask_BL = layer(c, ONE)
    x_PBLM = jnp.stack([x_BLM, 2 * x_BLM])

    def both(scope: Component, spmd_axis_name):
        modules = stack_modules(lambda key: Moe(c, BLOCK, key, scope), jax.random.key(1), 2)

        def objective(modules, x_PBLM):
            one = jax.vmap(lambda module, x_BLM: module(x_BLM, mask_BL, Context.evaluation())[0], spmd_axis_name=spmd_axis_name)
            return jnp.sum(one(modules, x_PBLM) ** 2)

        value = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))
        return jax.tree.leaves(value(jax.tree.map(lambda w: w.astype(jnp.float64), modules), x_PBLM))

    jax.tree.map(
        lambda a, b: assert_allclose(a, b, rtol=1e-9, atol=1e-9),
        both(by(dispatch, on(layout)), "stage"),
        both(by(dispatch, ONE), None),
    )


def test_a_written_exchange_that_cannot_be_is_refused(float64):
    """Tokens that several experts' devices hold alike are not exchanged by an all-to-all; experts must deal out evenly."""
    c = MODES["top2"]
    layout = dataclasses.replace(
        LAYOUTS["tensor_parallel"](2, 4), rules=rules(batch="data", group="data", expert="model", act_expert="model")
    )
    with pytest.raises(LayoutError, match=r"needs 'group' cut by .* not \('data',\); dispatch 'sort' takes any"):
        run(c, by("all_to_all", on(layout)))
    with pytest.raises(LayoutError, match=r"of size 6 is not divisible by the 4 shards .* nearest that fits is 3"):
        run(changed(c, {"experts.count": 6}), by("all_to_all", on(LAYOUTS["expert_parallel"](2, 4))))


# --- whole training steps -----------------------------------------------------------------------------------------

STEPS = 3
WHOLE = {"top1": {"moe.router": Top1(jitter=0.01), "moe.capacity.factor": 1.25}, "expert_choice": {"moe.router": ExpertChoice()}}


def experiment(mode: str, dispatch: str, layout: Layout) -> Experiment:
    """Tiny, in double precision, with big steps from the first on."""
    e = equality.exact(registry.tiny(registry.load("gshard_m4.quickstart")))
    e = varied(e, dispatch=dispatch, **WHOLE[mode])
    return dataclasses.replace(e, layout=layout, optimizer=Adafactor(schedule=Constant(value=0.3)))


@functools.cache
def initial() -> state.State:
    """The state before the first step, whatever the mode."""
    first = experiment("top1", "einsum", equality.ONE_DEVICE)
    return jax.device_get(fresh_state(make_plan(first, jax.devices()[:1])))


def train(mode: str, dispatch: str, layout: Layout, devices) -> Trial:
    """The first steps."""
    with jax.enable_x64(True):
        return equality.trial(experiment(mode, dispatch, layout), STEPS, devices, initial())


@functools.cache
def on_one_device(mode: str) -> Trial:
    return train(mode, "einsum", equality.ONE_DEVICE, jax.devices()[:1])


@pytest.mark.parametrize(
    ("layout", "mode", "dispatch"),
    [
        pytest.param("expert_parallel_2d", "top1", "all_to_all", marks=pytest.mark.slow),
        pytest.param("expert_zero1", "top1", "ragged", marks=pytest.mark.nightly),
        pytest.param("expert_tensor_parallel", "expert_choice", "all_to_all", marks=pytest.mark.nightly),
    ],
)
def test_training_equals_one_device(layout, mode, dispatch):
    """Losses, parameters and routing counts of the first steps equal those of the einsum on one device, to 1e-9; tokens
    travel by all-to-all, and no experts or dispatched tokens are gathered."""
    e = experiment(mode, dispatch, LAYOUTS[layout](2, 4))
    result = train(mode, dispatch, e.layout, jax.devices())
    far = equality.differences(result, on_one_device(mode))
    assert max(far["losses"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far
    assert len({float(m["loss"]) for m in result.metrics}) == STEPS
    assert sum(c.kind == "all-to-all" for c in result.collectives) == (14 if dispatch == "ragged" else 12)
    assert tables.expert_gathers(e, result.collectives) == 0


@pytest.mark.slow
def test_only_the_encoder_lets_experts_choose():
    """Expert choice in the encoder leaves no expert idle there, and the decoder's tokens choose two."""
    metrics = on_one_device("expert_choice").metrics[0]
    assert_allclose(metrics["moe/load_encoder"], 1.0, rtol=1e-6)
    assert np.ptp(metrics["moe/load_decoder"]) > 0
