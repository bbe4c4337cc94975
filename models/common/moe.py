"""Mixture of experts as pure functions, in GShard's alphabet (arXiv 2006.16668, section 2.2 and Algorithm 1).

G groups, S tokens of a group, E experts, C slots of an expert per group (capacity), M model, H hidden, K choices.

A gating gives each token K (expert, gate) pairs; `assign_slots` places them in the experts' buffers, all first choices of
a group before any second one, and drops what does not fit; dispatch and combine move tokens there and back. These
exist twice, equal value for value: by einsum over one-hot masks, which is the paper's algorithm and the oracle of the
tests, and by sorting and gathering, which costs no FLOPs (the einsum costs S / H of the experts' own).

Conventions, where codebases differ silently:

| question | here | elsewhere |
| --- | --- | --- |
| does the capacity factor include K? | yes: C = factor * S / E, factor 2 for top-2 (the paper's C = 2S/E) | Flaxformer: no |
| is C rounded? | no | Praxis: up to a multiple of 4 |
| gates normalised before or after dropping? | before (Lingvo `legacy_mtf_behavior`) | Praxis: before, but see next row |
| second expert dropped at random? | kept if gate / 0.5 > uniform(0, 1), gate normalised | Praxis: threshold 0, so never dropped |
| which choices feed the balance loss? | first choices | Flaxformer: any of the K |
| scale of the balance loss | 1 when balanced (mean over E of c m, times E squared), weight 0.01 | Praxis: weight 1 |
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from models.common.loss import Ratio
from models.common.sharding import Component


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choice:
    """Which experts each token wants, best first.

    Attributes:
      expert_GSK: int32 expert numbers.
      gate_GSK: float32 weights of their outputs, normalised over K.
      wanted_GSK: bool; False for padding and for second experts dropped at random.
    """

    expert_GSK: jax.Array
    gate_GSK: jax.Array
    wanted_GSK: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routing:
    """A Choice with places: expert, slot in its buffer (int32), and whether it was placed at all."""

    expert_GSK: jax.Array
    slot_GSK: jax.Array
    gate_GSK: jax.Array
    kept_GSK: jax.Array


def capacity(factor: float, group_size: int, experts: int) -> int:
    """Slots per expert and group: factor * S / E, never rounded up to a convenient multiple; at least 1."""
    return max(1, int(factor * group_size / experts))


def top2_gating(probs_GSE: jax.Array, mask_GS: jax.Array, key: jax.Array | None, threshold: float = 0.5) -> Choice:
    """GShard's top-2 gating (Algorithm 1): the gates of the two best experts, normalised to sum to one.

    Args:
      probs_GSE: float32 softmax of the router over experts.
      mask_GS: True for real tokens; padding is never routed.
      key: drops second experts at random: kept with probability min(1, gate / threshold). None keeps them all.
    """
    first_GS = jnp.argmax(probs_GSE, axis=-1)
    is_first_GSE = first_GS[..., None] == jnp.arange(probs_GSE.shape[-1])
    second_GS = jnp.argmax(jnp.where(is_first_GSE, -1.0, probs_GSE), axis=-1)
    expert_GSK = jnp.stack([first_GS, second_GS], axis=-1).astype(jnp.int32)
    gate_GSK = jnp.take_along_axis(probs_GSE, expert_GSK, axis=-1)
    gate_GSK = gate_GSK / jnp.maximum(jnp.sum(gate_GSK, axis=-1, keepdims=True), 1e-9)
    keep_GS = mask_GS
    if key is not None:
        # Integers, not floats: the draw is the same in float32 and float64 runs.
        uniform_GS = jax.random.bits(key, mask_GS.shape, jnp.uint32).astype(jnp.float32) * 2.0**-32
        keep_GS &= gate_GSK[..., 1] > threshold * uniform_GS
    return Choice(expert_GSK, gate_GSK, jnp.stack([mask_GS, keep_GS], axis=-1))


# --- slots -------------------------------------------------------------------------------------------------------


def slots_by_cumsum(choice: Choice, experts: int) -> jax.Array:
    """Slot [G, S, K] of each wanted choice: how many wanted choices of its expert come before it.

    All first choices of the group come before any second choice (GShard, Algorithm 1, lines 8 to 14).
    """
    wants_GKSE = jax.nn.one_hot(choice.expert_GSK, experts, dtype=jnp.int32) * choice.wanted_GSK[..., None]
    wants_GKSE = wants_GKSE.swapaxes(1, 2)
    groups, k, size, _ = wants_GKSE.shape
    wants_GNE = wants_GKSE.reshape(groups, k * size, experts)
    before_GNE = jnp.cumsum(wants_GNE, axis=1) - wants_GNE
    return jnp.sum(before_GNE * wants_GNE, axis=-1).reshape(groups, k, size).swapaxes(1, 2)


def slots_by_sort(choice: Choice, experts: int) -> jax.Array:
    """Equal to `slots_by_cumsum` on wanted choices, in O(S K log S K) instead of O(S K E)."""
    groups, size, k = choice.expert_GSK.shape
    expert_GSK = jnp.where(choice.wanted_GSK, choice.expert_GSK, experts)
    expert_GN = expert_GSK.swapaxes(1, 2).reshape(groups, k * size)

    def slots(expert_N):
        order_N = jnp.argsort(expert_N, stable=True)
        sorted_N = expert_N[order_N]
        at_N = jnp.arange(k * size)
        is_start_N = sorted_N != jnp.roll(sorted_N, 1)
        start_N = jax.lax.cummax(jnp.where(is_start_N, at_N, 0))  # where the run of this expert begins
        return jnp.zeros_like(at_N).at[order_N].set(at_N - start_N, unique_indices=True)

    return jax.vmap(slots)(expert_GN).reshape(groups, k, size).swapaxes(1, 2).astype(jnp.int32)


def assign_slots(choice: Choice, slot_GSK: jax.Array, slots: int) -> Routing:
    """Places wanted choices into buffers of `slots` places per expert and group; what comes late is dropped."""
    kept_GSK = choice.wanted_GSK & (slot_GSK < slots)
    return Routing(choice.expert_GSK, slot_GSK, choice.gate_GSK, kept_GSK)


# --- dispatch and combine -----------------------------------------------------------------------------------------

Dispatch = Callable[[jax.Array], jax.Array]  # x_GSM -> buffer_GECM, the experts' buffers, empty slots zero
Combine = Callable[[jax.Array], jax.Array]  # y_GECM -> y_GSM, the gated sum of what a token's experts returned


def by_einsum(choice: Choice, experts: int, slots: int) -> tuple[Routing, Dispatch, Combine]:
    """The paper's: products with one-hot masks [G, S, E, C]."""
    routing = assign_slots(choice, slots_by_cumsum(choice, experts), slots)

    def mask(weight_GSK, dtype):
        expert_GSKE = jax.nn.one_hot(routing.expert_GSK, experts, dtype=dtype) * weight_GSK[..., None].astype(dtype)
        slot_GSKC = jax.nn.one_hot(routing.slot_GSK, slots, dtype=dtype)
        return jnp.einsum("GSKE,GSKC->GSEC", expert_GSKE, slot_GSKC)

    def dispatch(x_GSM):
        return jnp.einsum("GSEC,GSM->GECM", mask(routing.kept_GSK, x_GSM.dtype), x_GSM)

    def combine(y_GECM):
        combine_GSEC = mask(routing.gate_GSK * routing.kept_GSK, y_GECM.dtype)
        return jnp.einsum("GSEC,GECM->GSM", combine_GSEC, y_GECM)

    return routing, dispatch, combine


