"""Routing, in cases small enough to check by hand, and the four dispatches against each other."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

from models.execution import Execution
from models.parts.attention.config import GroupedQuery
from models.parts.moe import dispatch
from models.parts.moe import routing as moe
from models.parts.moe.config import Capacity, ExpertChoice, ExpertsConfig, MoeConfig, MoeLosses, Noise, Top1, Top2, TopK
from models.parts.moe.layer import Moe
from models.parts.transformer_config import BlockConfig, Dense
from models.protocol import Context
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout, LayoutError, rules
from tests.helpers.compiled import one_program

EVALUATION = Context.evaluation()
HERE = Component(Layout(name="here", mesh=()))
ALL = np.ones((1, 4), bool)
assign_slots = one_program(moe.assign_slots, "slots")
balance_loss, counts, importance_loss, z_loss = map(one_program, (moe.balance_loss, moe.counts, moe.importance_loss, moe.z_loss))
expert_choice = one_program(moe.expert_choice, "slots")
find_slots = one_program(moe.find_slots, "experts", "priority")
load_loss = one_program(moe.load_loss, "std", "choices")
per_expert, per_token = one_program(moe.per_expert, "experts"), one_program(moe.per_token, "size")
route = one_program(moe.route, "router", "slots", "priority")
top1_gating, top2_gating = map(one_program, (moe.top1_gating, moe.top2_gating))
top_k_gating = one_program(moe.top_k_gating, "router")


def probs(*rows) -> np.ndarray:
    """[1, S, E] from lists of gates in tenths."""
    return np.array([rows], np.float32) / 10


def training(seed: int) -> Context:
    return dataclasses.replace(EVALUATION, key=jax.random.key(seed), training=True)


def drawn_gates(*shape: int, sharpness: float = 1) -> np.ndarray:
    return softmax(sharpness * np.random.default_rng(0).normal(size=shape), axis=-1).astype(np.float32)


def slots_by_cumsum(choice: moe.RouterIndices, experts: int) -> np.ndarray:
    """The paper's (GShard, Algorithm 1, lines 8 to 14): a cumulative sum over first choices, then second ones."""
    wants_GKSE = np.eye(experts, dtype=int)[choice.expert_GSK] * choice.requested_GSK[..., None]
    groups, size, k, _ = wants_GKSE.shape
    wants_GNE = wants_GKSE.swapaxes(1, 2).reshape(groups, k * size, experts)
    before_GNE = np.cumsum(wants_GNE, axis=1) - wants_GNE
    return np.sum(before_GNE * wants_GNE, axis=-1).reshape(groups, k, size).swapaxes(1, 2)


def test_capacity_is_twice_the_even_share_and_not_rounded_up():
    """C = 2S/E: two slots for 2048 tokens and 2048 experts, not four as when rounded to a convenient multiple."""
    assert moe.capacity(2.0, 2048, 2048) == 2
    assert moe.capacity(2.0, 8192, 128) == 128
    assert moe.capacity(2.0, 4, 64) == 1
    assert moe.capacity(0.0, 4, 64) == moe.capacity(64.0, 4, 64) == moe.capacity(99.0, 4, 64) == 4


def test_top2_takes_the_two_best_and_normalises_their_gates():
    """Gates .5 and .3 of a token become .625 and .375, best first."""
    choice = top2_gating(probs([1, 5, 3, 1]), ALL[:, :1], None)
    assert_array_equal(choice.expert_GSK[0, 0], [1, 2])
    assert_allclose(choice.gate_GSK[0, 0], [0.625, 0.375], rtol=1e-6)


@pytest.mark.parametrize("choices", [1, 2, 5])
def test_top_k_takes_the_best_with_their_probabilities(choices):
    """V-MoE: the k best of seven experts, best first, with gates that are not made to sum to one; padding wants none."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 6, 7))
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mask = np.array([[True] * 6, [True] * 4 + [False] * 2])
    choice = top_k_gating(TopK(choices=choices), gates.astype(np.float32), mask)
    order = np.argsort(-gates, axis=-1)[..., :choices]
    assert_array_equal(choice.expert_GSK, order)
    assert_allclose(choice.gate_GSK, np.take_along_axis(gates, order, -1), rtol=1e-6)
    assert_array_equal(choice.requested_GSK, np.broadcast_to(mask[..., None], order.shape))


def test_capacity_may_be_rounded_up_to_a_multiple():
    """V-MoE's code: ceil(1.05 k S / E), up to a multiple of 4, and never more than a group has tokens."""
    assert moe.capacity(2.1, 8 * 197, 32, multiple=4) == 104  # 103.4
    assert moe.capacity(1.05, 392, 8, multiple=4) == 52  # 51.45
    assert moe.capacity(0.2, 392, 8, multiple=4) == 12  # 9.8
    assert moe.capacity(1.05, 6, 2, multiple=4) == 4
    assert moe.capacity(3.0, 6, 2, multiple=4) == 6


