"""Mixture of experts as pure functions, in GShard's alphabet: which tokens go to which experts.

G groups, S tokens of a group, E experts, C slots of an expert per group (capacity), M model, K choices of a token, N
assignments of a group: S * K where tokens choose experts, E * C where experts choose tokens.

A gating says which experts a token asks for; with slots in the experts' buffers it becomes a `Routing`, which
models/parts/moe/dispatch.py carries out. Padding is never routed and never counts. What each paper does, and so do we:

| | "top2" | "top1" | "expert_choice" |
| --- | --- | --- | --- |
| paper | GShard, 2006.16668, Algorithm 1 | Switch Transformer, 2101.03961, 2.1-2.4 | Expert Choice, 2202.09368, 3.2 |
| who chooses | a token its 2 best experts | a token its best expert | an expert its C best tokens |
| gate | the 2 probabilities over their sum | the probability | the probability |
| C = factor * S / E; the factor | 2, both choices included | 1 to 1.25 | 2, experts of a token on average; also in evaluation |
| a full expert | drops second choices, then late tokens | drops late tokens | takes no more; a token may get none |
| at random, in training | a second expert of small gate is not asked | router inputs jittered (`jitter`) | nothing |
| balance loss, its weight | first choices, 0.01 | the same, 0.01 | none: balanced by construction |
| causal | while nothing is dropped | yes | no: who is chosen depends on later tokens |

"top_k" (V-MoE, arXiv 2106.05974, section 2) is as "top1" with k choices, none of which is at random. Its router's logits are
noisy in training instead, its factor is 1.05 k, and its losses are importance and load, 0.005 each. Released decoders
are "top_k", dropless, and nothing of them is random:

| | score | gates | bias | shared expert |
| --- | --- | --- | --- | --- |
| Mixtral, 2401.04088 | softmax | over their sum (`normalized`) | none | none |
| Qwen2-MoE, OLMoE (2409.02060) | softmax | as they are | none | Qwen2: gated |
| Qwen3-MoE | softmax | over their sum | none | none |
| gpt-oss | softmax | over their sum: softmax over the chosen logits | of the logits | none |
| DeepSeek-V3, 2412.19437 | sigmoid | over their sum + 1e-20, times 2.5 | of the choice; moved by loads (`correction`) | ungated |

A factor of 0 is dropless: as many slots as a group has tokens, so that every choice is served. Where codebases differ silently:

| question | here | elsewhere |
| --- | --- | --- |
| does the capacity factor include K? | yes: C = factor * S / E, factor 2 for top-2 (the paper's C = 2S/E) | Flaxformer: no |
| is C rounded? | down; `Capacity.multiple` rounds up | Praxis, V-MoE: up to a multiple of 4 |
| does padding make buffers larger? | yes: S counts it, as C must be known before the batch is | |
| gates normalised before or after dropping? | before (Lingvo `legacy_mtf_behavior`) | Praxis: before, but see next row |
| second expert dropped at random? | kept if gate / 0.5 > uniform(0, 1), gate normalised | Praxis: threshold 0, so never dropped |
| does one that is dropped so take a slot? | no (Lingvo); with `second_slot="always"` yes | GShard, Algorithm 1: yes |
| which choices feed the balance loss? | first ones, per group and layer | Flaxformer: any of the K |
| ... with balance "pooled" | all K, of all groups and layers together; K when balanced | `transformers`: so, weight 0.001 |
| scale of the balance loss | 1 when balanced (mean over E of c m, times E squared), weight 0.01 | Praxis: weight 1 |
| router z-loss | a mean over real tokens, summed over layers as the balance loss is; off, as in GShard | ST-MoE: weight 0.001 |
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from models.parts.losses import Ratio
from models.parts.moe.config import AnyRouter, ExpertChoice, Top1, Top2, TopK


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RouterIndices:
    """The experts that each token asks for, best first.

    Attributes:
      expert_GSK: int32 expert numbers.
      gate_GSK: float32 weights of their outputs.
      requested_GSK: bool; False for padding and for second experts dropped at random.
    """

    expert_GSK: jax.Array
    gate_GSK: jax.Array
    requested_GSK: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routing:
    """Assignments of tokens to slots of experts, N per group.

    Attributes:
      token_GN, expert_GN, slot_GN: int32; what is dispatched fills an expert's slots from 0 without gaps.
      gate_GN: float32 weights of the experts' outputs.
      requested_GN: bool; False for padding and for second experts dropped at random.
      dispatch_mask_GN: bool; the requested assignments that have a slot.
      choices: K, and assignment s * K + k is the k-th choice of token s; 0 where experts choose, assignment e * C + c is the
        c-th token of expert e, and a token may have any number of experts.
    """

    token_GN: jax.Array
    expert_GN: jax.Array
    slot_GN: jax.Array
    gate_GN: jax.Array
    requested_GN: jax.Array
    dispatch_mask_GN: jax.Array
    choices: int = dataclasses.field(metadata={"static": True})


def capacity(factor: float, group_size: int, experts: int, least: int = 1, multiple: int = 0) -> int:
    """Returns the slots per expert and group: factor * S / E, rounded down to no convenient multiple, or up to one of `multiple`;
    from `least` to S, for factor 0 S."""
    if not factor:
        return group_size
    slots = factor * group_size / experts
    slots = math.ceil(math.ceil(slots) / multiple) * multiple if multiple else int(slots)
    return min(max(least, slots), group_size)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns draws of float32 in [0, 1], from integers: the draw is the same in float32 and float64 runs."""
    return jax.random.bits(key, shape, jnp.uint32).astype(jnp.float32) * 2.0**-32


