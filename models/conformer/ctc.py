"""Connectionist temporal classification (Graves et al. 2006): the loss by optax, greedy and prefix-beam decoding.

B rows, S positions, L tokens, U utterances of all rows, V vocabulary; id 0 is the blank.
"""

import jax
import jax.numpy as jnp
import optax

from models.parts.decoding import NEVER
from models.parts.losses import Loss, Ratio, Totals, per

BLANK = 0


def aligned(x_BSX: jax.Array, segments_BS: jax.Array, utterances: int) -> tuple[jax.Array, jax.Array]:
    """Returns (each utterance of each row in a row of its own, from its start on [B * K, S, X]; True where it is real).

    Args:
      utterances: K, the most of a row.
    """
    length = segments_BS.shape[1]
    index_S = jnp.arange(length)
    numbers_K = jnp.arange(1, utterances + 1)
    mine_BKS = segments_BS[:, None] == numbers_K[:, None]
    start_BK1 = jnp.argmax(mine_BKS, axis=-1)[..., None]
    count_BK1 = jnp.sum(mine_BKS, axis=-1)[..., None]
    real_BKS = index_S < count_BK1
    if utterances == 1:  # which may begin nowhere else
        return x_BSX, mine_BKS[:, 0]
    place_BKS = jnp.minimum(start_BK1 + index_S, length - 1)
    moved = jnp.take_along_axis(x_BSX[:, None], place_BKS.reshape(*place_BKS.shape, *([1] * (x_BSX.ndim - 2))), axis=2)
    return moved.reshape(-1, *moved.shape[2:]), real_BKS.reshape(-1, length)


def ctc_loss(
    logits_BSV: jax.Array,
    segments_BS: jax.Array,
    targets_BL: jax.Array,
    target_segments_BL: jax.Array,
    utterances: int,
    totals: Totals,
) -> Loss:
    """Returns the negative log-likelihood of texts a token, over the whole batch's.

    An utterance whose text cannot be aligned, with fewer positions than tokens and repetitions, counts nothing and is counted as
    "impossible".
    """
    logits_BSV = logits_BSV.astype(jnp.promote_types(logits_BSV.dtype, jnp.float32))
    logits_USV, real_US = aligned(logits_BSV, segments_BS, utterances)
    targets_UL, given_UL = aligned(targets_BL, target_segments_BL, utterances)
    repeats_U = jnp.sum((targets_UL[:, 1:] == targets_UL[:, :-1]) & given_UL[:, 1:], axis=1)
    length_U, spoken_U = jnp.sum(real_US, axis=1), jnp.sum(given_UL, axis=1)
    possible_U = length_U >= spoken_U + repeats_U
    used_U = possible_U & (spoken_U > 0)
    wide = logits_USV.dtype
    paddings = 1 - real_US.astype(wide), 1 - (given_UL & used_U[:, None]).astype(wide)
    loss_U = optax.ctc_loss(logits_USV, paddings[0], targets_UL, paddings[1], blank_id=BLANK)
    loss_U = jnp.where(used_U, loss_U, 0)
    tokens = jnp.sum(jnp.where(used_U, spoken_U, 0))
    metrics = {
        "ctc": Ratio(jnp.sum(loss_U), tokens),
        "impossible": Ratio(jnp.sum(~possible_U).astype(wide), jnp.sum(spoken_U > 0)),
    }
    value = per(jnp.sum(loss_U), totals["tokens"])
    return Loss(value, jnp.zeros_like(value), metrics)


def greedy(logits_BSV: jax.Array, real_BS: jax.Array) -> jax.Array:
    """Returns the likeliest id of each position, repetitions and blanks left out, int32 [B, S] with 0 behind them."""
    best_BS = jnp.where(real_BS, jnp.argmax(logits_BSV, axis=-1), BLANK)
    before_BS = jnp.pad(best_BS, ((0, 0), (1, 0)))[:, :-1]
    kept_BS = (best_BS != BLANK) & (best_BS != before_BS)
    order_BS = jnp.argsort(~kept_BS, axis=1, stable=True)
    return jnp.take_along_axis(jnp.where(kept_BS, best_BS, 0), order_BS, axis=1).astype(jnp.int32)