def test_importance_and_load_are_squared_coefficients_of_variation(float64):
    """Both against plain sums over tokens (V-MoE, appendix A), groups weighted by their real tokens; padding counts nowhere."""
    rng = np.random.default_rng(0)
    logits, noise, std = rng.normal(size=(2, 9, 4)), rng.normal(size=(2, 9, 4)), 0.25
    mask = np.array([[True] * 9, [True] * 5 + [False] * 4])
    noisy = logits + std * noise
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    importance, load = 0.0, 0.0
    for group in range(2):
        importances, loads = np.zeros(4), np.zeros(4)
        for token in np.flatnonzero(mask[group]):
            importances += probs[group, token]
            least = np.sort(noisy[group, token])[-2]
            for expert in range(4):  # the chance that new noise lifts the expert to the second best
                z = (least - logits[group, token, expert]) / std
                loads[expert] += 0.5 * math.erfc(z / math.sqrt(2))
        importance += mask[group].sum() * (importances.std() / importances.mean()) ** 2
        load += mask[group].sum() * (loads.std() / loads.mean()) ** 2
    assert_allclose(importance_loss(probs, mask), importance, rtol=1e-9)
    loss = load_loss(logits, noisy, std, 2, mask)
    assert_allclose(loss, load, rtol=1e-6)


def test_balanced_experts_have_no_importance_loss():
    even = np.full((1, 8, 4), 0.25, np.float32)
    assert float(importance_loss(even, np.ones((1, 8), bool))) == 0


def test_gaussian_draws_are_normal():
    """Mean, deviation, and the share beyond two deviations of 100,000 draws; the tails are finite."""
    drawn = one_program(moe.gaussian, "shape")(jax.random.key(0), (100_000,))
    assert abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1) < 0.01
    assert abs((np.abs(drawn) > 2).mean() - 0.0455) < 0.003 and np.isfinite(drawn).all()


def test_router_noise_is_of_training_alone(float64):
    """The same tokens ask other experts with another key in training, and always the same outside."""
    c = MoeConfig(
        experts=ExpertsConfig(count=8),
        router=TopK(choices=2, noise=Noise(std=8.0, load_weight=0.1)),
        group_size=16,
        capacity=Capacity(factor=0.0),
        losses=MoeLosses(importance_weight=0.1),
    )
    layer = made(c, block(6, 8))
    x, mask = jax.random.normal(jax.random.key(1), (2, 16, 6)), np.ones((2, 16), bool)
    call = one_program(layer)
    outputs = [call(x, mask, context) for context in (training(2), training(3), EVALUATION, EVALUATION)]
    assert np.abs(outputs[0][0] - outputs[1][0]).max() > 1e-3
    assert_array_equal(outputs[2][0], outputs[3][0])
    assert {"importance_loss", "load_loss"} <= outputs[0][1].keys() and "load_loss" not in outputs[2][1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(choices=0), "router.choices=0: must be from 1 to experts.count=4"),
        (dict(choices=5), "router.choices=5: must be from 1 to experts.count=4"),
    ],
)
def test_choices_that_a_router_cannot_have_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MoeConfig(experts=ExpertsConfig(count=4), router=TopK(**fields))


def test_top1_takes_the_best_with_its_probability():
    """A gate of .5 stays .5: normalised it would be 1 for all, and the router would learn nothing."""
    choice = top1_gating(probs([1, 5, 3, 1], [4, 2, 2, 2]), ALL[:, :2])
    assert_array_equal(choice.expert_GSK[0], [[1], [0]])
    assert_allclose(choice.gate_GSK[0], [[0.5], [0.4]], rtol=1e-6)


