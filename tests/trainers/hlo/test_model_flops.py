"""Model FLOPs: products as XLA counts them, and the backward pass of what parameters have made."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from configs import registry
from configs.experiment import Lora
from models.parts.moe.config import Capacity, ExpertsConfig, TopK
from trainers.hlo.model_flops import carry_range, count, model_flops, products, program_flops, slot_flops
from trainers.hlo.variants import with_remat


@pytest.mark.parametrize(
    ("size", "stride", "padding", "image_dilation", "kernel_dilation", "groups"),
    [
        (16, 1, "SAME", 1, 1, 1),
        (16, 2, "SAME", 1, 1, 1),
        (16, 1, "SAME", 1, 4, 1),  # a quarter of the outer taps lies in the padding
        (8, 1, ((1, 2), (1, 2)), 2, 1, 1),  # transposed: the image's holes are not multiplied
        (16, 1, "SAME", 1, 1, 4),
    ],
)
def test_convolutions_are_counted_as_by_xla(size, stride, padding, image_dilation, kernel_dilation, groups):
    """Without padding and holes, whatever stride, dilation and groups."""

    def convolution(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            padding,
            (image_dilation,) * 2,
            (kernel_dilation,) * 2,
            ("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    x, w = jnp.ones((2, size, size, 8)), jnp.ones((3, 3, 8 // groups, 12))
    analysis: Any = jax.jit(convolution).lower(x, w).cost_analysis()
    assert products(jax.make_jaxpr(convolution)(x, w).jaxpr) == analysis["flops"]


def test_a_factor_that_no_parameter_made_needs_no_gradient():
    """x w counts twice (itself and w's gradient), its product with v three times; in a loop as often as it runs."""

    def once(x, w, v):
        return (x @ w) @ v

    def looped(x, w, v):
        return jax.lax.scan(lambda y, _: (jnp.tanh(y @ w), None), x, None, length=5)[0] @ v

    x, w, v = jnp.ones((2, 4)), jnp.ones((4, 4)), jnp.ones((4, 8))
    xw, yv = 2 * 2 * 4 * 4, 2 * 2 * 4 * 8
    trained = [False, True, True]
    assert count(jax.make_jaxpr(once)(x, w, v).jaxpr, trained, backward=True)[0] == 2 * xw + 3 * yv
    # From the second turn on, the loop's input is made by w.
    assert count(jax.make_jaxpr(looped)(x, w, v).jaxpr, trained, backward=True)[0] == 5 * 3 * xw + 3 * yv


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.25}, {"base": "nf4"}])
def test_a_frozen_matrix_needs_no_gradient(settings):
    """With adapters every matrix of the base counts twice, forward and by what it multiplies; adapters and attention count three
    times. So does the program, as long as it computes nothing a second time."""
    e = registry.tiny(registry.load("gpt.smollm2_135m"))
    rank, targets = 3, ("q", "o", "wi")
    e = e.with_finetune(lora=Lora(rank=rank, targets=targets, **settings), init_from="")
    m: Any = e.model
    data: Any = e.data
    rows, length = data.batch_size, data.length
    heads, groups = m.attention.heads * m.attention.head_dim, m.attention.kv_heads * m.attention.head_dim
    hidden = m.feed_forward.hidden_dim
    base = m.layers * m.model_dim * (2 * heads + 2 * groups + 3 * hidden) + m.vocab * m.model_dim
    adapters = m.layers * rank * (2 * (m.model_dim + heads) + m.model_dim + hidden)
    attention = m.layers * 2 * heads * length
    assert model_flops(e) == 2 * rows * length * (2 * base + 3 * (adapters + attention))
    assert program_flops(with_remat(e, "none")) == model_flops(e)


@pytest.mark.integration
@pytest.mark.parametrize("fields", [{}, pytest.param({"dropout": 0.1}, marks=pytest.mark.slow)])
@pytest.mark.parametrize("choices", [1, 2])
def test_a_mixture_counts_the_experts_that_a_token_is_sent_to(choices, fields):
    """K experts of two matrices for each token, three times; a larger capacity is more slots, and no more work."""
    e = registry.tiny(registry.load("gpt.moe_quickstart"))
    model: Any = e.model

    def with_factor(factor: float, choices: int = choices) -> Any:
        experts, capacity = ExpertsConfig(count=8, **fields), Capacity(factor=factor)
        moe = dataclasses.replace(model.moe, experts=experts, router=TopK(choices=choices), capacity=capacity)
        return dataclasses.replace(e, model=dataclasses.replace(model, moe=moe))

    exact, ample, scarce = (with_factor(factor) for factor in (choices, 2.0 * choices, choices / 2))
    assert model_flops(ample) == model_flops(exact) == slot_flops(exact)
    assert slot_flops(ample) - slot_flops(exact) == model_flops(with_factor(2.0 * choices, 2 * choices)) - model_flops(exact)
    assert model_flops(scarce) == slot_flops(scarce) < model_flops(exact)


def test_what_a_scan_carries_is_read_in_any_release_of_jax():
    """Two constants, one carried array, one that turns read and one that they write: also where both are as long as the carried
    one, after differentiation, and where nothing is carried."""

    def run(x, w, v, rows):
        return jax.lax.scan(lambda y, row: (jnp.tanh(y @ w + row * v), y), x, rows)

    x, w, v, rows = jnp.ones(4), jnp.ones((4, 4)), jnp.ones(4), jnp.ones((4, 4))

    def ranges(function, *arguments):
        equations = jax.make_jaxpr(function)(*arguments).jaxpr.eqns
        return [carry_range(eqn) for eqn in equations if eqn.primitive.name == "scan"]

    assert ranges(run, x, w, v, rows) == [(2, 3)]
    assert ranges(lambda rows: jax.lax.scan(lambda _, row: (None, row * v), None, rows), rows) == [(1, 1)]
    # With derivatives of all but v: w and v and w's, then x and its own.
    pushed = ranges(lambda *a: jax.jvp(lambda x, w, rows: run(x, w, v, rows), a, a), x, w, rows)
    assert pushed == [(3, 5)]
