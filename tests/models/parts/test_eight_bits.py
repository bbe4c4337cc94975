"""Products in 8 bits, forward and backward, and models that compute with them."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.experiment import Experiment
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.execution import Execution
from models.parts import int8
from models.parts.layers import project
from models.parts.moe.dispatch import Experts, in_experts
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import scan
from tests.helpers.models import varied
from trainers.hlo.model_flops import loss, model_flops, objective
from trainers.plan import fresh_state, make_plan


def rounded(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(whole numbers, scales) of the vectors along an axis: the largest number of each becomes 127."""
    scale = np.abs(x).max(axis, keepdims=True) / 127
    return np.round(x / scale), scale


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


def test_a_product_and_its_gradients_are_those_of_whole_numbers():
    """x has a scale for each row and w one for each column; in the backward pass the gradient takes over the scale of the factor
    that it is multiplied with, and then has one for each row of dx and each column of dw."""
    x, w, dy = drawn((5, 16), (16, 3), (5, 3))
    with jax.enable_x64(True):
        y, back = jax.vjp(int8.product, jnp.asarray(x), jnp.asarray(w))
        dx, dw = back(jnp.asarray(dy))

    x_8, s_R1 = rounded(x, 1)
    w_8, t_1O = rounded(w, 0)
    assert_allclose(y, s_R1 * t_1O * (x_8 @ w_8), rtol=1e-14)
    d_8, u_R1 = rounded(dy * t_1O, 1)
    assert_allclose(dx, u_R1 * (d_8 @ w_8.T), rtol=1e-14)
    e_8, v_1O = rounded(dy * s_R1, 0)
    assert_allclose(dw, v_1O * (x_8.T @ e_8), rtol=1e-14)
    assert 0.001 < np.abs(y - x @ w).max() < 0.1


def test_dimensions_may_be_several_and_empty_rows_are_zero():
    """Inputs and outputs of several dimensions are those of the merged matrices, value for value; a row of zeros, as an empty
    slot of an expert, has no scale and gives zeros."""
    x, w, dy = drawn((2, 3, 4, 2), (4, 2, 3, 2), (2, 3, 3, 2))
    x[1, 2] = 0
    y, back = jax.vjp(lambda x, w: int8.product(x, w, 2), jnp.float32(x), jnp.float32(w))
    y_RO, back_merged = jax.vjp(int8.product, jnp.float32(x.reshape(6, 8)), jnp.float32(w.reshape(8, 6)))
    assert_array_equal(y, y_RO.reshape(dy.shape))
    for a, b in zip(back(jnp.float32(dy)), back_merged(jnp.float32(dy.reshape(6, 6))), strict=True):
        assert_array_equal(a.reshape(b.shape), b)
    assert_array_equal(y[1, 2], 0)


def test_bfloat16_is_rounded_once_by_scales_of_more_digits():
    """In bfloat16 the result is that of the same numbers in float32, rounded."""
    x, w = (jnp.asarray(a, jnp.bfloat16) for a in drawn((5, 16), (16, 3)))
    want = int8.product(x.astype(jnp.float32), w.astype(jnp.float32)).astype(jnp.bfloat16)
    assert_array_equal(int8.product(x, w).astype(jnp.float32), want.astype(jnp.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_stay_so(bad):
    """Whole numbers cannot say it, but scales can: so that a step with such a number is found and skipped."""
    x, w, dy = (jnp.float32(a) for a in drawn((5, 16), (16, 3), (5, 3)))
    y, back = jax.vjp(int8.product, x.at[1, 2].set(bad), w)
    assert_array_equal(np.isfinite(y).all(axis=1), [True, False, True, True, True])
    assert not np.isfinite(back(dy)[1]).any()


def tiny(name: str, **fields: Any) -> Experiment:
    """A tiny experiment of two layers on one device."""
    return dataclasses.replace(varied(registry.tiny(registry.load(name)), layers=2, **fields), layout=ONE_DEVICE)


def operands(jaxpr: Any) -> Iterator[str]:
    """Yields the dtype of the operands of every matrix product in a jaxpr, once of a loop's body."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield " ".join(x.aval.dtype.name for x in eqn.invars)
        for inner in jaxprs_in_params(eqn.params):
            yield from operands(inner)


def test_all_matrices_of_layers_are_multiplied_in_8_bits_and_nothing_else_is():
    """A layer has seven (attention's four, three of a gated network), each with three products in a step; the logits, and two
    products inside attention, are of floating point."""
    products = Counter(operands(loss(tiny("gpt.quickstart", quantization="int8"), gradient=True)))
    assert products == {"int8 int8": 3 * 7, "float32 float32": 3 * 3}


def test_the_mathematics_needs_the_same_flops():
    """Although products of whole numbers have no gradients that a trace could find."""
    e = tiny("gpt.quickstart")
    assert model_flops(varied(e, quantization="int8")) == model_flops(e)


def test_experts_are_multiplied_one_by_one():
    """Each expert has scales of its own: its slots' products are those of its matrices alone."""
    x_EGCM, gate_EGC1, up_EMH, down_EHM = (jnp.float32(a) for a in drawn((3, 2, 4, 8), (3, 2, 4, 1), (3, 8, 5), (3, 5, 8)))
    scope = Component(ONE_DEVICE, execution=Execution(quantization="int8"))
    y_EGCM = in_experts(x_EGCM, gate_EGC1, Experts((up_EMH,), down_EHM, jax.nn.relu), scope)
    for x_GCM, gate_GC1, up_MH, down_HM, y_GCM in zip(x_EGCM, gate_EGC1, up_EMH, down_EHM, y_EGCM, strict=True):
        h_GCH = jax.nn.relu(int8.product(x_GCM, up_MH)) * gate_GC1
        assert_allclose(y_GCM, int8.product(h_GCH, down_HM), rtol=1e-5, atol=1e-6)


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


def test_a_model_in_8_bits_has_nearly_the_loss_of_one_in_single_precision():
    """Half a per cent of it apart, and not equal."""
    e = tiny("gpt.quickstart")
    plan = make_plan(e, jax.devices()[:1])
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    batch, params = batches(0), fresh_state(plan).params
    batches.close()
    want, rounded = (jax.jit(objective(way)[0])(params, batch) for way in (e, varied(e, quantization="int8")))
    assert 0 < abs(rounded / want - 1) < 0.005, (want, rounded)


def test_another_number_of_bits_is_refused():
    with pytest.raises(ValueError, match=r"^quantization='int4': no such quantization; did you mean 'int8'\?"):
        Execution(quantization="int4")  # pyright: ignore[reportArgumentType]