def test_experts_choose_their_best_tokens():
    """Each expert takes two of four tokens, best first and the earlier of equals; one token gets both, one gets none."""
    routing = expert_choice(probs([9, 1], [5, 5], [6, 4], [5, 5]), ALL, 2)
    assert_array_equal(routing.token_GN[0].reshape(2, 2), [[0, 2], [1, 3]])
    assert_allclose(routing.gate_GN[0].reshape(2, 2), [[0.9, 0.6], [0.5, 0.5]], rtol=1e-6)
    routing = expert_choice(probs([9, 6], [5, 1], [8, 7], [1, 1]), ALL, 2)
    shares = {name: float(ratio.value) for name, ratio in counts(probs(*[[5, 5]] * 4), routing, ALL).items() if name != "load"}
    assert_array_equal(routing.token_GN[0].reshape(2, 2), [[0, 2], [2, 0]])
    assert shares["experts_0"] == 0.5 and shares["experts_2"] == 0.5 and shares["dropped"] == 0
    assert balance_loss(probs(*[[5, 5]] * 4), routing, ALL) == 0


def test_first_choices_of_the_whole_group_are_served_before_any_second():
    """Token 0's second choice, expert 1, comes after tokens 2 and 3, whose first choice it is."""
    routing = route(Top2(), probs([6, 4, 0], [6, 0, 4], [0, 6, 4], [0, 6, 4]), ALL, 2)
    # slots:                                              first, second
    assert_array_equal(routing.slot_GN[0].reshape(4, 2), [[0, 2], [1, 0], [0, 1], [1, 2]])
    assert_array_equal(routing.dispatch_mask_GN[0].reshape(4, 2), [[1, 0], [1, 1], [1, 1], [1, 0]])


def _moved(move, x_GSM, routing, size, experts, slots):
    take, weights, give = move(routing, size, experts, slots)
    buffers_EGCM, weight_EGC = take(x_GSM), weights(jnp.float32)
    return buffers_EGCM, weight_EGC, give(buffers_EGCM * weight_EGC[..., None])


moved = one_program(_moved, "move", "size", "experts", "slots")  # buffers, weights of their slots, and what tokens get back


def test_what_comes_late_is_dropped():
    """With one slot an expert serves the first token that wants it; the others keep only their residual."""
    gates = probs([9, 1], [9, 1], [9, 1], [9, 1])
    routing = route(Top2(), gates, ALL, 1)
    buffers, weight_EGC, given = moved(dispatch.by_einsum, np.arange(4.0).reshape(1, 4, 1) + 1, routing, 4, 2, 1)
    assert_array_equal(buffers[:, 0, 0, 0], [1, 1])  # both experts hold token 0
    assert_allclose(weight_EGC[:, 0, 0], [0.9, 0.1], rtol=1e-6)
    assert_allclose(given[0, :, 0], [1, 0, 0, 0], rtol=1e-6)
    shares = {name: ratio.value for name, ratio in counts(gates, routing, ALL).items()}
    assert shares["dropped"] == 0.75 and shares["experts_0"] == 0.75 and shares["experts_2"] == 0.25
    assert_array_equal(route(Top1(), gates, ALL, 1).dispatch_mask_GN[0], [1, 0, 0, 0])


@pytest.mark.parametrize(("router", "load"), [(Top2(), [0.75, 1.5, 0.75]), (Top1(), [0, 1.5, 1.5]), (ExpertChoice(), [1, 1, 1])])
def test_padding_is_never_routed_and_never_counts(router, load):
    """Masked tokens take no slot, get zero, and change neither the loss nor the shares of real tokens."""
    gates = probs([3, 6, 1], [6, 4, 0], [1, 3, 6], [1, 6, 3])
    mask = np.array([[True, False, True, False]])
    routing = route(router, gates, mask, 4)
    assert_array_equal(per_token(routing, 4)[0, 1::2], 0)
    _, _, out = moved(dispatch.by_sort, np.ones((1, 4, 5)), routing, 4, 3, 4)
    assert_array_equal(out[0, 1::2], np.zeros((2, 5)))
    weight = 0.6 if router == Top1() else 1.0
    assert_allclose(out[0, 2], np.full(5, weight), rtol=1e-6)
    alone = route(router, gates[:, ::2], ALL[:, :2], 4 if router.choices else 2)
    assert_allclose(balance_loss(gates, routing, mask), balance_loss(gates[:, ::2], alone, ALL[:, :2]), rtol=1e-6)
    got, want = counts(gates, routing, mask), counts(gates[:, ::2], alone, ALL[:, :2])
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-6), got, want)
    assert_allclose(got["load"].value, load, rtol=1e-6)


