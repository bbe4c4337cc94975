"""Attention by whole rows or, in long causal rows, by blocks of queries, with a gradient of its own.

B batch, L queries, S keys, N heads, G heads of keys and values, D size of a head.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from models.parts.attention.logits import product
from models.parts.attention.mask import AttentionMask
from models.parts.layers import draw_seeds, dropped
from models.sharding.component import Component

BLOCK = 256  # queries


def attend(
    logits: Callable[..., jax.Array],
    q_BLND: jax.Array,
    k_BSGD: jax.Array,
    v_BSGD: jax.Array,
    table: Any,
    mask: AttentionMask,
    scope: Component,
    *,
    rate: float = 0.0,
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns (softmax(logits) v [B, L, N, D] in v's dtype, log of the sum of the exponentials of logits [B, N, L]).

    Args:
      logits: (q_BLND, k_BSGD, table, mask) -> masked logits [B, N, L, S], in float32 at least.
      table: what else the logits depend on, or None.
      scope: the component, whose mesh and layout decide about blocks.
      rate: of dropout on probabilities, without a key none.
    """
    parts, length, keys, seeds = [], q_BLND.shape[1], k_BSGD.shape[1], None
    if key is not None and rate > 0:
        seeds = draw_seeds(key, (q_BLND.shape[0], q_BLND.shape[2], length))
    for start, end, seen in blocks(length, keys, mask, scope):
        part_BNLS = logits(q_BLND[:, start:end], k_BSGD[:, :seen], table, mask.part(start, end, seen))
        kept_BNLS = None
        if seeds is not None:  # by query, so that blocks of any size draw the same
            of_part = seeds[0][:, :, start:end], seeds[1]
            kept_BNLS = dropped(jnp.ones_like(part_BNLS, q_BLND.dtype), rate, of_part)
        parts.append(softmax_mix(part_BNLS, v_BSGD[:, :seen], kept_BNLS))
    return jnp.concatenate([y for y, _ in parts], axis=1), jnp.concatenate([mass for _, mass in parts], axis=2)


def blocks(length: int, keys: int, mask: AttentionMask, scope: Component) -> list[tuple[int, int, int]]:
    """Returns (first query, the query after the last, how many keys they see at most) of each block of a row.

    Long causal rows are taken in blocks: the keys after a block's last query are never multiplied, nearly half of them. CPUs and
    GPUs multiply smaller blocks just as fast, so there a row is split into at least four. Without a mesh rows are whole: that is
    the mathematics, whose FLOPs are counted (trainers/hlo/model_flops.py).
    """
    block = BLOCK if scope.on_tpu else min(BLOCK, length // 4)
    in_blocks = length >= BLOCK and length == keys and mask.causal and mask.in_order
    if not in_blocks or length % block or scope.num_shards("length") > 1 or scope.mesh is None:
        return [(0, length, keys)]
    return [(start, start + block, start + block) for start in range(0, length, block)]


@jax.custom_vjp
def softmax_mix(logits_BNLS: jax.Array, v_BSGD: jax.Array, kept_BNLS: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Returns (softmax(logits) v [B, L, N, D] in v's dtype, log of the sum of exponentials [B, N, L]).

    `kept` are factors of the probabilities, or None.

    It is normalised after mixing, where [L, D] elements are divided and not [L, S]; the gradient's sum over keys is one over D
    as well (FlashAttention, arXiv 2205.14135, appendix B.2). Differentiation would take half as long again on CPUs.
    """
    return _softmax_mix_fwd(logits_BNLS, v_BSGD, kept_BNLS)[0]


def _softmax_mix_fwd(logits_BNLS: jax.Array, v_BSGD: jax.Array, kept_BNLS: jax.Array | None) -> tuple[Any, Any]:
    v_BGSD, wide = v_BSGD.swapaxes(1, 2), logits_BNLS.dtype
    top_BNL1 = jnp.max(logits_BNLS, axis=-1, keepdims=True)
    mass_BNLS = jnp.exp(logits_BNLS - top_BNL1)
    total_BNL1 = jnp.sum(mass_BNLS, axis=-1, keepdims=True)
    mass_BNLS = mass_BNLS.astype(v_BSGD.dtype)
    used_BNLS = mass_BNLS if kept_BNLS is None else mass_BNLS * kept_BNLS
    mixed_BNLD = product("BGHLS,BGSD->BGHLD", v_BGSD.shape[1], used_BNLS, v_BGSD, wide)
    out_BNLD = (mixed_BNLD / total_BNL1).astype(v_BSGD.dtype)
    log_mass_BNL = (top_BNL1 + jnp.log(total_BNL1))[..., 0]
    return (out_BNLD.swapaxes(1, 2), log_mass_BNL), (mass_BNLS, total_BNL1, v_BGSD, kept_BNLS, out_BNLD)


def _softmax_mix_bwd(saved: Any, grads: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, None]:
    mass_BNLS, total_BNL1, v_BGSD, kept_BNLS, out_BNLD = saved
    grad_BLND, grad_BNL = grads
    wide, groups = total_BNL1.dtype, v_BGSD.shape[1]
    grad_BNLD = grad_BLND.swapaxes(1, 2).astype(wide) / total_BNL1
    along_BNL1 = jnp.sum(grad_BNLD * out_BNLD.astype(wide), axis=-1, keepdims=True) - grad_BNL[..., None] / total_BNL1
    grad_BNLD = grad_BNLD.astype(v_BGSD.dtype)
    used_BNLS = mass_BNLS if kept_BNLS is None else mass_BNLS * kept_BNLS
    grad_v_BGSD = product("BGHLS,BGHLD->BGSD", groups, used_BNLS, grad_BNLD)
    grad_BNLS = product("BGHLD,BGSD->BGHLS", groups, grad_BNLD, v_BGSD, wide)
    if kept_BNLS is not None:
        grad_BNLS *= kept_BNLS.astype(wide)
    return mass_BNLS.astype(wide) * (grad_BNLS - along_BNL1), grad_v_BGSD.swapaxes(1, 2), None


softmax_mix.defvjp(_softmax_mix_fwd, _softmax_mix_bwd)
