"""Routing, in cases small enough to check by hand, and the fast dispatch against the paper's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.common import moe

ALL = jnp.ones((1, 4), bool)


def probs(*rows) -> jax.Array:
    """[1, S, E] from lists of gates in tenths."""
    return jnp.array([rows], jnp.float32) / 10


def route(choice: moe.Choice, experts: int, slots: int) -> moe.Routing:
    return moe.assign_slots(choice, moe.slots_by_cumsum(choice, experts), slots)


def test_capacity_is_twice_the_even_share_and_not_rounded_up():
    """C = 2S/E: two slots for 2048 tokens and 2048 experts, not four as when rounded to a convenient multiple."""
    assert moe.capacity(2.0, 2048, 2048) == 2
    assert moe.capacity(2.0, 8192, 128) == 128
    assert moe.capacity(2.0, 4, 64) == 1


def test_top2_takes_the_two_best_and_normalises_their_gates():
    """Gates .5 and .3 of a token become .625 and .375, best first."""
    choice = moe.top2_gating(probs([1, 5, 3, 1]), ALL[:, :1], None)
    assert_array_equal(choice.expert_GSK[0, 0], [1, 2])
    assert_allclose(choice.gate_GSK[0, 0], [0.625, 0.375], rtol=1e-6)


def test_first_choices_of_the_whole_group_are_served_before_any_second():
    """Token 0's second choice, expert 1, comes after tokens 2 and 3, whose first choice it is."""
    gates = probs([6, 4, 0], [6, 0, 4], [0, 6, 4], [0, 6, 4])
    choice = moe.top2_gating(gates, ALL, None)
    routing = route(choice, 3, 2)
    # slots:      first, second
    assert_array_equal(routing.slot_GSK[0], [[0, 2], [1, 0], [0, 1], [1, 2]])
    assert_array_equal(routing.kept_GSK[0], [[1, 0], [1, 1], [1, 1], [1, 0]])


def test_what_comes_late_is_dropped():
    """With one slot an expert serves the first token that wants it; the others keep only their residual."""
    gates = probs([9, 1], [9, 1], [9, 1], [9, 1])
    choice = moe.top2_gating(gates, ALL, None)
    routing, dispatch, combine = moe.by_einsum(choice, 2, 1)
    x = jnp.arange(4.0).reshape(1, 4, 1) + 1
    buffers = dispatch(x)
    assert_array_equal(buffers[0, :, 0, 0], [1, 1])  # both experts hold token 0
    assert_allclose(combine(buffers)[0, :, 0], [1, 0, 0, 0], rtol=1e-6)
    counts = moe.counts(gates, choice, routing, ALL)
    shares = {name: ratio.value for name, ratio in counts.items()}
    assert shares["dropped"] == 0.75 and shares["experts_0"] == 0.75 and shares["experts_2"] == 0.25


def test_padding_is_never_routed_and_never_counts():
    """Masked tokens take no slot, get zero, and change neither the loss nor the shares of real tokens."""
    gates = probs([6, 4, 0], [6, 4, 0], [1, 3, 6], [1, 6, 3])
    mask = jnp.array([[True, False, True, False]])
    choice = moe.top2_gating(gates, mask, None)
    routing, dispatch, combine = moe.by_sort(choice, 3, 4)
    assert not routing.kept_GSK[0, 1].any() and not routing.kept_GSK[0, 3].any()
    out = combine(dispatch(jnp.ones((1, 4, 5))))
    assert_array_equal(out[0, 1], np.zeros(5))
    assert_allclose(out[0, 2], np.ones(5), rtol=1e-6)
    alone = gates[:, ::2]
    choice_alone = moe.top2_gating(alone, ALL[:, :2], None)
    assert_allclose(moe.balance_loss(gates, choice, mask), moe.balance_loss(alone, choice_alone, ALL[:, :2]), rtol=1e-6)
    counts = moe.counts(gates, choice, routing, mask)
    assert_allclose(counts["experts_2"].value, 1.0)
    assert_allclose(counts["load"].value, [0.75, 1.5, 0.75], rtol=1e-6)


