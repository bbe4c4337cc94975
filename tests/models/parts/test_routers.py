"""Routers of released decoders, against what their papers write, a token at a time in NumPy; and shared experts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax

from models.parts.attention.config import GroupedQuery
from models.parts.losses import Ratio
from models.parts.moe import routing as moe
from models.parts.moe.config import Capacity, Correction, ExpertGroups, ExpertsConfig, MoeConfig, MoeLosses, SharedExpert, TopK
from models.parts.moe.layer import Moe, clipped_swiglu, routing_loss
from models.parts.nested import changed
from models.parts.transformer_config import BlockConfig, Dense
from models.sharding.component import Component
from models.sharding.layout import Layout
from tests.helpers.compiled import one_program
from tests.helpers.contexts import EVALUATION, training

HERE = Component(Layout(name="one", mesh=()))
SIZE, HIDDEN = 6, 10
top_k_gating, best_groups = one_program(moe.top_k_gating, "router"), one_program(moe.best_groups, "groups", "chosen")
DEEPSEEK = MoeConfig(
    experts=ExpertsConfig(count=8, shared=SharedExpert(hidden_dim=4)),
    router=TopK(
        choices=3,
        normalized=True,
        score="sigmoid",
        groups=ExpertGroups(count=4, chosen=2),
        scale=2.5,
        correction=Correction(rate=0.001),
    ),
    group_size=12,
    capacity=Capacity(factor=0.0),
)


def layer_of(c: MoeConfig):
    """A mixture of this kind with every bias made to matter, and its inputs."""
    block = BlockConfig(
        model_dim=SIZE,
        attention=GroupedQuery(heads=1, head_dim=2),
        positions=None,
        feed_forward=Dense(hidden_dim=HIDDEN, activation="silu", gated=True),
    )
    layer = jax.device_get(jax.jit(lambda key: Moe(c, block, key, HERE))(jax.random.key(0)))
    rng = np.random.default_rng(0)
    layer = jax.tree.map(lambda w: jnp.asarray(w + 0.5 * rng.normal(size=w.shape)), layer)
    return layer, rng.normal(size=(2, 12, SIZE)), np.ones((2, 12), bool)


def silu(x):
    return x / (1 + np.exp(-x))


def expert(layer, e: int, x):
    gate, up = x @ np.asarray(layer.wg[e]), x @ np.asarray(layer.wi[e])
    return (silu(gate) * up) @ np.asarray(layer.wo[e])


def test_gates_may_be_divided_by_their_sum_and_scaled():
    """Probabilities .5 and .3 become .625 and .375, times 2 1.25 and .75: softmax over the two best logits."""
    probs, mask = np.array([[[0.5, 0.3, 0.2]]], np.float32), np.ones((1, 1), bool)
    normalized, scaled = TopK(choices=2, normalized=True), TopK(choices=2, normalized=True, scale=2.0)
    assert_allclose(top_k_gating(normalized, probs, mask).gate_GSK[0, 0], [0.625, 0.375], rtol=1e-6)
    assert_allclose(top_k_gating(scaled, probs, mask).gate_GSK[0, 0], [1.25, 0.75], rtol=1e-6)
    assert_allclose(softmax(np.log(probs[0, 0, :2])), [0.625, 0.375], rtol=1e-6)


def test_a_bias_changes_who_is_chosen_and_no_gate():
    """The third of three experts is chosen for its bias, and its gate is its score."""
    scores, mask = np.array([[[0.9, 0.5, 0.2]]], np.float32), np.ones((1, 1), bool)
    choice = top_k_gating(TopK(choices=2), scores, mask, np.array([0.0, 0.0, 0.4], np.float32))
    assert_array_equal(choice.expert_GSK[0, 0], [0, 2])
    assert_allclose(choice.gate_GSK[0, 0], [0.9, 0.2], rtol=1e-6)


def test_experts_are_of_the_groups_with_the_best_two():
    """The second and the first of groups (.9 .1), (.6 .6), (.8 .0) have the best sums of two: the .8 is out of reach."""
    scores = np.array([[[0.9, 0.1, 0.6, 0.6, 0.8, 0.0]]], np.float32)
    assert_array_equal(best_groups(scores, 3, 2)[0, 0], [True] * 4 + [False] * 2)
    router = TopK(choices=3, groups=ExpertGroups(count=3, chosen=2))
    choice = top_k_gating(router, scores, np.ones((1, 1), bool))
    assert_array_equal(np.sort(choice.expert_GSK[0, 0]), [0, 2, 3])


def test_deepseeks_mixture_is_its_formula(float64):
    """Equations 12 to 16 of DeepSeek-V3, a token at a time: sigmoids, the bias in the choice, groups, gates over their sum, and
    the shared expert."""
    layer, x, mask = layer_of(DEEPSEEK)
    output, _ = one_program(layer)(x, mask, EVALUATION)
    for x_M, y_M in zip(x.reshape(-1, SIZE), output.reshape(-1, SIZE), strict=True):
        score = 1 / (1 + np.exp(-x_M @ np.asarray(layer.router[...])))
        by = score + np.asarray(layer.correction[...])
        best = np.argsort(-np.sort(by.reshape(4, 2)).sum(1))[:2]
        allowed = [e for e in range(8) if e // 2 in best]
        chosen = sorted(allowed, key=lambda e: -by[e])[:3]
        gates = 2.5 * score[chosen] / score[chosen].sum()
        shared = layer.shared
        want = (silu(x_M @ np.asarray(shared.wg[...])) * (x_M @ np.asarray(shared.wi[...]))) @ np.asarray(shared.wo[...])
        want = want + sum(g * expert(layer, e, x_M) for g, e in zip(gates, chosen, strict=True))
        assert_allclose(y_M, want, rtol=1e-9)


@pytest.mark.integration
def test_the_gradient_of_the_bias_of_the_choice_is_the_load(float64):
    """Whatever the loss is, it says in training how often each expert was chosen, over the mean; padding is not counted, and the
    loss stays what it is. The router itself gets a gradient of the loss."""
    layer, x, mask = layer_of(DEEPSEEK)
    mask[0, :5] = False

    @jax.jit
    def loss(layer, context):
        y, statistics = layer(x, mask, context)
        stacked = jax.tree.map(lambda leaf: leaf[None], statistics)
        return jnp.sum(y**2), routing_loss(DEEPSEEK, stacked, jnp.sum(mask), "decoder").value

    gradients = jax.jit(jax.grad(lambda layer, context: sum(loss(layer, context))))
    gradient = gradients(layer, training(0))
    assert np.abs(gradient.router[...]).max() > 0
    by = expit(x.reshape(-1, SIZE)[mask.ravel()] @ np.asarray(layer.router[...])) + np.asarray(layer.correction[...])
    chosen = np.argsort(-np.where(best_groups(by[None], 4, 2)[0], by, -np.inf))[:, :3]
    counts = np.bincount(chosen.ravel(), minlength=8)
    assert_array_equal(gradient.correction[...], 8 * counts - 3 * 19)
    assert_array_equal(gradients(layer, EVALUATION).correction[...], np.zeros(8))
    (_, trained), (_, evaluated) = loss(layer, training(0)), loss(layer, EVALUATION)
    assert trained == evaluated


def test_the_bias_of_the_choice_balances_the_load():
    """The busiest of 8 experts, two a token, with scores that prefer some, serves 3 times its share; 400 steps of .01 against the
    signs of loads later, hardly more than its share."""
    rng = np.random.default_rng(0)
    skewed = rng.normal(size=(1, 512, 8)) + np.linspace(-1, 1, 8)
    scores, mask = expit(skewed.astype(np.float32)), jnp.asarray(np.ones((1, 512), bool))

    def pull(bias):
        return moe.correction(bias, moe.route(TopK(choices=2), scores, mask, 512, correction_E=bias))

    excess = one_program(jax.grad(pull))

    def busiest(bias):
        return excess(bias).max() / (2 * 512) + 1  # E (load - mean) over the total, which is E times the mean

    bias = np.zeros(8, np.float32)
    assert busiest(bias) > 2
    for _ in range(400):
        bias -= np.float32(0.01) * np.sign(excess(bias))
    assert busiest(bias) < 1.1


def test_a_gated_shared_expert_is_weighted_by_a_sigmoid(float64):
    """Qwen2-MoE: of two layers with the same weights the second's shared expert has a gate."""
    layer, x, mask = layer_of(changed(DEEPSEEK, {"experts.shared.gated": True}))
    weight = np.asarray(layer.shared_gate[...])[:, 0]
    run = one_program(lambda layer: (layer(x, mask, EVALUATION)[0], layer.shared(x)))
    whole, shared = run(layer)
    layer.shared_gate, layer.c = None, DEEPSEEK
    plain, _ = run(layer)
    gate = 1 / (1 + np.exp(-x @ weight))
    assert_allclose(whole - plain, (gate - 1)[..., None] * shared, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("g", "u", "want"), [(1.0, 2.0, 3 / (1 + np.exp(-1.702))), (9.0, -9.0, -42 / (1 + np.exp(-11.914)))])