def gaussian(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns draws of a normal distribution in float32, from integers as `uniform` does."""
    return jax.scipy.special.ndtri(jnp.clip(uniform(key, shape), 2.0**-25, 1 - 2.0**-25))


def jitter(x: jax.Array, width: float, key: jax.Array | None) -> jax.Array:
    """Returns x times noise in [1 - width, 1 + width], for the router's inputs (Switch Transformer's); x itself without a key."""
    if key is None or not width:
        return x
    return x * (1 + width * (2 * uniform(key, x.shape) - 1)).astype(x.dtype)


# --- gatings ------------------------------------------------------------------------------------------------------


def top1_gating(probs_GSE: jax.Array, mask_GS: jax.Array) -> RouterIndices:
    """Returns Switch Transformer's choices (section 2.1): the best expert, weighted with its probability to train the router.

    Args:
      probs_GSE: float32 softmax of the router over experts.
      mask_GS: True for real tokens.
    """
    expert_GSK = jnp.argmax(probs_GSE, axis=-1)[..., None].astype(jnp.int32)
    return RouterIndices(expert_GSK, jnp.take_along_axis(probs_GSE, expert_GSK, axis=-1), mask_GS[..., None])


def top2_gating(probs_GSE: jax.Array, mask_GS: jax.Array, key: jax.Array | None, threshold: float = 0.5) -> RouterIndices:
    """Returns GShard's top-2 choices (Algorithm 1): the gates of the two best experts, normalised to sum to one.

    Args:
      probs_GSE: float32 softmax of the router over experts.
      mask_GS: True for real tokens; padding is never routed.
      key: drops second experts at random: kept with probability min(1, gate / threshold). None keeps them all.
    """
    first_GS = jnp.argmax(probs_GSE, axis=-1)
    is_first_GSE = first_GS[..., None] == jnp.arange(probs_GSE.shape[-1])
    second_GS = jnp.argmax(jnp.where(is_first_GSE, -1.0, probs_GSE), axis=-1)
    expert_GSK = jnp.stack([first_GS, second_GS], axis=-1).astype(jnp.int32)
    gate_GSK = scores_of(probs_GSE, expert_GSK)
    gate_GSK = gate_GSK / jnp.maximum(jnp.sum(gate_GSK, axis=-1, keepdims=True), 1e-9)
    keep_GS = mask_GS
    if key is not None:
        keep_GS &= gate_GSK[..., 1] > threshold * uniform(key, mask_GS.shape)
    return RouterIndices(expert_GSK, gate_GSK, jnp.stack([mask_GS, keep_GS], axis=-1))


def top_k_gating(router: TopK, scores_GSE: jax.Array, mask_GS: jax.Array, correction_E: jax.Array | None = None) -> RouterIndices:
    """Returns V-MoE's choices (arXiv 2106.05974, section 2): the best experts, weighted with their scores; or those of the
    decoders that do something else with them.

    Args:
      scores_GSE: float32 probabilities, or DeepSeek-V3's sigmoids.
      mask_GS: True for real tokens.
      correction_E: is added to scores where experts are chosen, not in the gates, and gets no gradient (DeepSeek-V3, eq. 16).
    """
    by_GSE = scores_GSE
    if correction_E is not None:
        by_GSE = scores_GSE + jax.lax.stop_gradient(correction_E).astype(scores_GSE.dtype)
    if router.groups is not None:  # DeepSeek-V3, section 2.1.2: node-limited routing
        by_GSE = jnp.where(best_groups(by_GSE, router.groups.count, router.groups.chosen), by_GSE, -jnp.inf)
    _, expert_GSK = jax.lax.top_k(jax.lax.stop_gradient(by_GSE), router.choices)
    gate_GSK = scores_of(scores_GSE, expert_GSK)
    if router.normalized:
        gate_GSK = gate_GSK / (jnp.sum(gate_GSK, axis=-1, keepdims=True) + 1e-20)
    gate_GSK = gate_GSK * router.scale if router.scale != 1 else gate_GSK
    requested_GSK = jnp.broadcast_to(mask_GS[..., None], gate_GSK.shape)
    return RouterIndices(expert_GSK.astype(jnp.int32), gate_GSK, requested_GSK)


def scores_of(scores_GSE: jax.Array, expert_GSK: jax.Array) -> jax.Array:
    """Returns the scores [G, S, K] of these experts: a sum over all, whose gradient is no scatter, which a TPU runs number by
    number."""
    is_of_GSKE = expert_GSK[..., None] == jnp.arange(scores_GSE.shape[-1])
    return jnp.sum(jnp.where(is_of_GSKE, scores_GSE[..., None, :], 0), axis=-1)


def best_groups(scores_GSE: jax.Array, groups: int, chosen: int) -> jax.Array:
    """Returns which experts are in the `chosen` groups of neighbours whose two best scores have the largest sums, [G, S, E]."""
    size = scores_GSE.shape[-1] // groups
    best_GSX2, _ = jax.lax.top_k(scores_GSE.reshape(*scores_GSE.shape[:-1], groups, size), min(size, 2))
    _, index_GSC = jax.lax.top_k(jnp.sum(best_GSX2, axis=-1), chosen)
    is_chosen_GSX = jnp.any(index_GSC[..., None] == jnp.arange(groups), axis=-2)
    return jnp.repeat(is_chosen_GSX, size, axis=-1)


def expert_choice(probs_GSE: jax.Array, mask_GS: jax.Array, slots: int) -> Routing:
    """Returns the routing of expert choice (arXiv 2202.09368, section 3.2): each expert takes the `slots` tokens with the largest
    probabilities, the earlier of equals, or all real tokens where they are fewer.
    """
    groups, _, experts = probs_GSE.shape
    probs_GES = probs_GSE.swapaxes(1, 2)
    score_GES = jnp.where(mask_GS[:, None, :], jax.lax.stop_gradient(probs_GES), -1.0)
    # A sort, not top_k: the compiler cuts it by group, top_k it runs on gathered scores.
    token_GEC = jnp.argsort(score_GES, axis=-1, stable=True, descending=True)[..., :slots].astype(jnp.int32)
    token_GN = token_GEC.reshape(groups, experts * slots)
    gate_GN = jnp.take_along_axis(probs_GES, token_GEC, axis=-1).reshape(groups, experts * slots)
    real_GN = jnp.take_along_axis(mask_GS, token_GN, axis=-1)
    place_N = jnp.arange(experts * slots, dtype=jnp.int32)
    expert_GN, slot_GN = (jnp.broadcast_to(i, token_GN.shape) for i in (place_N // slots, place_N % slots))
    return Routing(token_GN, expert_GN, slot_GN, gate_GN, real_GN, real_GN, 0)


def route(
    router: AnyRouter,
    scores_GSE: jax.Array,
    mask_GS: jax.Array,
    slots: int,
    key: jax.Array | None = None,
    *,
    correction_E: jax.Array | None = None,
    priority: bool = False,
) -> Routing:
    """Returns the routing of tokens by the router's scores.

    Args:
      key: drops second experts at random, see `top2_gating`.
      correction_E: see `top_k_gating`.
      priority: tokens with larger gates come first (Capacity.batch_priority); expert choice is so by itself.
    """
    match router:
        case ExpertChoice():
            return expert_choice(scores_GSE, mask_GS, slots)
        case Top1():
            indices = top1_gating(scores_GSE, mask_GS)
        case Top2():
            indices = top2_gating(scores_GSE, mask_GS, key, router.second_threshold)
        case TopK():
            indices = top_k_gating(router, scores_GSE, mask_GS, correction_E)
    find = functools.partial(find_slots, experts=scores_GSE.shape[-1], priority=priority)
    if not isinstance(router, Top2) or key is None or router.second_slot == "if_dispatched":
        return assign_slots(indices, find(indices), slots)
    every = dataclasses.replace(indices, requested_GSK=jnp.broadcast_to(mask_GS[..., None], indices.requested_GSK.shape))
    served_GSK = indices.requested_GSK & (find(every) < slots)
    # Those that are served then move up to slots without gaps.
    slot_GSK = find(dataclasses.replace(indices, requested_GSK=served_GSK))
    return assign_slots(indices, jnp.where(served_GSK, slot_GSK, slots), slots)


# --- slots -------------------------------------------------------------------------------------------------------


BLOCK = 128  # choices that are compared with each other pair by pair


def find_slots(indices: RouterIndices, experts: int, *, priority: bool = False) -> jax.Array:
    """Returns the slot [G, S, K] of each requested choice: how many of its expert's come before it.

    All first choices of the group come before any second choice (GShard, Algorithm 1, lines 8 to 14; there by a cumulative
    sum over [S * K, E], here within blocks by pairs and over blocks by sums [blocks, E]: nothing of size N * E is kept, and
    nothing sorted, which a TPU does slowly). Of equal rank the earlier token comes first, or with `priority` the one whose
    best gate is larger (V-MoE, arXiv 2106.05974, section 4.1).
    """
    if priority:
        order_GS1 = jnp.argsort(jnp.max(indices.gate_GSK, axis=-1), axis=-1, stable=True, descending=True)[..., None]
        in_order = jax.tree.map(lambda x: jnp.take_along_axis(x, order_GS1, axis=1), indices)
        place_GS1 = jnp.argsort(order_GS1, axis=1)
        return jnp.take_along_axis(find_slots(in_order, experts), place_GS1, axis=1)
    groups, size, k = indices.expert_GSK.shape
    expert_GSK = jnp.where(indices.requested_GSK, indices.expert_GSK, experts)
    expert_GN = expert_GSK.swapaxes(1, 2).reshape(groups, k * size)
    # Blocks of B choices, the last one filled up with those of no expert.
    expert_GN = jnp.pad(expert_GN, ((0, 0), (0, -(k * size) % BLOCK)), constant_values=experts)
    expert_GXB = expert_GN.reshape(groups, -1, BLOCK)
    earlier_BB = jnp.tril(jnp.ones((BLOCK, BLOCK), bool), -1)
    same_GXBB = expert_GXB[..., :, None] == expert_GXB[..., None, :]
    within_GXB = jnp.sum(same_GXBB & earlier_BB, axis=-1, dtype=jnp.int32)
    is_of_GXBE = expert_GXB[..., None] == jnp.arange(experts)
    count_GXE = jnp.sum(is_of_GXBE, axis=2, dtype=jnp.int32)
    before_GXE = jnp.cumsum(count_GXE, axis=1) - count_GXE
    slot_GXB = within_GXB + jnp.sum(jnp.where(is_of_GXBE, before_GXE[:, :, None], 0), axis=-1)
    return slot_GXB.reshape(groups, -1)[:, : k * size].reshape(groups, k, size).swapaxes(1, 2)


def assign_slots(indices: RouterIndices, slot_GSK: jax.Array, slots: int) -> Routing:
    """Places requested choices into buffers of `slots` places per expert and group; what comes late is dropped."""
    groups, size, k = indices.expert_GSK.shape
    dispatch_mask_GSK = indices.requested_GSK & (slot_GSK < slots)
    token_GSK = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32)[:, None], dispatch_mask_GSK.shape)
    flat = (
        x.reshape(groups, size * k)
        for x in (token_GSK, indices.expert_GSK, slot_GSK, indices.gate_GSK, indices.requested_GSK, dispatch_mask_GSK)
    )
    return Routing(*flat, choices=k)


# --- losses and counts --------------------------------------------------------------------------------------------


def balance_loss(probs_GSE: jax.Array, routing: Routing, mask_GS: jax.Array) -> jax.Array:
    """Returns the auxiliary loss of GShard (section 2.2, eq. 3) and Switch Transformer (eq. 4) in Lingvo's scale, summed over
    real tokens: 1 a token when the experts are evenly loaded; 0 where experts choose.

    E * sum over e of c_e / n * m_e, with c_e the group's first choices of expert e, m_e its mean gate and n the group's
    real tokens; the sum over groups, each weighted by n so that padding weighs nothing.
    """
    if not routing.choices:
        return jnp.zeros((), probs_GSE.dtype)
    experts = probs_GSE.shape[-1]
    real_GS1 = mask_GS[..., None].astype(probs_GSE.dtype)
    tokens_G1 = jnp.sum(real_GS1, axis=1)
    first_GS = routing.expert_GN[:, :: routing.choices]
    first_GSE = jax.nn.one_hot(first_GS, experts, dtype=probs_GSE.dtype) * real_GS1
    share_GE = jnp.sum(first_GSE, axis=1) / jnp.maximum(tokens_G1, 1)
    gate_GE = jnp.sum(probs_GSE * real_GS1, axis=1) / jnp.maximum(tokens_G1, 1)
    loss_G = experts * jnp.sum(share_GE * gate_GE, axis=-1)
    return jnp.sum(loss_G * tokens_G1[:, 0])


def pooled_load(scores_GSE: jax.Array, routing: Routing, mask_GS: jax.Array) -> dict[str, Ratio]:
    """Returns the sums of the pooled balance loss over real tokens: `requested` [E], choices of each expert, and `score` [E],
    their summed scores as shares of a token's."""
    experts, real_GS1 = scores_GSE.shape[-1], mask_GS[..., None].astype(scores_GSE.dtype)
    share_GSE = scores_GSE / jnp.sum(scores_GSE, axis=-1, keepdims=True)
    requested_GNE = jax.nn.one_hot(routing.expert_GN, experts, dtype=scores_GSE.dtype) * routing.requested_GN[..., None]
    tokens = jnp.sum(mask_GS)
    return {
        "requested": Ratio(jnp.sum(requested_GNE, axis=(0, 1)), tokens),
        "score": Ratio(jnp.sum(share_GSE * real_GS1, axis=(0, 1)), tokens),
    }


