"""Adapters and quantised matrices in the layer: the same loss and gradients as the sums that they stand for; what they save."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.experiment import Experiment, Lora
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.errors import UserError
from models.parts import low_rank
from models.parts.attention.config import GroupedQuery
from models.parts.layers import dropout, project
from models.parts.low_rank import LowRank
from models.parts.transformer_config import Dense
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import with_params
from tests.helpers.runs import run, with_train
from trainers import lora
from trainers.checkpoints import checkpoint
from trainers.plan import Plan, fresh_state, make_plan
from trainers.step import compile_step, gradients
from trainers.weights import load_any

pytestmark = pytest.mark.integration


def tiny(name: str, settings: Lora, layers: int = 2, **model) -> Experiment:
    e = registry.tiny(registry.load(name))
    return with_train(
        dataclasses.replace(
            e,
            execution=dataclasses.replace(e.execution, dtype="float32"),
            model=dataclasses.replace(e.model, dropout=0.0, **({"layers": layers} if layers else {}), **model),
        ),
        finetune={"lora": settings, "init_from": ""},
        clip_norm=0.0,
    )


def with_adapters(plan: Plan) -> dict[str, jax.Array]:
    """Returns fresh parameters whose adapters are not zero."""
    flat, rng = fresh_state(plan).params, np.random.default_rng(0)
    return {
        name: jnp.asarray(rng.normal(0, 0.05, x.shape), x.dtype) if name.startswith(lora.PREFIX) else x
        for name, x in flat.items()
    }


def merged_gradients(plan: Plan, params: dict, batch: dict) -> tuple[dict, jax.Array]:
    """Returns the gradients of the adapters, and the loss, by forming every sum."""
    trained, frozen = plan.split_trained(params)

    def loss(trained):
        whole = plan.with_adapters(trained | frozen)
        return with_params(plan.model, whole).loss(batch, Context.evaluation()).value

    value, grads = jax.jit(jax.value_and_grad(loss))(trained)
    return grads, value


CASES = {
    "dense": ("gpt.smollm2_135m", Lora(rank=2, alpha=6.0, targets=("all-linear",)), 2),
    "expert": ("switch.base_8e", Lora(rank=2, alpha=6.0, targets=("wi", "router"), base="int8"), 0),
    "nf4": ("gpt.smollm2_135m", Lora(rank=2, alpha=6.0, targets=("q", "wo"), base="nf4"), 2),
    "int8": ("gpt.smollm2_135m", Lora(rank=2, alpha=6.0, targets=("o",), base="int8"), 2),
}


@pytest.mark.parametrize("case", [c if c in ("dense", "nf4") else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_adapters_in_the_layer_equal_the_sum(case):
    """Loss and gradients of every adapter are those of the model whose matrices are the sums, quantised or not; none is zero."""
    name, settings, layers = CASES[case]
    e = tiny(name, settings, layers)
    plan = make_plan(e, jax.devices()[:1])
    params = with_adapters(plan)
    batch = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())(0)
    context = Context(None, jnp.int32(0), training=False)
    grads, loss = jax.jit(lambda params, batch: gradients(plan, params, batch, context))(params, batch)
    want, value = merged_gradients(plan, params, batch)
    assert_allclose(float(loss.value), float(value), rtol=1e-5)
    assert grads.keys() == want.keys()
    for name, grad in grads.items():
        assert np.any(grad != 0), name
        assert_allclose(grad, want[name], rtol=2e-3, atol=2e-6, err_msg=name)
    if case == "expert":
        assert any("expert" in info.axes for info in plan.parameters if info.name.startswith(lora.PREFIX))


def test_dropout_is_of_what_an_adapter_reads():
    """x W + s dropout(x) A B, by the definition; its mean over draws is what there is without; W may be quantised."""
    rng = np.random.default_rng(0)
    w, a, b, x = (jnp.float32(rng.normal(size=shape)) for shape in ((2, 4, 7), (2, 4, 3), (3, 7), (2, 5, 2, 4)))
    scope, rate = Component(ONE_DEVICE), 0.25

    @jax.jit
    def product(key):
        return project(x, LowRank(w, a, b, 1.5, key=key, rate=rate), scope, 2)

    def literal(x_dropped):
        x_RM, dropped_RM, w_MO, a_MR, b_RO = (
            np.asarray(m, np.float64).reshape(-1, n) for m, n in ((x, 8), (x_dropped, 8), (w, 7), (a, 3), (b, 7))
        )
        return (x_RM @ w_MO + 1.5 * dropped_RM @ a_MR @ b_RO).reshape(2, 5, 7)

    assert_allclose(product(None), literal(x), rtol=1e-4, atol=1e-5)
    dropped = np.asarray(jax.jit(dropout, static_argnums=1)(x, rate, jax.random.key(4)))
    assert 0.1 < np.mean(dropped == 0) < 0.4
    assert_allclose(product(jax.random.key(4)), literal(dropped), rtol=1e-4, atol=1e-5)
    many = jax.jit(lambda key: jax.lax.map(product, jax.random.split(key, 4096), batch_size=256))
    means = np.mean(many(jax.random.key(5)), axis=0)
    assert_allclose(means, literal(x), atol=0.4)  # draws deviate by about 4, their mean by a 64th of that
    with pytest.raises(UserError, match=r"dropout=0\.25: a layer does more than multiply"):
        LowRank(w, a, b, 1.5, key=jax.random.key(4), rate=rate).astype(jnp.float32)


@pytest.mark.parametrize("case", ["dense", pytest.param("nf4", marks=pytest.mark.slow)])
def test_dropout_depends_on_the_step_and_ends_with_training(case):
    """Its draws are a function of the step's key and the layer; every adapter has a gradient; without a key nothing is dropped,
    and neither is it once adapters are merged."""
    name, settings, layers = CASES[case]
    plan, undropped = (
        make_plan(tiny(name, dataclasses.replace(settings, dropout=rate), layers), jax.devices()[:1]) for rate in (0.25, 0.0)
    )
    params, e = with_adapters(plan), plan.experiment
    batch = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())(0)
    computed = jax.jit(lambda key: gradients(plan, params, batch, Context(key, jnp.int32(0), training=True)))
    (grads, first), (_, again), (_, other), (plain, value) = (computed(key) for key in (*map(jax.random.key, (0, 0, 1)), None))
    assert float(first.value) == float(again.value) and len({float(loss.value) for loss in (first, other, value)}) == 3
    for name, grad in grads.items():
        assert np.all(np.any(grad != 0, axis=tuple(range(1, grad.ndim)))), name
        assert np.any(grad != plain[name]), name
    # Every layer draws by itself, and every matrix; without dropout nothing draws.
    weights = plan.in_place(params, jax.random.key(0))
    keys = [np.asarray(jax.random.key_data(w.key)) for w in weights.values() if isinstance(w, LowRank) and w.key is not None]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 7 * 2 if case == "dense" else 2 * 2
    assert all(w.key is None for w in undropped.in_place(params, jax.random.key(0)).values() if isinstance(w, LowRank))
    merged, plain_sums = (jax.jit(lambda params, p=p: p.with_adapters(params))(params) for p in (plan, undropped))
    for name, x in merged.items():
        assert_array_equal(x, plain_sums[name])


@pytest.mark.slow
def test_a_run_on_a_quantised_base_resumes_and_opens_merged(tmp_path):
    """Stopped and resumed it ends like an uninterrupted one; its frozen values keep their bits; opened, it is a plain model."""
    e = tiny("gpt.smollm2_135m", Lora(rank=2, base="nf4"))
    e = with_train(e, steps=4, checkpoint={"every": 2})
    assert run(e, tmp_path / "whole") == 0
    assert run(dataclasses.replace(e, train=dataclasses.replace(e.train, steps=2)), tmp_path / "parts") == 0
    assert run(e, tmp_path / "parts") == 0
    whole, parts = (checkpoint.read_stored(tmp_path / name)[2] for name in ("whole", "parts"))
    before = jax.device_get(fresh_state(make_plan(e, jax.devices()[:1])).params)
    codes = {name for name in whole if name.endswith(lora.VALUES)}
    assert len(codes) == 7 and all(whole[name].dtype == np.uint8 for name in codes)
    for name, x in whole.items():
        assert_array_equal(x, parts[name])
        assert np.any(x != before[name]) == name.startswith(lora.PREFIX), name
    _, weights = load_any.open_model(tmp_path / "whole")
    assert weights.shapes["decoder.attention.q"] == (2, 16, 4, 8) and not any("values" in name for name in weights.shapes)
    assert weights.read("decoder.attention.q", ()).dtype == np.float32


def test_a_quantised_base_needs_less_memory():
    """The compiled step's arguments hold the projections in about 4.5 bits a number, and no layer's matrices stay whole for the
    backward pass, with no recomputation of layers."""
    heads, dense = GroupedQuery(heads=4, head_dim=32, kv_heads=4), Dense(hidden_dim=512, activation="silu", gated=True)
    wide: dict[str, Any] = dict(layers=8, model_dim=128, attention=heads, feed_forward=dense)
    memory, matrices = {}, 8 * (4 * 128 * 128 + 3 * 128 * 512)
    for base in ("", "nf4"):
        e = tiny("gpt.smollm2_135m", Lora(rank=2, targets=("all-linear",), base=base), **wide)
        plan = make_plan(e, jax.devices()[:1])
        memory[base] = compile_step(plan).memory_analysis()
    saved = memory[""].argument_size_in_bytes - memory["nf4"].argument_size_in_bytes
    assert abs(saved - matrices * (4 - 0.5 - 4 / 64)) < 0.02 * saved
    assert memory["nf4"].temp_size_in_bytes < memory[""].temp_size_in_bytes + matrices * 4 / 4


@pytest.mark.parametrize("form, bits, error", [("nf4", 4, 0.1), ("int8", 8, 0.007)])
@pytest.mark.parametrize("shape", [(3, 128, 6), (2, 4, 64, 7)])
def test_quantised_matrices_are_near_and_small(form, bits, error, shape):
    """Normal numbers come back with the error of QLoRA's table, or of 8 bits, an odd number of outputs too; a product with the
    matrix and its gradient are those of the dequantised one, and the whole matrix has no gradient."""
    rng, contract, scope = np.random.default_rng(0), len(shape) - 2, Component(ONE_DEVICE)
    w, x = jnp.float32(rng.normal(size=shape)), jnp.float32(rng.normal(size=(2, 5, *shape[1:-1])))
    q = jax.jit(lambda w: low_rank.quantize(w, form, contract, 64))(w)
    assert q.shape == shape and q.values.size * q.values.dtype.itemsize * 8 == w.size * (8 if shape[-1] % 2 else bits)
    dequantised = jax.jit(lambda q: q.astype(jnp.float32))
    assert 0.3 * error < np.sqrt(np.mean((np.asarray(dequantised(q)) - w) ** 2)) < error
    one = jax.tree.map(lambda x: x[0], q)

    def value(x, w):
        return jnp.sum(jnp.sin(project(x, w, scope, contract)))

    want, slope = jax.jit(jax.value_and_grad(value))(x, dequantised(one))
    got, grads = jax.jit(jax.value_and_grad(value, argnums=(0, 1), allow_int=True))(x, one)
    assert_allclose(got, want, rtol=1e-5)
    assert_allclose(grads[0], slope, rtol=1e-4, atol=1e-5)
    assert not grads[1].scales.any()
