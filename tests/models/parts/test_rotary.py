"""Rotary positions for texts longer than those of the first training: which rates are stretched, and by how much."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.parts.attention.config import GroupedQuery, Interpolation, LayerVariant, Llama3, LongRope, Rotary, Scaling, Yarn
from models.parts.attention.mask import AttentionMask
from models.parts.attention.rotary import rotate, rotation
from models.parts.transformer import attention_inputs, layer_settings
from models.parts.transformer_config import BlockConfig, Dense
from tests.helpers.models import ALONE

BASE = 16.0  # four rates of eight dimensions: 1, 1/2, 1/4, 1/8
PLAIN = [1.0, 0.5, 0.25, 0.125]


def config(**fields: Any) -> BlockConfig:
    heads = GroupedQuery(heads=1, head_dim=4)
    return BlockConfig(**{"model_dim": 8, "attention": heads, "feed_forward": Dense(hidden_dim=8)} | fields)


def rates(scaling: Scaling) -> list[float]:
    return Rotary(base=BASE, scaling=scaling).rates(8)


def mask_of(segments_BL: jax.Array, *, causal: bool = True) -> AttentionMask:
    return AttentionMask.for_rows(segments_BL, segments_BL, causal=causal)


def test_linear_scaling_divides_all_rates():
    """Position 30 with a factor of 3 is what position 10 is without."""
    assert_allclose(rates(Interpolation(factor=3.0)), np.array(PLAIN) / 3)


def test_llama3_scaling_divides_slow_rates_alone():
    """A rate that turns `high` times or more within the first training's text stays, one that turns `low` times or less is
    divided, and one halfway between is the mean of both."""
    turns = [8.0, 4.0, 2.0, 1.0]  # within 16 pi positions
    length = round(16 * math.pi)
    assert_allclose([length * rate / (2 * math.pi) for rate in PLAIN], turns, rtol=0.01)
    stretched = rates(Llama3(factor=4.0, low=1.0, high=3.0, original=length))
    assert stretched[:2] == PLAIN[:2] and stretched[3] == PLAIN[3] / 4
    assert stretched[2] == pytest.approx((PLAIN[2] + PLAIN[2] / 4) / 2, rel=0.01)


def test_yarn_scaling_divides_slow_rates_alone():
    """Rates turn 8, 4, 2 and 1 times within 50 positions. The ramp's ends are the rates of `beta_fast` and `beta_slow` turns,
    rounded outwards: here 0.99, the second of four counted from 0, and 2.99."""
    yarn = Yarn(factor=4.0, original=50, beta_fast=4.0, beta_slow=1.0)
    assert_allclose(np.array(rates(yarn)) / PLAIN, [1, 0.75, 0.5, 0.25])
    exact = dataclasses.replace(yarn, whole=False)
    assert_allclose(np.array(rates(exact)) / PLAIN, [1, 1, 0.625, 0.25], atol=0.01)


def test_longrope_chooses_by_the_example():
    """An example of more positions than the first training's has the long factors at all of its positions, one beside it in the
    same row the short ones."""
    scaling = LongRope(original=4, short=(1.0, 1.0), long=(2.0, 4.0), amplitude=3.0)
    c = config(positions=Rotary(base=4.0, scaling=scaling))
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
    turned = rotate(x, rotation(jnp.array([[2]]), 6, Rotary(base=BASE, dims=4)), ALONE)
    assert_allclose(turned[..., 4:], x[..., 4:])
    assert_allclose(turned[..., :4], rotate(x[..., :4], rotation(jnp.array([[2]]), 4, Rotary(base=BASE)), ALONE))


def test_layers_differ_by_kind():
    """The kinds of a pattern come again behind its end: windows as they are, rotations by their place among those that differ."""
    pattern = (LayerVariant(window=3, base=4.0, scaled=False), LayerVariant(), LayerVariant(rotary=False))
    heads = GroupedQuery(heads=1, head_dim=4, pattern=pattern)
    c = config(positions=Rotary(base=16.0, scaling=Interpolation(factor=2.0)), attention=heads)
    of_layers = layer_settings(c, jnp.arange(5))
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
    ("make", "part"),
    [
        (lambda: Yarn(factor=4.0, original=0), "original=0"),
        (lambda: Llama3(factor=4.0, original=8, low=4.0), "low=4.0"),
        (lambda: LongRope(original=8, short=(1.0,), long=()), "1 and 0 factors"),
        (lambda: Interpolation(factor=0.0), "factor=0.0"),
    ],
)
def test_settings_without_sense_are_refused(make, part):
    """One line names the field and its value."""
    with pytest.raises(ValueError, match=part):
        make()