def pooled_balance_loss(requested: Ratio, score: Ratio) -> jax.Array:
    """Returns E * sum over e of f_e P_e, of all layers' tokens together (`load_balancing_loss_func` of `transformers`): K when
    experts are evenly loaded. f_e is how many choices of a token are expert e, P_e its mean score."""
    return len(requested.sum) * jnp.sum(requested.value * score.value)


def importance_loss(probs_GSE: jax.Array, mask_GS: jax.Array) -> jax.Array:
    """Returns V-MoE's importance loss (arXiv 2106.05974, appendix A.1): (std / mean)^2 over experts of their summed probabilities
    in a group. Each group counts as its real tokens do.

    Args:
      probs_GSE: softmax of the router's logits without noise.
    """
    real_GS = mask_GS.astype(probs_GSE.dtype)
    return jnp.sum(_variation(jnp.sum(probs_GSE * real_GS[..., None], axis=1)) * jnp.sum(real_GS, axis=1))


def load_loss(logits_GSE: jax.Array, noisy_GSE: jax.Array, std: float, choices: int, mask_GS: jax.Array) -> jax.Array:
    """Returns V-MoE's load loss (appendix A.2): (std / mean)^2 over experts of the number of tokens that would choose them if
    their own noise were drawn again, in expectation. Each group counts as its real tokens do.

    Args:
      logits_GSE: of the router, without noise.
      noisy_GSE: the same with noise of this standard deviation.
      choices: experts of a token; the least of its chosen noisy logits is what an expert must reach.
    """
    least_GS1 = jax.lax.top_k(noisy_GSE, choices)[0][..., -1:]
    chance_GSE = jax.scipy.stats.norm.cdf((logits_GSE - least_GS1) / std)
    real_GS = mask_GS.astype(logits_GSE.dtype)
    return jnp.sum(_variation(jnp.sum(chance_GSE * real_GS[..., None], axis=1)) * jnp.sum(real_GS, axis=1))