def beam_search(logits_BSV: jax.Array, real_BS: jax.Array, beams: int) -> jax.Array:
    """Returns the likeliest text of each row by prefix beam search (Hannun et al. 2014), int32 [B, S] with 0 behind it.

    A prefix's likelihood is the sum over alignments that end in a blank and over those that end in its last id. Each of the K
    prefixes goes on with its K likeliest ids; prefixes that become equal are one.
    """
    length, vocab = logits_BSV.shape[1:]
    k, most = beams, min(beams, vocab - 1)
    logp_BSV = jax.nn.log_softmax(logits_BSV.astype(jnp.promote_types(logits_BSV.dtype, jnp.float32)))

    def row(logp_SV: jax.Array, real_S: jax.Array) -> jax.Array:
        def advance(state, inputs):
            ids_KS, size_K, blank_K, label_K = state
            logp_V, real = inputs
            total_K = jnp.logaddexp(blank_K, label_K)
            last_K = jnp.where(size_K > 0, jnp.take_along_axis(ids_KS, jnp.maximum(size_K - 1, 0)[:, None], 1)[:, 0], -1)
            # Each prefix as it is.
            stay_blank_K = total_K + logp_V[BLANK]
            stay_label_K = jnp.where(size_K > 0, label_K + logp_V[jnp.maximum(last_K, 0)], NEVER)
            # Each with one more id; the same id again only behind a blank.
            best_C, choice_C = jax.lax.top_k(logp_V.at[BLANK].set(NEVER), most)
            base_KC = jnp.where(choice_C == last_K[:, None], blank_K[:, None], total_K[:, None])
            grown_KC = base_KC + best_C
            longer_KCS = jnp.where(
                jnp.arange(length) == size_K[:, None, None],
                choice_C[:, None],
                jnp.broadcast_to(ids_KS[:, None], (k, most, length)),
            )
            # A longer prefix that is another's own is added to it.
            same_KCK = jnp.all(longer_KCS[:, :, None] == ids_KS, axis=-1) & (size_K[:, None, None] + 1 == size_K)
            added_K = jax.nn.logsumexp(jnp.where(same_KCK, grown_KC[..., None], NEVER).reshape(-1, k), axis=0)
            stay_label_K = jnp.logaddexp(stay_label_K, added_K)
            grown_KC = jnp.where(jnp.any(same_KCK, axis=-1), NEVER, grown_KC)
            blank_X = jnp.concatenate([stay_blank_K, jnp.full(k * most, NEVER)])
            label_X = jnp.concatenate([stay_label_K, grown_KC.reshape(-1)])
            ids_XS = jnp.concatenate([ids_KS, longer_KCS.reshape(-1, length)])
            size_X = jnp.concatenate([size_K, jnp.repeat(size_K + 1, most)])
            _, kept_K = jax.lax.top_k(jnp.logaddexp(blank_X, label_X), k)
            new = ids_XS[kept_K], size_X[kept_K], blank_X[kept_K], label_X[kept_K]
            return jax.tree.map(lambda a, b: jnp.where(real, a, b), new, state), None

        empty = jnp.zeros((k, length), jnp.int32), jnp.zeros(k, jnp.int32)
        likely = jnp.where(jnp.arange(k) == 0, 0.0, NEVER).astype(logp_SV.dtype), jnp.full(k, NEVER, logp_SV.dtype)
        (ids_KS, _, blank_K, label_K), _ = jax.lax.scan(advance, (*empty, *likely), (logp_SV, real_S))
        return ids_KS[jnp.argmax(jnp.logaddexp(blank_K, label_K))]

    return jax.vmap(row)(logp_BSV, real_BS)
