"""The scan over stacked layers computes what `jax.lax.scan` does, and writes its stacks once."""

import functools
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from numpy.testing import assert_allclose, assert_array_equal

from models.execution import Execution
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import scan
from models.sharding.stacks import layer_scan

LAYERS, ROWS, WIDTH = 3, 4, 8


def layer_function(closed_over, policy):
    """A layer with dropout, which reads masks and positions of each row, counts, and closes over a weight."""

    def body(carry, layer, rows):
        x, count = carry
        weights, key, number = layer
        mask, position = rows
        hidden = checkpoint_name(jnp.tanh(x @ weights["in"]), "hidden")
        kept = jax.random.bernoulli(key, 0.8, x.shape)
        x = x + mask * jnp.where(kept, hidden @ closed_over, 0) + position[:, None]
        return (x, count + number), {"norm": jnp.sum(hidden**2), "number": number * 2}

    return jax.checkpoint(body, policy=policy, prevent_cse=False)


def inputs(dtype):
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape, dtype)  # noqa: E731
    keys = jax.random.split(jax.random.key(9), LAYERS)
    return dict(
        x=draw(0, ROWS, WIDTH),
        weights={"in": draw(1, LAYERS, WIDTH, WIDTH), "unused": draw(2, LAYERS, 2)},
        closed_over=draw(3, WIDTH, WIDTH),
        mask=draw(4, ROWS, 1),
    ), (keys, jnp.arange(LAYERS, dtype=jnp.int32), jnp.arange(ROWS))


def run(scan, policy, values, others):
    keys, numbers, positions = others
    body = layer_function(values["closed_over"], policy)
    stacked, rows = (values["weights"], keys, numbers), (values["mask"], positions)
    (x, count), out = scan(body, (values["x"], jnp.int32(5)), stacked, rows)
    return jnp.sum(x**3) + jnp.sum(out["norm"] * jnp.arange(1, LAYERS + 1)), (x, count, out)


plain, recomputing_scan = layer_scan, functools.partial(layer_scan, recomputes=True)


POLICIES = {"full": jax.checkpoint_policies.nothing_saveable, "names": jax.checkpoint_policies.save_only_these_names("hidden")}


@pytest.mark.integration
@pytest.mark.parametrize("policy", POLICIES)
def test_values_and_gradients_are_those_of_a_plain_scan(policy):
    with jax.enable_x64(True):
        values, others = inputs(jnp.float64)

        def both(scan):
            return jax.jit(jax.value_and_grad(lambda v: run(scan, POLICIES[policy], v, others), has_aux=True))(values)

        (loss, aux), grads = both(recomputing_scan)
        (expected, expected_aux), expected_grads = both(plain)
    assert_allclose(loss, expected, rtol=1e-12)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12), aux, expected_aux)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), grads, expected_grads)
    assert_array_equal(grads["weights"]["unused"], 0)


def test_examples_can_be_mapped():
    """In double precision: gradients of thousands hide in single precision what small ones differ by, on some processors."""
    with jax.enable_x64(True):
        values, others = inputs(jnp.float64)
        many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), values)
        loss = lambda scan: lambda v: run(scan, POLICIES["full"], v, others)[0]  # noqa: E731
        got, expected = (jax.jit(jax.vmap(jax.grad(loss(scan))))(many) for scan in (recomputing_scan, plain))
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, expected)


def test_stacks_are_not_filled_and_weights_are_not_kept_again():
    values, others = inputs(jnp.float32)
    jaxpr = str(jax.make_jaxpr(jax.grad(lambda v: run(recomputing_scan, POLICIES["names"], v, others)[0]))(values))
    unfilled = sorted(re.findall(r":([a-z0-9]+\[[0-9,]+\]) = empty\[", jaxpr))
    assert unfilled == sorted(
        [
            "f32[3]",
            "i32[3]",  # what the layers return
            "f32[3,4,8]",
            "f32[3,4,8]",  # a layer's input, and the activation that its policy names
            "f32[3,8,8]",
            "f32[3,2]",  # gradients of stacked weights
        ]
    )


@pytest.mark.parametrize("pick", [lambda aux: jnp.sum(aux[0]), lambda aux: jnp.sum(aux[2]["norm"])], ids=["carry", "outs"])
def test_a_loss_that_drops_the_carry_or_the_outs_has_gradients(pick):
    with jax.enable_x64(True):
        values, others = inputs(jnp.float64)
        losses = [lambda v, s=s: pick(run(s, POLICIES["full"], v, others)[1]) for s in (recomputing_scan, plain)]
        grads = [jax.jit(jax.grad(loss))(values) for loss in losses]
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), *grads)


@pytest.mark.parametrize(("platform", "own"), [("tpu", True), ("gpu", False)])
def test_gpus_have_the_loop_of_jax(platform, own):
    """A stack that holds anything before is whole on each of several GPUs, so that there none is made."""
    mesh: Any = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    scope = Component(ONE_DEVICE, "decoder", mesh, Execution(remat="full"))

    def loss(weights, x):
        return jnp.sum(scan(lambda x, w, rows: (jnp.tanh(x @ w), ()), x, weights, scope=scope)[0])

    jaxpr = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones((LAYERS, WIDTH, WIDTH)), jnp.ones((ROWS, WIDTH))))
    assert (" empty[" in jaxpr) == own