def _variation(load_GE: jax.Array) -> jax.Array:
    """Returns the squared coefficient of variation [G] over experts."""
    mean_G = jnp.mean(load_GE, axis=-1)
    return jnp.mean((load_GE - mean_G[:, None]) ** 2, axis=-1) / jnp.maximum(mean_G**2, 1e-12)


def z_loss(logits_GSE: jax.Array, mask_GS: jax.Array) -> jax.Array:
    """Returns the router z-loss of ST-MoE (arXiv 2202.08906, eq. 5), log(sum over e of exp x_e)^2, summed over real tokens.

    It keeps the router's logits x small, where their rounding errors are small too.
    """
    return jnp.sum(jnp.where(mask_GS, jax.nn.logsumexp(logits_GSE, axis=-1) ** 2, 0))


def per_expert(routing: Routing, experts: int) -> jax.Array:
    """Returns the number of assignments [G, E] that each expert serves, int32."""
    return jnp.sum(jax.nn.one_hot(routing.expert_GN, experts, dtype=jnp.int32) * routing.dispatch_mask_GN[..., None], axis=1)


def per_token(routing: Routing, size: int) -> jax.Array:
    """Returns the number of experts [G, S] that serve each token, int32."""
    served_GN = routing.dispatch_mask_GN.astype(jnp.int32)
    if routing.choices:
        return jnp.sum(served_GN.reshape(-1, size, routing.choices), axis=-1)
    return jax.vmap(lambda token_N, served_N: jnp.zeros(size, jnp.int32).at[token_N].add(served_N))(routing.token_GN, served_GN)