def test_a_second_expert_is_dropped_at_random_in_proportion_to_its_gate():
    """A normalised gate g is dispatched with probability min(1, 2g): never dropped from one half on.

    Praxis hard-codes threshold 0, with which every one of these would be kept.
    """
    gates = np.broadcast_to(np.array([0.8, 0.2, 0.0], np.float32), (1, 20_000, 3))
    mask = np.ones(gates.shape[:2], bool)
    choice = top2_gating(gates, mask, jax.random.key(0))
    assert choice.requested_GSK[..., 0].all()
    assert_allclose(choice.requested_GSK[..., 1].mean(), 0.4, atol=0.02)
    even = top2_gating(np.broadcast_to(np.array([0.5, 0.5, 0.0], np.float32), gates.shape), mask, jax.random.key(0))
    assert even.requested_GSK.all()
    never = top2_gating(gates, mask, jax.random.key(0), threshold=0.0)
    assert never.requested_GSK.all()


def algorithm_1(gates_SE: np.ndarray, capacity: int, random_S: np.ndarray, second_slot: str) -> np.ndarray:
    """GShard's Algorithm 1 for a group, line by line: the weights [S, E] with which tokens are dispatched."""
    size, experts = gates_SE.shape
    c_E, weights_SE = np.zeros(experts, int), np.zeros((size, experts))

    def top_2(s: int):
        e1, e2 = np.argsort(-gates_SE[s], kind="stable")[:2]
        return gates_SE[s, e1], e1, gates_SE[s, e2], e2

    for s in range(size):
        g1, e1, g2, e2 = top_2(s)
        g1 = g1 / (g1 + g2)
        c = c_E[e1]
        if c < capacity:
            weights_SE[s, e1] = g1
        c_E[e1] = c + 1
    for s in range(size):
        g1, e1, g2, e2 = top_2(s)
        g2 = g2 / (g1 + g2)
        c = c_E[e2]
        dispatched = 2 * g2 > random_S[s]
        if c < capacity and dispatched:
            weights_SE[s, e2] = g2
        if dispatched or second_slot == "always":  # the paper's: always
            c_E[e2] = c + 1
    return weights_SE


@pytest.mark.parametrize("second_slot", ["always", "if_dispatched"])
def test_top2_is_algorithm_1(second_slot):
    """Tokens get the experts and the weights that the paper's listing says; there a second choice that is dropped
    at random still takes a slot, and with "if_dispatched" that line is left out. Slots have no gaps either way."""
    groups, size, experts, slots, key = 30, 16, 4, 6, jax.random.key(1)
    gates = drawn_gates(groups, size, experts, sharpness=2)
    routing = route(Top2(second_slot=second_slot), gates, np.ones((groups, size), bool), slots, key)
    combine = np.zeros((groups, size, experts))
    kept = routing.dispatch_mask_GN
    combine[np.nonzero(kept)[0], routing.token_GN[kept], routing.expert_GN[kept]] = routing.gate_GN[kept]
    random = one_program(moe.uniform, "shape")(key, (groups, size))
    want, other = (
        np.stack([algorithm_1(g, slots, r, way) for g, r in zip(gates, random, strict=True)])
        for way in (second_slot, {"always": "if_dispatched", "if_dispatched": "always"}[second_slot])
    )
    assert_allclose(combine, want, rtol=1e-6)
    assert (want != other).any(axis=(1, 2)).sum() > 5
    for g in range(groups):
        for e in range(experts):
            mine = kept[g] & (routing.expert_GN[g] == e)
            assert sorted(routing.slot_GN[g][mine]) == list(range(mine.sum()))


def test_jitter_stays_within_its_width():
    """Inputs are scaled by 1 on average and by at most the width more or less; not at all outside training."""
    noise = one_program(moe.jitter, "width")(np.ones(20_000, np.float32), 0.1, jax.random.key(0))
    assert 0.9 <= noise.min() < 0.901 and 1.099 < noise.max() <= 1.1
    assert_allclose(noise.mean(), 1, atol=0.002)
    assert_array_equal(moe.jitter(jnp.asarray(np.ones(3)), 0.1, None), 1)