def test_gpt_oss_activation_is_clipped(g, u, want):
    """(u + 1) g sigmoid(1.702 g), of a gate up to 7 and the other product within 7."""
    assert_allclose(clipped_swiglu(jnp.float32(g), jnp.float32(u)), want, rtol=1e-6)


def test_a_pooled_balance_loss_is_of_all_layers_together():
    """E sum of f_e P_e over two layers: each uses one of two experts always, together both evenly, which is 1 = K; each alone
    would be 2."""
    probs = [np.broadcast_to(np.array(p, np.float32), (1, 4, 2)) for p in ([1.0, 0.0], [0.0, 1.0])]
    mask = jnp.asarray(np.ones((1, 4), bool))

    def statistics(*layers):
        made = []
        for p in layers:
            routing = moe.route(TopK(choices=1), p, mask, 4)
            made.append(moe.pooled_load(p, routing, mask) | {"load": Ratio(jnp.ones(2), jnp.ones(()))})
        return jax.tree.map(lambda *x: jnp.stack(x), *made)

    c = MoeConfig(experts=ExpertsConfig(count=2), router=TopK(choices=1), losses=MoeLosses(balance="pooled", balance_weight=1.0))
    loss = one_program(lambda *layers: routing_loss(c, statistics(*layers), jnp.array(4), "decoder").value)
    assert_allclose(loss(*probs), 1.0, rtol=1e-6)
    assert_allclose(loss(probs[0], probs[0]), 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            dict(choices=1, groups=ExpertGroups(count=3, chosen=1)),
            "router.groups.count=3: must divide experts.count=8; nearest is 2",
        ),
        (dict(choices=3, groups=ExpertGroups(count=4, chosen=1)), "chosen=1: .* at least choices=3"),
        (dict(choices=1, score="sigmoids"), "score='sigmoids': no such score"),
    ],
)
def test_routers_that_there_are_not_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MoeConfig(experts=ExpertsConfig(count=8), router=TopK(**fields))


def test_parts_of_a_mixture_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="chosen=5: must be from 1 to count=4"):
        ExpertGroups(count=4, chosen=5)
    with pytest.raises(ValueError, match=r"hidden_dim=0: must be 1 or more; .* shared=None"):
        SharedExpert(hidden_dim=0, gated=True)