def correction(bias_E: jax.Array, routing: Routing) -> jax.Array:
    """Returns 0, whose gradient for the bias of the choice says how many choices each expert got more than the mean, times E.

    So the counts are added up as gradients are, however layers, microbatches and stages are spread. The optimizer has nothing to
    do with them: the bias moves by a fixed step against their signs (DeepSeek-V3, section 2.1.2).
    """
    one_hot_GNE = jax.nn.one_hot(routing.expert_GN, len(bias_E), dtype=jnp.int32)
    requested_E = jnp.sum(one_hot_GNE * routing.requested_GN[..., None], axis=(0, 1))
    excess_E = jax.lax.stop_gradient(len(bias_E) * requested_E - jnp.sum(requested_E)).astype(bias_E.dtype)
    return jnp.sum(excess_E * (bias_E - jax.lax.stop_gradient(bias_E)))


def counts(probs_GSE: jax.Array, routing: Routing, mask_GS: jax.Array) -> dict[str, Ratio]:
    """Returns statistics of the routing in float32; shares are of real tokens.

    Keys: `load` [E], tokens served per expert over the mean (1 = balanced); `dropped`, requested assignments without a slot
    over all requested; `experts_0`, `experts_1`, `experts_2`, tokens served by so many experts; `router_entropy` in nats.
    """
    experts, size = probs_GSE.shape[-1], probs_GSE.shape[1]
    real_GS = mask_GS.astype(jnp.float32)
    tokens = jnp.sum(real_GS)
    served_E = jnp.sum(per_expert(routing, experts), axis=0).astype(jnp.float32)
    requested, dispatched = (jnp.sum(x, dtype=jnp.float32) for x in (routing.requested_GN, routing.dispatch_mask_GN))
    by_token_GS = per_token(routing, size)
    entropy_GS = -jnp.sum(probs_GSE * jnp.log(probs_GSE + 1e-9), axis=-1).astype(jnp.float32)
    return {
        "load": Ratio(served_E * experts, dispatched),
        "dropped": Ratio(requested - dispatched, requested),
        **{f"experts_{n}": Ratio(jnp.sum((by_token_GS == n) * real_GS), tokens) for n in (0, 1, 2)},
        "router_entropy": Ratio(jnp.sum(entropy_GS * real_GS), tokens),
    }