def test_balance_loss_is_one_when_balanced_and_e_when_collapsed():
    """Uniform gates with evenly spread first choices give 1 a token; all tokens on one of E experts give E."""
    even = (np.eye(4)[None] * 1e-6 + 0.25).astype(np.float32)
    one = np.broadcast_to(np.array([1.0, 0, 0, 0], np.float32), (1, 4, 4))
    for router in (Top2(), Top1()):
        assert_allclose(balance_loss(even, route(router, even, ALL, 4), ALL) / 4, 1.0, rtol=1e-4)
        assert_allclose(balance_loss(one, route(router, one, ALL, 4), ALL) / 4, 4.0, rtol=1e-6)


def test_the_z_loss_is_the_square_of_the_log_of_the_sum():
    """Two logits of log 2 sum to 4 as exponentials: log(4)^2 = 1.92 a token; padding adds nothing."""
    logits = np.log(np.array([[[2.0, 2.0], [1.0, 2.0], [9.0, 1.0]]], np.float32))
    assert_allclose(z_loss(logits, np.array([[True, True, False]])), np.log(4) ** 2 + np.log(3) ** 2, rtol=1e-6)
    assert z_loss(logits, np.zeros((1, 3), bool)) == 0


GROUPS, SIZE, EXPERTS, MODEL, HIDDEN = 3, 32, 6, 7, 5


def one_by_one(x, routing: moe.Routing, wg, wi, wo, bg, bi, bo) -> np.ndarray:
    """Computes a mixture by its definition: every kept assignment's gated feed-forward network, one after the other."""
    y = np.zeros_like(x)
    for g, n in zip(*np.nonzero(routing.dispatch_mask_GN), strict=True):
        token, e = routing.token_GN[g, n], routing.expert_GN[g, n]
        h = np.tanh(x[g, token] @ wg[e] + bg[e]) * (x[g, token] @ wi[e] + bi[e])
        y[g, token] += routing.gate_GN[g, n] * (h @ wo[e] + bo[e])
    return y


def test_larger_gates_are_served_first_where_they_have_priority():
    """Four tokens want expert 0, which has two slots: by place the first two are served, by priority those with gates of .9
    and .8 (V-MoE, section 4.1)."""
    gates = probs([6, 4], [9, 1], [7, 3], [8, 2])
    kept = {priority: route(Top1(), gates, ALL, 2, priority=priority).dispatch_mask_GN[0].tolist() for priority in (False, True)}
    assert kept == {False: [True, True, False, False], True: [False, True, False, True]}
    # Second choices still come after all first ones.
    first_and_second = route(Top2(), gates, ALL, 4, priority=True)
    assert first_and_second.slot_GN[0].reshape(4, 2)[:, 0].tolist() == [3, 0, 2, 1]


def test_experts_have_slots_for_the_fewest_tokens_that_the_floor_says():
    """1.25 x 8 / 8 is one slot; with a floor of four it is four, of no more than the group's tokens."""
    assert [moe.capacity(1.25, 8, 8, least) for least in (1, 4, 16)] == [1, 4, 8]


def block(model_dim: int, hidden_dim: int, *, bias: bool = False) -> BlockConfig:
    """A layer with feed-forward networks of this size."""
    heads, dense = GroupedQuery(heads=1, head_dim=2), Dense(hidden_dim=hidden_dim, bias=bias)
    return BlockConfig(model_dim=model_dim, attention=heads, positions=None, feed_forward=dense)


def made(c: MoeConfig, block: BlockConfig, scope: Component = HERE) -> Moe:
    return jax.jit(lambda key: Moe(c, block, key, scope))(jax.random.key(0))


def mixture_of(**experts) -> tuple[Moe, np.ndarray]:
    experts = ExpertsConfig(count=4, **experts)
    c = MoeConfig(experts=experts, router=Top1(), group_size=32, capacity=Capacity(factor=0.0))
    rng = np.random.default_rng(0)
    return made(c, block(MODEL, HIDDEN, bias=True)), rng.normal(size=(2, 32, MODEL))


def test_tokens_may_get_nothing_from_their_experts(float64):
    """With token_dropout .25 about a quarter of the tokens get zero in training, the others all; in evaluation each gets .75."""
    (masked, x), (plain, _) = mixture_of(token_dropout=0.25), mixture_of()
    masked, real = one_program(masked), np.ones(x.shape[:2], bool)
    whole = one_program(plain)(x, real, EVALUATION)[0]
    assert_allclose(masked(x, real, EVALUATION)[0], 0.75 * whole, rtol=1e-12)
    y = masked(x, real, training(1))[0]
    gone = np.all(y == 0, axis=-1)
    assert_allclose(y[~gone], whole[~gone], rtol=1e-12)
    assert 5 <= int(gone.sum()) <= 28  # of 64


