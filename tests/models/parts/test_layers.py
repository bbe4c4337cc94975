"""Layers that several families share: dropout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.gshard_m4.config import GShardM4Config
from models.parts.attention.config import GroupedQuery, Learned
from models.parts.layers import dropout
from models.parts.transformer_config import Dense, LmConfig

SIZES: dict[str, Any] = dict(
    vocab=8,
    layers=1,
    model_dim=8,
    attention=GroupedQuery(heads=1, head_dim=8),
    positions=Learned(rows=8),
    feed_forward=Dense(hidden_dim=8),
)


@pytest.mark.parametrize("rate", [1 / 256, 0.1, 255 / 256])
def test_dropout_keeps_the_mean(rate):
    """A share of `rate`, to a 256th, is zero, and the others are scaled up so that the mean stays 1."""
    LmConfig(**SIZES, dropout=rate)
    x = np.asarray(dropout(jnp.ones(200_000), rate, jax.random.key(0)))
    assert_allclose((x == 0).mean(), rate, atol=0.003)
    assert_allclose(x.mean(), 1, atol=0.1)


def test_draws_of_dropout_are_independent():
    """Places and rows of 1024 rows of 512, and pairs of either at any of these distances, differ from independent draws by no
    more than chance, in whose standard deviations all figures are."""
    rate = 26 / 256
    kept = np.asarray(dropout(jnp.ones((1024, 512)), rate, jax.random.key(1)) != 0, float)
    z = (kept - (1 - rate)) / np.sqrt(rate * (1 - rate))
    for axis in (0, 1):
        sums = z.sum(axis) / np.sqrt(z.shape[axis])
        assert abs(sums.std() - 1) < 0.15 and np.abs(sums).max() < 4.5
        for distance in (1, 2, 3, 8, 16, 64, 128, 256):
            a, b = np.split(np.moveaxis(z, axis, 0), [distance])[1], np.moveaxis(z, axis, 0)[:-distance]
            assert abs((a * b).sum()) / np.sqrt(a.size) < 4.5, (axis, distance)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (0.999, "dropout=0.999: is rounded to .* nearest that can be had: 255/256 = 0.99609375"),
        (0.001, "dropout=0.001: is rounded to .* nearest that can be had: 0 and 1/256"),
        (1.0, r"dropout=1.0: must be in \[0, 1\)"),
        (-0.1, r"dropout=-0.1: must be in \[0, 1\)"),
    ],
)
def test_a_rate_that_would_drop_all_or_nothing_is_refused(rate, message):
    """Dropout draws 8 bits an element: rates nearer to 0 or 1 than half a 256th would divide by zero or do nothing."""
    for make in (lambda: LmConfig(**SIZES, dropout=rate), lambda: GShardM4Config(dropout=rate)):
        with pytest.raises(ValueError, match=message):
            make()
