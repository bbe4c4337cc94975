"""Products in 8 bits, forward and backward, and models that compute with them."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.experiment import Experiment
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.execution import Execution
from models.parts import eight_bits
from models.parts.layers import project
from models.parts.moe.dispatch import Experts, in_experts
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import scan
from tests.helpers.models import varied
from trainers.hlo.model_flops import loss, model_flops, objective
from trainers.plan import fresh_state, make_plan

LARGEST = {jnp.int8: 127, jnp.float8_e4m3fn: 448, jnp.float8_e5m2: 448}
# Of the factors of the forward pass, and of gradients.
FORMS: dict[eight_bits.Form, tuple[Any, Any]] = {"int8": (jnp.int8, jnp.int8), "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2)}
forms = pytest.mark.parametrize("form", FORMS)


def rounded(x: np.ndarray, axis: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """(numbers that 8 bits can hold, scales) of the vectors along an axis: the largest number of each is the form's."""
    scale = np.abs(x).max(axis, keepdims=True) / LARGEST[dtype]
    return (np.round(x / scale) if dtype == jnp.int8 else x / scale).astype(dtype).astype(float), scale


def rounding(x: np.ndarray, axis: int, dtype: Any) -> np.ndarray:
    """The most by which rounding changes the numbers of vectors along an axis: half of the distance to the next number."""
    scale = np.abs(x).max(axis, keepdims=True) / LARGEST[dtype]
    if dtype == jnp.int8:
        return 0.5 * scale * np.ones_like(x)
    f = jnp.finfo(dtype)
    return np.maximum(np.abs(x) * float(f.eps), scale * float(f.smallest_subnormal)) / 2


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


@forms
def test_a_product_and_its_gradients_are_those_of_rounded_numbers(form):
    """x has a scale for each row and w one for each column; in the backward pass the gradient takes over the scale of the factor
    that it is multiplied with, and then has one for each row of dx and each column of dw."""
    x, w, dy = drawn((5, 16), (16, 3), (5, 3))
    with jax.enable_x64(True):
        y, back = jax.vjp(lambda x, w: eight_bits.product(x, w, form), jnp.asarray(x), jnp.asarray(w))
        dx, dw = back(jnp.asarray(dy))

    forward, backward = FORMS[form]
    x_8, s_R1 = rounded(x, 1, forward)
    w_8, t_1O = rounded(w, 0, forward)
    assert_allclose(y, s_R1 * t_1O * (x_8 @ w_8), rtol=1e-14)
    d_8, u_R1 = rounded(dy * t_1O, 1, backward)
    assert_allclose(dx, u_R1 * (d_8 @ w_8.T), rtol=1e-14)
    e_8, v_1O = rounded(dy * s_R1, 0, backward)
    assert_allclose(dw, v_1O * (x_8.T @ e_8), rtol=1e-14)
    assert np.abs(y - x @ w).max() > 0.001


@forms
def test_a_product_and_its_gradients_are_as_near_to_those_of_single_precision_as_the_form_can_be(form):
    """No number is off by more than half of the distance to the form's next one, and products by what that makes of them."""
    x, w, dy = drawn((33, 64), (64, 17), (33, 17))
    y, back = jax.vjp(lambda x, w: eight_bits.product(x, w, form), jnp.float32(x), jnp.float32(w))
    dx, dw = back(jnp.float32(dy))
    forward, backward = FORMS[form]
    x_off, w_off = rounding(x, 1, forward), rounding(w, 0, forward)
    s_R1, t_1O = (np.abs(a).max(axis, keepdims=True) / LARGEST[forward] for a, axis in ((x, 1), (w, 0)))
    d_off, e_off = rounding(dy * t_1O, 1, backward) / t_1O, rounding(dy * s_R1, 0, backward) / s_R1

    def most(a: np.ndarray, a_off: np.ndarray, b: np.ndarray, b_off: np.ndarray) -> np.ndarray:
        return (np.abs(a) + a_off) @ (np.abs(b) + b_off) - np.abs(a) @ np.abs(b) + 1e-5

    assert (np.abs(y - x @ w) <= most(x, x_off, w, w_off)).all()
    assert (np.abs(dx - dy @ w.T) <= most(dy, d_off, w.T, w_off.T)).all()
    assert (np.abs(dw - x.T @ dy) <= most(x.T, x_off.T, dy, e_off)).all()


