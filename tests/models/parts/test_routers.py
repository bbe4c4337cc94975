"""Routers of released decoders, against what their papers write, a token at a time in NumPy; and shared experts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.parts.losses import Ratio
from models.parts.moe import routing as moe
from models.parts.moe.config import MoeConfig
from models.parts.moe.layer import Moe, clipped_swiglu, routing_loss
from models.sharding.component import Component
from models.sharding.layout import Layout

HERE = Component(Layout(name="one", mesh=()))
SIZE, HIDDEN = 6, 10
DEEPSEEK = MoeConfig(
    experts=8,
    gating="top_k",
    choices=3,
    norm_topk=True,
    score="sigmoid",
    correction_bias=True,
    expert_groups=4,
    chosen_groups=2,
    gate_scale=2.5,
    group_size=12,
    capacity_factor=0.0,
    shared_dim=4,
)


def layer_of(c: MoeConfig, **fields):
    """A mixture of this kind with every bias made to matter, and its inputs."""
    layer = Moe(c, SIZE, HIDDEN, jax.random.key(0), HERE, activation="silu", gated=True, **fields)
    rng = np.random.default_rng(0)
    layer = jax.tree.map(lambda w: jnp.asarray(w + 0.5 * rng.normal(size=w.shape)), layer)
    return layer, jnp.asarray(rng.normal(size=(2, 12, SIZE))), jnp.ones((2, 12), bool)


def silu(x):
    return x / (1 + np.exp(-x))


def expert(layer, e: int, x):
    gate, up = x @ np.asarray(layer.wg[e]), x @ np.asarray(layer.wi[e])
    return (silu(gate) * up) @ np.asarray(layer.wo[e])


def test_gates_may_be_divided_by_their_sum_and_scaled():
    """Probabilities .5 and .3 become .625 and .375, times 2 1.25 and .75: softmax over the two best logits."""
    probs, mask = jnp.array([[[0.5, 0.3, 0.2]]]), jnp.ones((1, 1), bool)
    assert_allclose(moe.top_k_gating(probs, mask, 2, norm=True).gate_GSK[0, 0], [0.625, 0.375], rtol=1e-6)
    assert_allclose(moe.top_k_gating(probs, mask, 2, norm=True, scale=2.0).gate_GSK[0, 0], [1.25, 0.75], rtol=1e-6)
    assert_allclose(jax.nn.softmax(jnp.log(probs[0, 0, :2])), [0.625, 0.375], rtol=1e-6)


def test_a_bias_changes_who_is_chosen_and_no_gate():
    """The third of three experts is chosen for its bias, and its gate is its score."""
    scores, mask = jnp.array([[[0.9, 0.5, 0.2]]]), jnp.ones((1, 1), bool)
    choice = moe.top_k_gating(scores, mask, 2, bias_E=jnp.array([0.0, 0.0, 0.4]))
    assert_array_equal(choice.expert_GSK[0, 0], [0, 2])
    assert_allclose(choice.gate_GSK[0, 0], [0.9, 0.2], rtol=1e-6)


def test_experts_are_of_the_groups_with_the_best_two():
    """The second and the first of groups (.9 .1), (.6 .6), (.8 .0) have the best sums of two: the .8 is out of reach."""
    scores = jnp.array([[[0.9, 0.1, 0.6, 0.6, 0.8, 0.0]]])
    assert_array_equal(moe.best_groups(scores, 3, 2)[0, 0], [True] * 4 + [False] * 2)
    choice = moe.top_k_gating(scores, jnp.ones((1, 1), bool), 3, groups=(3, 2))
    assert_array_equal(np.sort(choice.expert_GSK[0, 0]), [0, 2, 3])


def test_deepseeks_mixture_is_its_formula(float64):
    """Equations 12 to 16 of DeepSeek-V3, a token at a time: sigmoids, the bias in the choice, groups, gates over their sum, and
    the shared expert."""
    layer, x, mask = layer_of(DEEPSEEK)
    output, _ = jax.jit(layer)(x, mask, None)
    for x_M, y_M in zip(np.asarray(x).reshape(-1, SIZE), np.asarray(output).reshape(-1, SIZE), strict=True):
        score = 1 / (1 + np.exp(-x_M @ np.asarray(layer.router[...])))
        by = score + np.asarray(layer.correction[...])
        best = np.argsort(-np.sort(by.reshape(4, 2)).sum(1))[:2]
        allowed = [e for e in range(8) if e // 2 in best]
        chosen = sorted(allowed, key=lambda e: -by[e])[:3]
        gates = 2.5 * score[chosen] / score[chosen].sum()
        shared = layer.shared
        want = (silu(x_M @ shared.wg[...]) * (x_M @ shared.wi[...])) @ np.asarray(shared.wo[...])
        want = want + sum(g * expert(layer, e, x_M) for g, e in zip(gates, chosen, strict=True))
        assert_allclose(y_M, want, rtol=1e-9)


def test_the_gradient_of_the_bias_of_the_choice_is_the_load(float64):
    """Whatever the loss is, it says in training how often each expert was chosen, over the mean; padding is not counted, and the
    loss stays what it is. The router itself gets a gradient of the loss."""
    layer, x, mask = layer_of(DEEPSEEK)
    mask = mask.at[0, :5].set(False)

    @jax.jit
    def loss(layer, key):
        y, statistics = layer(x, mask, key)
        stacked = jax.tree.map(lambda leaf: leaf[None], statistics)
        return jnp.sum(y**2), routing_loss(DEEPSEEK, stacked, jnp.sum(mask), "decoder").value

    gradient = jax.grad(lambda layer: sum(loss(layer, jax.random.key(0))))(layer)
    assert np.abs(gradient.router[...]).max() > 0
    scores = jax.nn.sigmoid(x.reshape(-1, SIZE)[np.asarray(mask).ravel()] @ layer.router[...])
    by = scores + layer.correction[...]
    chosen = jax.lax.top_k(jnp.where(moe.best_groups(by[None], 4, 2)[0], by, -jnp.inf), 3)[1]
    counts = np.bincount(np.asarray(chosen).ravel(), minlength=8)
    assert_array_equal(gradient.correction[...], 8 * counts - 3 * 19)
    assert_array_equal(jax.grad(lambda layer: sum(loss(layer, None)))(layer).correction[...], np.zeros(8))
    (_, trained), (_, evaluated) = loss(layer, jax.random.key(0)), loss(layer, None)
    assert trained == evaluated


def test_the_bias_of_the_choice_balances_the_load():
    """The busiest of 8 experts, two a token, with scores that prefer some, serves 3 times its share; 400 steps of .01 against the
    signs of loads later, hardly more than its share."""
    rng = np.random.default_rng(0)
    skewed = rng.normal(size=(1, 512, 8)) + np.linspace(-1, 1, 8)
    scores, mask = jax.nn.sigmoid(jnp.asarray(skewed, jnp.float32)), jnp.ones((1, 512), bool)

    @jax.jit
    def excess(bias):
        def pull(bias):
            gating = lambda p, m: moe.top_k_gating(p, m, 2, bias_E=bias)  # noqa: E731
            return moe.correction(bias, moe.route("top_k", scores, mask, 512, top_k=gating))

        return jax.grad(pull)(bias)

    def busiest(bias):
        return float(jnp.max(excess(bias))) / (2 * 512) + 1  # E (load - mean) over the total, which is E times the mean

    bias = jnp.zeros(8)
    assert busiest(bias) > 2
    for _ in range(400):
        bias -= 0.01 * jnp.sign(excess(bias))
    assert busiest(bias) < 1.1


def test_a_gated_shared_expert_is_weighted_by_a_sigmoid(float64):
    """Qwen2-MoE: of two layers with the same weights the second's shared expert has a gate."""
    c = dataclasses.replace(DEEPSEEK, shared_gate=True)
    layer, x, mask = layer_of(c)
    ungated = dataclasses.replace(c, shared_gate=False)
    weight = np.asarray(layer.shared_gate[...])[:, 0]
    whole = layer(x, mask, None)[0]
    shared, layer.shared_gate, layer.c = layer.shared, None, ungated
    plain = layer(x, mask, None)[0]
    gate = 1 / (1 + np.exp(-np.asarray(x) @ weight))
    assert_allclose(whole - plain, (gate - 1)[..., None] * np.asarray(shared(x)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("g", "u", "want"), [(1.0, 2.0, 3 / (1 + np.exp(-1.702))), (9.0, -9.0, -42 / (1 + np.exp(-11.914)))])
def test_gpt_oss_activation_is_clipped(g, u, want):
    """(u + 1) g sigmoid(1.702 g), of a gate up to 7 and the other product within 7."""
    assert_allclose(clipped_swiglu(jnp.float32(g), jnp.float32(u)), want, rtol=1e-6)


def test_a_pooled_balance_loss_is_of_all_layers_together():
    """E sum of f_e P_e over two layers: each uses one of two experts always, together both evenly, which is 1 = K; each alone
    would be 2."""
    probs = [jnp.broadcast_to(jnp.array(p), (1, 4, 2)) for p in ([1.0, 0.0], [0.0, 1.0])]
    mask = jnp.ones((1, 4), bool)

    def statistics(*layers):
        made = []
        for p in layers:
            routing = moe.route("top_k", p, mask, 4, top_k=lambda p, mask: moe.top_k_gating(p, mask, 1))
            made.append(moe.pooled_load(p, routing, mask) | {"load": Ratio(jnp.ones(2), jnp.ones(()))})
        return jax.tree.map(lambda *x: jnp.stack(x), *made)

    c = MoeConfig(experts=2, gating="top_k", choices=1, balance="pooled", balance_weight=1.0)
    assert_allclose(routing_loss(c, statistics(*probs), jnp.array(4), "decoder").value, 1.0, rtol=1e-6)
    assert_allclose(routing_loss(c, statistics(probs[0], probs[0]), jnp.array(4), "decoder").value, 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(gating="top2", norm_topk=True), "norm_topk=True: only gating='top_k' has it, not 'top2'"),
        (dict(gating="top_k", choices=1, expert_groups=3), "expert_groups=3: must divide experts=8; nearest is 2"),
        (dict(gating="top_k", choices=3, expert_groups=4, chosen_groups=1), "chosen_groups=1: must be from 1 to"),
        (dict(shared_gate=True), "shared_gate=True: there is no shared expert"),
        (dict(score="sigmoids"), "score='sigmoids': no such score"),
    ],
)
def test_routers_that_there_are_not_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MoeConfig(experts=8, **fields)