def by_sort(choice: Choice, experts: int, slots: int) -> tuple[Routing, Dispatch, Combine]:
    """Equal to `by_einsum` without its FLOPs: sort the choices by expert, then gather rows, forward and backward."""
    routing = assign_slots(choice, slots_by_sort(choice, experts), slots)
    groups, size, k = choice.expert_GSK.shape
    places = experts * slots
    # The assignment in both directions: where choice s * K + k lies (`places` if dropped), and which choice lies at a
    # place (S * K if it is empty).
    place_GJ = jnp.where(routing.kept_GSK, routing.expert_GSK * slots + routing.slot_GSK, places)
    place_GJ = place_GJ.reshape(groups, size * k)

    def invert(place_J):
        empty_P = jnp.full(places, size * k, jnp.int32)
        return empty_P.at[place_J].set(jnp.arange(size * k, dtype=jnp.int32), mode="drop")

    choice_GP = jax.vmap(invert)(place_GJ)

    def dispatch(x_GSM):
        # choice // K is the token; an empty place gives S, out of range, hence a zero row.
        buffer_GPM = _gather_rows(x_GSM, choice_GP // k, place_GJ.reshape(groups, size, k))
        return buffer_GPM.reshape(groups, experts, slots, -1)

    def combine(y_GECM):
        y_GPM = y_GECM.reshape(groups, places, -1)
        y_GSKM = _gather_rows(y_GPM, place_GJ, choice_GP[..., None]).reshape(groups, size, k, -1)
        gate_GSK = (routing.gate_GSK * routing.kept_GSK).astype(y_GECM.dtype)
        return jnp.einsum("GSKM,GSK->GSM", y_GSKM, gate_GSK)

    return routing, dispatch, combine


@jax.custom_vjp
def _gather_rows(x_GRM: jax.Array, index_GO: jax.Array, readers_GRJ: jax.Array) -> jax.Array:
    """Rows x[index] of each group, zero where the index is R (out of range).

    Its gradient is a gather too, not a scatter-add: readers_GRJ lists the at most J outputs that read each row of x
    (O, out of range, where there are fewer).
    """
    del readers_GRJ
    return jnp.take_along_axis(x_GRM, index_GO[..., None], axis=1, mode="fill", fill_value=0)


def _gather_rows_fwd(x_GRM, index_GO, readers_GRJ):
    return _gather_rows(x_GRM, index_GO, readers_GRJ), readers_GRJ


def _gather_rows_bwd(readers_GRJ, dy_GOM):
    groups, rows, j = readers_GRJ.shape
    flat = readers_GRJ.reshape(groups, rows * j, 1)
    dy_GRJM = jnp.take_along_axis(dy_GOM, flat, axis=1, mode="fill", fill_value=0).reshape(groups, rows, j, -1)
    return jnp.sum(dy_GRJM, axis=2), None, None


_gather_rows.defvjp(_gather_rows_fwd, _gather_rows_bwd)

DISPATCH = {"einsum": by_einsum, "sort": by_sort}


# --- losses and counts --------------------------------------------------------------------------------------------


def balance_loss(probs_GSE: jax.Array, choice: Choice, mask_GS: jax.Array) -> jax.Array:
    """GShard's auxiliary loss (section 2.2, eq. 3) in Lingvo's scale, summed over real tokens: 1 a token when the experts
    are evenly loaded.

    E * sum over e of c_e / n * m_e, with c_e the group's first choices of expert e, m_e its mean gate and n the group's
    real tokens; the sum over groups, each weighted by n so that padding weighs nothing.
    """
    experts = probs_GSE.shape[-1]
    real_GS1 = mask_GS[..., None].astype(probs_GSE.dtype)
    tokens_G1 = jnp.sum(real_GS1, axis=1)
    first_GSE = jax.nn.one_hot(choice.expert_GSK[..., 0], experts, dtype=probs_GSE.dtype) * real_GS1
    share_GE = jnp.sum(first_GSE, axis=1) / jnp.maximum(tokens_G1, 1)
    gate_GE = jnp.sum(probs_GSE * real_GS1, axis=1) / jnp.maximum(tokens_G1, 1)
    loss_G = experts * jnp.sum(share_GE * gate_GE, axis=-1)
    return jnp.sum(loss_G * tokens_G1[:, 0])


def counts(probs_GSE: jax.Array, choice: Choice, routing: Routing, mask_GS: jax.Array) -> dict[str, Ratio]:
    """What happened to the tokens, in float32; shares are of real tokens.

    Keys: `load` [E], tokens served per expert over the mean (1 = balanced); `dropped`, wanted choices that found no slot
    over all wanted; `experts_0`, `experts_1`, `experts_2`, tokens served by so many experts; `router_entropy` in nats.
    """
    experts = probs_GSE.shape[-1]
    real_GS = mask_GS.astype(jnp.float32)
    tokens = jnp.sum(real_GS)
    kept_GSK = routing.kept_GSK.astype(jnp.float32)
    served_E = jnp.einsum("GSK,GSKE->E", kept_GSK, jax.nn.one_hot(routing.expert_GSK, experts))
    wanted = jnp.sum(choice.wanted_GSK, dtype=jnp.float32)
    by_token_GS = jnp.sum(kept_GSK, axis=-1)
    entropy_GS = -jnp.sum(probs_GSE * jnp.log(probs_GSE + 1e-9), axis=-1).astype(jnp.float32)
    return {
        "load": Ratio(served_E * experts, jnp.sum(served_E)),
        "dropped": Ratio(wanted - jnp.sum(kept_GSK), wanted),
        **{f"experts_{n}": Ratio(jnp.sum((by_token_GS == n) * real_GS), tokens) for n in (0, 1, 2)},
        "router_entropy": Ratio(jnp.sum(entropy_GS * real_GS), tokens),
    }


# --- the exchange between groups and experts ----------------------------------------------------------------------


def to_experts(buffer_GECM: jax.Array, where: Component) -> jax.Array:
    """[E, G, C, M], cut by expert, from buffers cut by group: an all-to-all in the compiled program."""
    buffer_GECM = where.shard(buffer_GECM, "group", None, None, "act_embed")
    return where.shard(buffer_GECM.swapaxes(0, 1), "act_expert", "expert_group", None, "act_embed")


def from_experts(y_EGCM: jax.Array, where: Component) -> jax.Array:
    """[G, E, C, M], cut by group, from the experts' outputs: the all-to-all back."""
    y_EGCM = where.shard(y_EGCM, "act_expert", "expert_group", None, "act_embed")
    return where.shard(y_EGCM.swapaxes(0, 1), "group", None, None, "act_embed")