@forms
def test_small_gradients_are_rounded_like_large_ones(form):
    """A loss over millions of tokens has them: a power of two in the gradient is the same power in what comes of it."""
    x, w, dy = (jnp.float32(a) for a in drawn((5, 16), (16, 3), (5, 3)))
    _, back = jax.vjp(lambda x, w: eight_bits.product(x, w, form), x, w)
    for large, small in zip(back(dy), back(dy * 2.0**-40), strict=True):
        assert_array_equal(small * 2.0**40, large)


@forms
def test_dimensions_may_be_several_and_empty_rows_are_zero(form):
    """Inputs and outputs of several dimensions are those of the merged matrices, value for value; a row of zeros, as an empty
    slot of an expert, has no scale and gives zeros."""
    x, w, dy = drawn((2, 3, 4, 2), (4, 2, 3, 2), (2, 3, 3, 2))
    x[1, 2] = 0
    y, back = jax.vjp(lambda x, w: eight_bits.product(x, w, form, 2), jnp.float32(x), jnp.float32(w))
    merged = jnp.float32(x.reshape(6, 8)), jnp.float32(w.reshape(8, 6))
    y_RO, back_merged = jax.vjp(lambda x, w: eight_bits.product(x, w, form), *merged)
    assert_array_equal(y, y_RO.reshape(dy.shape))
    for a, b in zip(back(jnp.float32(dy)), back_merged(jnp.float32(dy.reshape(6, 6))), strict=True):
        assert_array_equal(a.reshape(b.shape), b)
    assert_array_equal(y[1, 2], 0)


@forms
def test_bfloat16_is_rounded_once_by_scales_of_more_digits(form):
    """In bfloat16 the result is that of the same numbers in float32, rounded."""
    x, w = (jnp.asarray(a, jnp.bfloat16) for a in drawn((5, 16), (16, 3)))
    want = eight_bits.product(x.astype(jnp.float32), w.astype(jnp.float32), form).astype(jnp.bfloat16)
    assert_array_equal(eight_bits.product(x, w, form).astype(jnp.float32), want.astype(jnp.float32))


@forms
def test_sums_that_are_not_exact_have_the_dtype_of_activations(form):
    """All three products are rounded to it before they are scaled, which is a rounding more; exact ones have 32 bits."""
    x, w, dy = (jnp.asarray(a, jnp.bfloat16) for a in drawn((33, 64), (64, 17), (33, 17)))

    def results(*args: jax.Array, exact: bool) -> Any:
        y, back = jax.vjp(lambda x, w: eight_bits.product(x, w, form, exact=exact), *args[:2])
        return y, *back(args[2])

    for exact, sums in ((True, "int32" if form == "int8" else "float32"), (False, "bfloat16")):
        jaxpr = jax.make_jaxpr(lambda *args, exact=exact: results(*args, exact=exact))(x, w, dy)
        assert [eqn.outvars[0].aval.dtype.name for eqn in products(jaxpr.jaxpr)] == 3 * [sums]
    for got, want in zip(results(x, w, dy, exact=False), results(x, w, dy, exact=True), strict=True):
        assert_allclose(got.astype(jnp.float32), want.astype(jnp.float32), rtol=2 * float(jnp.finfo(jnp.bfloat16).eps))


@forms
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_stay_so(form, bad):
    """Not all numbers of 8 bits can say it, but scales can: so that a step with such a number is found and skipped."""
    x, w, dy = (jnp.float32(a) for a in drawn((5, 16), (16, 3), (5, 3)))
    y, back = jax.vjp(lambda x, w: eight_bits.product(x, w, form), x.at[1, 2].set(bad), w)
    assert_array_equal(np.isfinite(y).all(axis=1), [True, False, True, True, True])
    assert not np.isfinite(back(dy)[1]).any()


def tiny(name: str, **fields: Any) -> Experiment:
    """A tiny experiment of two layers on one device."""
    return dataclasses.replace(varied(registry.tiny(registry.load(name)), layers=2, **fields), layout=ONE_DEVICE)


def operands(jaxpr: Any) -> Iterator[str]:
    """Yields the dtype of the operands of every matrix product in a jaxpr."""
    return (" ".join(x.aval.dtype.name for x in eqn.invars) for eqn in products(jaxpr))


