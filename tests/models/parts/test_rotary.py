"""Rotary positions for texts longer than those of the first training: which rates are stretched, and by how much."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.parts.attention.config import LayerVariant, Rotary
from models.parts.attention.mask import AttentionMask
from models.parts.attention.rotary import rotate, rotation
from models.parts.transformer import attention_inputs, kinds
from models.parts.transformer_config import BlockConfig
from tests.helpers.models import ALONE

BASE = 16.0  # four rates of eight dimensions: 1, 1/2, 1/4, 1/8
PLAIN = [1.0, 0.5, 0.25, 0.125]


def config(**fields: Any) -> BlockConfig:
    return BlockConfig(model_dim=8, hidden_dim=8, heads=1, head_dim=4, positions="rotary", **fields)


def mask_of(segments_BL: jax.Array, *, causal: bool = True) -> AttentionMask:
    return AttentionMask.for_rows(segments_BL, segments_BL, causal=causal)


def test_linear_scaling_divides_all_rates():
    """Position 30 with a factor of 3 is what position 10 is without."""
    assert_allclose(Rotary(scaling="linear", factor=3.0).rates(8, BASE), np.array(PLAIN) / 3)


def test_llama3_scaling_divides_slow_rates_alone():
    """A rate that turns `high` times or more within the first training's text stays, one that turns `low` times or less is
    divided, and one halfway between is the mean of both."""
    turns = [8.0, 4.0, 2.0, 1.0]  # within 16 pi positions
    length = round(16 * math.pi)
    assert_allclose([length * rate / (2 * math.pi) for rate in PLAIN], turns, rtol=0.01)
    rates = Rotary(scaling="llama3", factor=4.0, low=1.0, high=3.0, original=length).rates(8, BASE)
    assert rates[:2] == PLAIN[:2] and rates[3] == PLAIN[3] / 4
    assert rates[2] == pytest.approx((PLAIN[2] + PLAIN[2] / 4) / 2, rel=0.01)


def test_yarn_scaling_divides_slow_rates_alone():
    """Rates turn 8, 4, 2 and 1 times within 50 positions. The ramp's ends are the rates of `beta_fast` and `beta_slow` turns,
    rounded outwards: here 0.99, the second of four counted from 0, and 2.99."""
    yarn = Rotary(scaling="yarn", factor=4.0, original=50, beta_fast=4.0, beta_slow=1.0)
    assert_allclose(np.array(yarn.rates(8, BASE)) / PLAIN, [1, 0.75, 0.5, 0.25])
    exact = dataclasses.replace(yarn, whole=False)
    assert_allclose(np.array(exact.rates(8, BASE)) / PLAIN, [1, 1, 0.625, 0.25], atol=0.01)


def test_longrope_chooses_by_the_example():
    """An example of more positions than the first training's has the long factors at all of its positions, one beside it in the
    same row the short ones."""
    rotary = Rotary(scaling="longrope", original=4, short=(1.0, 1.0), long=(2.0, 4.0), amplitude=3.0)
    c = config(rotary_base=4.0, rotary=rotary)
    positions_BL = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2]])
    g = attention_inputs(c, positions_BL, mask_of(jnp.array([[1, 1, 1, 1, 1, 2, 2, 2]])))
    assert g.rotation is not None
    cos, sin = (np.asarray(x)[0] for x in g.rotation)
    angles = np.arctan2(sin, cos)
    assert_allclose(angles[1], [1 / 2, 1 / 8], rtol=1e-6)
    assert_allclose(angles[6], [1, 1 / 2], rtol=1e-6)
    assert_allclose(cos**2 + sin**2, 9, rtol=1e-6)


def test_a_part_of_a_head_may_be_turned():
    """A rotation of four dimensions leaves the other two of a head as they are."""
    x = jnp.arange(1.0, 7.0).reshape(1, 1, 1, 6)
    turned = rotate(x, rotation(jnp.array([[2]]), 6, BASE, Rotary(dims=4)), ALONE)
    assert_allclose(turned[..., 4:], x[..., 4:])
    assert_allclose(turned[..., :4], rotate(x[..., :4], rotation(jnp.array([[2]]), 4, BASE), ALONE))


def test_layers_differ_by_kind():
    """The kinds of a pattern come again behind its end: windows as they are, rotations by their place among those that differ."""
    pattern = (LayerVariant(window=3, base=4.0, scaled=False), LayerVariant(), LayerVariant(rotary=False))
    c = config(rotary_base=16.0, rotary=Rotary(scaling="linear", factor=2.0), kinds=pattern)
    of_layers = kinds(c, jnp.arange(5))
    assert of_layers is not None
    assert of_layers.window.tolist() == [3, 0, 0, 3, 0] and of_layers.table.tolist() == [0, 1, 2, 0, 1]
    g = attention_inputs(c, jnp.array([[0, 1]]), mask_of(jnp.ones((1, 2), jnp.int32)))
    assert g.rotation is not None
    cos, sin = (np.asarray(x)[0, 1] for x in g.rotation)
    assert_allclose(np.arctan2(sin, cos), [[1, 1 / 2], [1 / 2, 1 / 8], [0, 0]], rtol=1e-6, atol=1e-9)


def test_a_window_is_what_a_query_sees():
    """With a window of 2 a query sees itself and its neighbour before it; in attention to both sides, also the one behind it."""
    ones = jnp.ones((1, 4), jnp.int32)
    causal, both = mask_of(ones).within(2).matrix()[0], mask_of(ones, causal=False).within(2).matrix()[0]
    assert np.asarray(causal).astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert np.asarray(both).astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert np.asarray(mask_of(ones).within(jnp.array(0)).matrix()[0]).astype(int).tolist()[3] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (dict(scaling="yarn", factor=4.0), "original=0"),
        (dict(scaling="llama3", factor=4.0, original=8, low=4.0), "low=4.0"),
        (dict(scaling="longrope", original=8, short=(1.0,)), "1 and 0 factors"),
        (dict(scaling="linear", factor=0.0), "factor=0.0"),
    ],
)
def test_settings_without_sense_are_refused(settings, part):
    """One line names the field and its value."""
    with pytest.raises(ValueError, match=part):
        Rotary(**settings)