@pytest.mark.integration
def test_dropout_inside_experts_is_drawn_in_training_alone(float64):
    """Outputs differ from those without in training, and are the same in evaluation, also by ragged rows, which refuse it on
    several devices."""
    (dropping, x), (plain, _) = mixture_of(dropout=0.4), mixture_of()
    real = np.ones(x.shape[:2], bool)
    ragged = dataclasses.replace(HERE, execution=Execution(dispatch="ragged"))
    for pair in ((dropping, plain), [made(m.c, block(MODEL, HIDDEN), ragged) for m in (dropping, plain)]):
        drops, whole = map(one_program, pair)
        assert_array_equal(drops(x, real, EVALUATION)[0], whole(x, real, EVALUATION)[0])
        assert not np.allclose(drops(x, real, training(1))[0], whole(x, real, training(1))[0])
    several = make_mesh(Layout(name="several", mesh=(("x", 8),)))
    refused = Moe(dropping.c, block(MODEL, HIDDEN), jax.random.key(0), dataclasses.replace(ragged, mesh=several))
    with pytest.raises(LayoutError, match=r"dropout inside experts .* 'ragged' .* use 'sort'"):
        refused(jnp.asarray(x), jnp.asarray(real), training(1))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("router", "slots"),
    [
        (Top2(), 1),
        (Top2(), 32),
        (ExpertChoice(), 5),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((Top2(), 5), (Top1(), 5), (Top1(), 32))),
    ],
)
def test_dispatches_agree(router, slots, float64):
    """All four give what the experts give token by token, and one gradient for inputs, gates and weights, to 1e-12; with drops
    (1, 5 slots) and without (32)."""
    rng = np.random.default_rng(slots)
    logits, x, *weights = (
        jnp.array(rng.normal(size=shape))
        for shape in (
            (GROUPS, SIZE, EXPERTS),
            (GROUPS, SIZE, MODEL),
            (EXPERTS, MODEL, HIDDEN),
            (EXPERTS, MODEL, HIDDEN),
            (EXPERTS, HIDDEN, MODEL),
            (EXPERTS, HIDDEN),
            (EXPERTS, HIDDEN),
            (EXPERTS, MODEL),
        )
    )
    mask = jnp.array(rng.random((GROUPS, SIZE)) < 0.8)

    def run(how, logits, x, wg, wi, wo, bg, bi, bo):
        routing = moe.route(router, jax.nn.softmax(2 * logits), mask, slots, jax.random.key(1))
        experts = dispatch.Experts((wg, wi), wo, lambda g, x: jnp.tanh(g) * x, (bg, bi), bo)
        y = dispatch.mixture(x, routing, slots, experts, HERE, how)
        return jnp.sum(y**2), (y, routing)

    @jax.jit
    def all_ways(*args):
        return {
            how: jax.value_and_grad(lambda *a: run(how, *a), argnums=range(8), has_aux=True)(*args)
            for how in (*dispatch.BUFFERED, "ragged")
        }

    results = all_ways(logits, x, *weights)
    (_, (y, routing)), _ = results["einsum"]
    assert_allclose(y, one_by_one(*jax.device_get((x, routing, *weights))), rtol=1e-12, atol=1e-12)
    assert (routing.requested_GN.sum() > routing.dispatch_mask_GN.sum()) == (router != ExpertChoice() and slots < 32)
    for how in ("sort", "all_to_all", "ragged"):
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), results[how], results["einsum"])


def test_dropless_is_any_capacity_that_drops_nothing():
    """As many slots as the fullest expert needs give the routing of as many as there are tokens."""
    gates = drawn_gates(2, 40, 5)
    mask = np.ones((2, 40), bool)
    dropless = route(Top2(), gates, mask, moe.capacity(0, 40, 5))
    assert_array_equal(dropless.dispatch_mask_GN, dropless.requested_GN)
    enough = int(per_expert(dropless, 5).max())
    assert enough < 40
    jax.tree.map(assert_array_equal, route(Top2(), gates, mask, enough), dropless)
    assert not route(Top2(), gates, mask, enough - 1).dispatch_mask_GN.all()