def products(jaxpr: Any) -> Iterator[Any]:
    """Yields the matrix products in a jaxpr, once of a loop's body."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from products(inner)


@pytest.mark.parametrize(
    ("form", "operands_of"),
    [
        ("int8", {"int8 int8": 3 * 7}),
        ("fp8", {"float8_e4m3fn float8_e4m3fn": 7, "float8_e5m2 float8_e4m3fn": 7, "float8_e4m3fn float8_e5m2": 7}),
    ],
)
def test_all_matrices_of_layers_are_multiplied_in_8_bits_and_nothing_else_is(form, operands_of):
    """A layer has seven (attention's four, three of a gated network), each with three products in a step; the logits, and two
    products inside attention, are of floating point."""
    counted = Counter(operands(loss(tiny("gpt.quickstart", quantization=form), gradient=True)))
    assert counted == operands_of | {"float32 float32": 3 * 3}


@forms
def test_the_mathematics_needs_the_same_flops(form):
    """Although products in 8 bits have no gradients that a trace could find."""
    e = tiny("gpt.quickstart")
    assert model_flops(varied(e, quantization=form)) == model_flops(e)


@forms
def test_experts_are_multiplied_one_by_one(form):
    """Each expert has scales of its own: its slots' products are those of its matrices alone."""
    x_EGCM, gate_EGC1, up_EMH, down_EHM = (jnp.float32(a) for a in drawn((3, 2, 4, 8), (3, 2, 4, 1), (3, 8, 5), (3, 5, 8)))
    scope = Component(ONE_DEVICE, execution=Execution(quantization=form))
    y_EGCM = in_experts(x_EGCM, gate_EGC1, Experts((up_EMH,), down_EHM, jax.nn.relu), scope)
    for x_GCM, gate_GC1, up_MH, down_HM, y_GCM in zip(x_EGCM, gate_EGC1, up_EMH, down_EHM, y_EGCM, strict=True):
        h_GCH = jax.nn.relu(eight_bits.product(x_GCM, up_MH, form)) * gate_GC1
        assert_allclose(y_GCM, eight_bits.product(h_GCH, down_HM, form), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("remat", "kept"), [("full", []), ("dots", ["bfloat16"])])
def test_the_backward_pass_keeps_products_in_the_dtype_of_activations(remat, kept):
    """Not the whole numbers of four bytes that they are before scaling; with "full" only inputs are kept."""
    e = tiny("gpt.quickstart", quantization="int8")
    scope = Component(ONE_DEVICE, execution=dataclasses.replace(e.execution, remat=remat))

    def layer(x_RM, w_MO):
        return scan(lambda x_RM, w_MO, _: (jnp.tanh(project(x_RM, w_MO, scope, dense=True)), None), x_RM, w_MO, scope=scope)

    x_RM, w_LMO = jnp.ones((6, 8), jnp.bfloat16), jnp.ones((3, 8, 8))
    back = jax.eval_shape(lambda x, w: jax.vjp(lambda x, w: layer(x, w)[0], x, w)[1], x_RM, w_LMO)
    sizes = Counter((x.shape, x.dtype.name) for x in jax.tree.leaves(back) if x.shape != w_LMO.shape)
    assert sizes == Counter([((3, 6, 8), "bfloat16"), *(((3, 6, 8), dtype) for dtype in kept)])


@pytest.mark.integration
@forms
def test_a_model_in_8_bits_has_nearly_the_loss_of_one_in_single_precision(form):
    """Half a per cent of it apart, and not equal."""
    e = tiny("gpt.quickstart")
    plan = make_plan(e, jax.devices()[:1])
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    batch, params = batches(0), fresh_state(plan).params
    batches.close()
    want, rounded = (jax.jit(objective(way)[0])(params, ({}, batch)) for way in (e, varied(e, quantization=form)))
    assert 0 < abs(rounded / want - 1) < 0.005, (want, rounded)


@pytest.mark.integration
@pytest.mark.slow
@forms
def test_a_model_learns_in_8_bits_as_in_bfloat16(form):
    """In 40 steps it learns most of a batch by heart, and at no step its loss is far from that in bfloat16."""
    e = tiny("gpt.quickstart", dtype="bfloat16")
    plan = make_plan(e, jax.devices()[:1])
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    batch, start, tx = batches(0), fresh_state(plan).params, optax.adam(0.01)
    batches.close()

    def losses(e: Experiment) -> np.ndarray:
        def step(carry, _):
            params, state = carry
            loss, gradients = jax.value_and_grad(objective(e)[0])(params, ({}, batch))
            updates, state = tx.update(gradients, state)
            return (optax.apply_updates(params, updates), state), loss

        return np.asarray(jax.jit(lambda: jax.lax.scan(step, (start, tx.init(start)), length=40)[1])())

    want, rounded = losses(e), losses(varied(e, quantization=form))
    assert want[-1] < 0.5 * want[0]
    assert np.abs(rounded - want).max() < 0.05 * want[0]


def test_another_number_of_bits_is_refused():
    with pytest.raises(ValueError, match=r"^quantization='int4': no such quantization; did you mean 'int8'\?"):
        Execution(quantization="int4")  # pyright: ignore[reportArgumentType]