def test_a_second_expert_is_dropped_at_random_in_proportion_to_its_gate():
    """A normalised gate g is dispatched with probability min(1, 2g): never dropped from one half on.

    Praxis hard-codes threshold 0, with which every one of these would be kept.
    """
    gates = jnp.broadcast_to(jnp.array([0.8, 0.2, 0.0]), (1, 20_000, 3))
    mask = jnp.ones(gates.shape[:2], bool)
    choice = moe.top2_gating(gates, mask, jax.random.key(0))
    assert choice.wanted_GSK[..., 0].all()
    assert_allclose(choice.wanted_GSK[..., 1].mean(), 0.4, atol=0.02)
    even = moe.top2_gating(jnp.broadcast_to(jnp.array([0.5, 0.5, 0.0]), gates.shape), mask, jax.random.key(0))
    assert even.wanted_GSK.all()
    never = moe.top2_gating(gates, mask, jax.random.key(0), threshold=0.0)
    assert never.wanted_GSK.all()


def test_balance_loss_is_one_when_balanced_and_e_when_collapsed():
    """Uniform gates with evenly spread first choices give 1 a token; all tokens on one of E experts give E."""
    even = jnp.eye(4)[None] * 1e-6 + 0.25
    choice = moe.top2_gating(even, ALL, None)
    assert_allclose(moe.balance_loss(even, choice, ALL) / 4, 1.0, rtol=1e-4)
    one = jnp.broadcast_to(jnp.array([1.0, 0, 0, 0]), (1, 4, 4))
    assert_allclose(moe.balance_loss(one, moe.top2_gating(one, ALL, None), ALL) / 4, 4.0, rtol=1e-6)


@pytest.mark.parametrize("slots", [1, 5, 32])
def test_sorting_finds_the_slots_and_moves_the_tokens_that_einsum_does(slots, float64):
    """Routing, buffers, results and all gradients agree, with drops (1, 5 slots) and without (32)."""
    rng = np.random.default_rng(slots)
    gates = jax.nn.softmax(jnp.array(rng.normal(size=(3, 32, 6)) * 2))
    mask = jnp.array(rng.random((3, 32)) < 0.8)
    x = jnp.array(rng.normal(size=(3, 32, 7)))
    w = jnp.array(rng.normal(size=(6, 7, 7)))
    choice = moe.top2_gating(gates, mask, jax.random.key(1))

    def run(method, x, gates, w):
        choice = moe.top2_gating(gates, mask, jax.random.key(1))
        routing, dispatch, combine = method(choice, 6, slots)
        buffers = dispatch(x)
        out = combine(jnp.tanh(jnp.einsum("GECM,EMN->GECN", buffers, w)))
        return jnp.sum(out**2), (routing, buffers, out)

    both = [
        jax.value_and_grad(lambda *a, m=m: run(m, *a), argnums=(0, 1, 2), has_aux=True)(x, gates, w)
        for m in (moe.by_einsum, moe.by_sort)
    ]
    (value_a, (routing_a, *rest_a)), grads_a = both[0]
    (value_b, (routing_b, *rest_b)), grads_b = both[1]
    assert_array_equal(routing_a.kept_GSK, routing_b.kept_GSK)
    assert_array_equal(routing_a.slot_GSK * routing_a.kept_GSK, routing_b.slot_GSK * routing_b.kept_GSK)
    jax.tree.map(
        lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12),
        (value_a, rest_a, grads_a),
        (value_b, rest_b, grads_b),
    )
    assert choice.wanted_GSK.sum() > routing_a.kept_GSK.sum() or slots == 32


def test_no_slot_is_used_twice():
    """Every (group, expert, slot) holds at most one choice, and slots are filled from 0 without gaps."""
    gates = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 40, 5)))
    choice = moe.top2_gating(gates, jnp.ones((2, 40), bool), jax.random.key(1))
    routing = moe.by_sort(choice, 5, 9)[0]
    for g in range(2):
        taken = [
            (int(e), int(s))
            for e, s, k in zip(
                *(np.ravel(x[g]) for x in (routing.expert_GSK, routing.slot_GSK, routing.kept_GSK)), strict=True
            )
            if k
        ]
        assert len(taken) == len(set(taken))
        for expert in range(5):
            mine = sorted(s for e, s in taken if e == expert)
            assert mine == list(range(len(mine)))