def test_no_slot_is_used_twice():
    """Slots are the paper's, found otherwise: every (group, expert, slot) holds one choice, and slots fill up without gaps."""
    gates = drawn_gates(2, 40, 5)
    choice = top2_gating(gates, np.ones((2, 40), bool), jax.random.key(1))
    wanted = choice.requested_GSK
    assert not wanted.all()
    assert_array_equal(find_slots(choice, 5)[wanted], slots_by_cumsum(choice, 5)[wanted])
    # The same in two blocks of choices, the second not full.
    many = jax.tree.map(lambda x: np.tile(x, (1, 2, 1)), choice)
    assert many.requested_GSK[0].size > moe.BLOCK
    places, paper = (f(many, 5)[many.requested_GSK] for f in (find_slots, slots_by_cumsum))
    assert_array_equal(places, paper)
    routing = assign_slots(choice, find_slots(choice, 5), 9)
    for g in range(2):
        kept = routing.dispatch_mask_GN[g]
        taken = sorted(zip(*(x[g][kept] for x in (routing.expert_GN, routing.slot_GN)), strict=True))
        filled = np.minimum(np.bincount(choice.expert_GSK[g][wanted[g]], minlength=5), 9)
        assert taken == [(e, s) for e in range(5) for s in range(filled[e])]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExpertsConfig(count=1), "count=1: .* at least 2"),
        (lambda: ExpertsConfig(count=0), "count=0: .* at least 2"),
        (lambda: Top2(second_slot="alway"), "no such second_slot; did you mean 'always'"),  # pyright: ignore[reportArgumentType]
        (lambda: Capacity(factor=-1.0), "factor=-1.0: must be positive, or 0"),
        (lambda: Top1(jitter=1.0), "jitter=1.0: must be in"),
        (lambda: Noise(std=0.0), "std=0.0: must be positive; .* noise=None"),
        (lambda: Capacity(least=0), "least=0: must be 1 or more"),
        (lambda: ExpertsConfig(count=4, token_dropout=1.0), "token_dropout=1.0: must be in"),
        (lambda: MoeLosses(z_weight=-1.0), "z_weight=-1.0: must be positive, or 0 .* ST-MoE's is 0.001"),
        (
            lambda: MoeConfig(experts=ExpertsConfig(count=8), router=ExpertChoice(), capacity=Capacity(factor=0.0)),
            "capacity.factor=0: .* the paper's is 2",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(make, message):
    """One line names the field, its value and a valid one."""
    with pytest.raises(ValueError, match=message):
        make()


TPU: Any = SimpleNamespace(devices=np.array([SimpleNamespace(platform="tpu")]))
ROWS = rules(group="x", expert="x", act_expert="x")


@pytest.mark.parametrize(
    ("cuts", "mesh", "dropless", "training", "expected"),
    [
        (ROWS, TPU, True, False, "ragged"),
        (ROWS, TPU, True, True, "sort"),
        (ROWS, TPU, False, False, "sort"),
        (ROWS, None, True, False, "sort"),  # on CPUs "ragged" multiplies every row with every expert
        (rules(expert="x", act_expert="x"), TPU, True, False, "sort"),  # tokens that all experts' devices hold alike
    ],
)
def test_dropless_evaluation_on_tpus_has_no_empty_rows(cuts, mesh, dropless, training, expected):
    """In evaluation buffers of as many slots as tokens give way to "ragged" rows where these have a kernel and can be exchanged;
    training is as configured."""
    scope = Component(Layout(name="cut", mesh=(("x", 2),), rules=cuts), mesh=mesh)
    layer = jax.eval_shape(lambda: Moe(MoeConfig(experts=ExpertsConfig(count=4)), block(8, 8), jax.random.key(0), scope))
    assert layer._dispatch(dropless, training) == expected


def test_the_decoder_keeps_a_causal_gating():
    """With expert choice in the encoder the decoder's tokens choose, as otherwise later tokens would tell on themselves; its
    capacity is the model's, in evaluation too."""
    c = MoeConfig(experts=ExpertsConfig(count=8), router=ExpertChoice(), capacity=Capacity(factor=2.0, eval_factor=8.0))
    assert c.decoder_router == Top2()
    assert c.capacity.factor_of(c.router, training=False) == 2 and c.capacity.factor_of(Top2(), training=False) == 8
    assert dataclasses.replace(c, router=Top1()).decoder_router == Top1()
