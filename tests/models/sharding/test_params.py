"""Initial values, drawn by JAX's own generator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import registry
from models.sharding.params import normal
from trainers.plan import fresh_state, make_plan


def test_initial_values_are_normal_and_of_the_layer_s_scale(real_draws):
    """Mean and standard deviation of 200,000 draws are within five standard errors, and 4.55 % are beyond two deviations."""
    x = np.asarray(normal(0.02)(jax.random.key(3), (400, 500), jnp.float32)) / 0.02
    assert abs(x.mean()) < 5 / x.size**0.5
    assert abs(x.std() - 1) < 5 / (2 * x.size) ** 0.5
    assert abs((abs(x) > 2).mean() - 0.0455) < 5 * (0.0455 * 0.9545 / x.size) ** 0.5


@pytest.mark.integration
def test_no_two_layers_or_matrices_begin_alike(real_draws):
    """Each layer of a stack, expert and matrix of a mixture has draws of its own: no two are correlated."""
    jax.clear_caches()  # programs of other tests were traced with their draws
    e = registry.tiny(registry.load("gpt.moe_quickstart"))
    params = fresh_state(make_plan(e, jax.devices()[:1])).params
    flat = [np.asarray(x) for x in jax.tree.leaves(params)]
    rows = [matrix.ravel()[:256] for x in flat if x.ndim > 2 for matrix in x.reshape(-1, *x.shape[-2:])]
    rows = np.stack([row for row in rows if row.size == 256 and row.std() > 0])
    assert len(rows) > 20
    apart = np.corrcoef(rows) - np.eye(len(rows))
    assert abs(apart).max() < 6 / 256**0.5
