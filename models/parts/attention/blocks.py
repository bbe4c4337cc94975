"""Attention by whole rows, by blocks of queries in long causal rows, or by heads on a CPU, with a gradient of its own.

B batch, L queries, S keys, N heads, G heads of keys and values, D size of a head. By heads: P heads of keys and values of all
rows (B * G), H heads of queries that read the same keys (N / G).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from models.parts.attention.logits import product
from models.parts.attention.mask import AttentionMask
from models.parts.layers import draw_seeds, dropped
from models.sharding.component import Component

BLOCK = 256  # queries
# Logits of a head from which on a CPU takes one head after the other, and the most queries at a time: their logits (3 MB of
# 1,500 keys) stay in its caches from one pass to the next, where those of all heads (216 MB of four rows) go to memory and back.
LOGITS, QUERIES = 2**18, 512
# The same of causal rows, whose other path leaves out half of them too. They have smaller parts, whose keys are fewer.
CAUSAL_LOGITS, CAUSAL_QUERIES = 2**20, 128
PARTS = 16  # about so many has a head at most, even if their queries are too many for the caches: each is compiled


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
    if table is None and (key is None or rate == 0) and is_by_head(q_BLND.shape[1], k_BSGD.shape[1], mask, scope):
        return attend_by_head(logits, q_BLND, k_BSGD, v_BSGD, mask)
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
    v_BGSD = v_BSGD.swapaxes(1, 2)
    out_BNLD, top_BNL1, total_BNL1, mass_BNLS = _mixed(logits_BNLS, v_BGSD, kept_BNLS)
    log_mass_BNL = (top_BNL1 + jnp.log(total_BNL1))[..., 0]
    return (out_BNLD.swapaxes(1, 2), log_mass_BNL), (mass_BNLS, total_BNL1, v_BGSD, kept_BNLS, out_BNLD)


def _mixed(logits_BNLS: jax.Array, v_BGSD: jax.Array, kept_BNLS: jax.Array | None) -> tuple[jax.Array, ...]:
    """Returns (softmax(logits) v [B, N, L, D], the largest logits [B, N, L, 1], sums of the exponentials of logits less these,
    and the exponentials themselves)."""
    top_BNL1 = jnp.max(logits_BNLS, axis=-1, keepdims=True)
    mass_BNLS = jnp.exp(logits_BNLS - top_BNL1)
    total_BNL1 = jnp.sum(mass_BNLS, axis=-1, keepdims=True)
    mass_BNLS = mass_BNLS.astype(v_BGSD.dtype)
    used_BNLS = mass_BNLS if kept_BNLS is None else mass_BNLS * kept_BNLS
    mixed_BNLD = product("BGHLS,BGSD->BGHLD", v_BGSD.shape[1], used_BNLS, v_BGSD, logits_BNLS.dtype)
    return (mixed_BNLD / total_BNL1).astype(v_BGSD.dtype), top_BNL1, total_BNL1, mass_BNLS


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


def is_by_head(length: int, keys: int, mask: AttentionMask, scope: Component) -> bool:
    """Returns whether rows are attended to by heads: long ones on a single CPU."""
    is_long = length * keys >= (CAUSAL_LOGITS if mask.causal else LOGITS)
    return scope.on_one_cpu and is_long and not mask.hypotheses and mask.only_BLS is None


def parts_of_head(length: int, keys: int, mask: AttentionMask) -> list[tuple[int, int, int]]:
    """Returns (first query, the query after the last, how many keys they see at most) of each part of a head's queries."""
    causal = length == keys and mask.causal and mask.in_order
    most = max(CAUSAL_QUERIES if causal else QUERIES, length // PARTS)
    size = max(n for n in range(1, min(length, most) + 1) if length % n == 0)
    size = size if 4 * size >= most else length  # products with few rows are slow
    return [(start, start + size, start + size if causal else keys) for start in range(0, length, size)]


def attend_by_head(
    logits: Callable[..., jax.Array], q_BLND: jax.Array, k_BSGD: jax.Array, v_BSGD: jax.Array, mask: AttentionMask
) -> tuple[jax.Array, jax.Array]:
    """Returns what `attend` does, without a table and dropout, from one head of keys and values after the other.

    Logits are not kept: the backward pass computes them again (FlashAttention-2, arXiv 2307.08691, algorithm 2).
    """
    (b, length, heads, size), (_, keys, groups, _) = q_BLND.shape, k_BSGD.shape
    q_PLHD = q_BLND.reshape(b, length, groups, heads // groups, size).swapaxes(1, 2).reshape(b * groups, length, -1, size)
    k_PSD, v_PSD = (x.swapaxes(1, 2).reshape(b * groups, keys, -1) for x in (k_BSGD, v_BSGD))

    def of_heads(x: jax.Array) -> jax.Array:  # [P, 1, ...]: each a mask of one row
        return jnp.repeat(jnp.broadcast_to(x, (b, *x.shape[1:])), groups, axis=0)[:, None]

    outputs: Any = _by_head(logits, q_PLHD, k_PSD, v_PSD, jax.tree.map(of_heads, mask))
    out_PHLD, mass_PHL = outputs
    out_BLGHD = out_PHLD.reshape(b, groups, *out_PHLD.shape[1:]).transpose(0, 3, 1, 2, 4)
    return out_BLGHD.reshape(b, length, heads, -1), mass_PHL.reshape(b, heads, length)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_head(logits: Callable[..., jax.Array], q_PLHD: jax.Array, k_PSD: jax.Array, v_PSD: jax.Array, mask: Any) -> Any:
    return _by_head_fwd(logits, q_PLHD, k_PSD, v_PSD, mask)[0]


def _by_head_fwd(logits: Callable[..., jax.Array], q_PLHD: jax.Array, k_PSD: jax.Array, v_PSD: jax.Array, mask: Any) -> Any:
    def of_head(head: Any) -> Any:
        q_LHD, k_SD, v_SD, mask = head
        parts = []
        for start, end, seen in parts_of_head(len(q_LHD), len(k_SD), mask):
            logits_1HLS = logits(q_LHD[None, start:end], k_SD[None, :seen, None], None, mask.part(start, end, seen))
            parts.append(_mixed(logits_1HLS, v_SD[None, None, :seen], None)[:3])
        return tuple(jnp.concatenate(xs, axis=2)[0] for xs in zip(*parts, strict=True))

    outputs: Any = jax.lax.map(of_head, (q_PLHD, k_PSD, v_PSD, mask))
    out_PHLD, top_PHL1, total_PHL1 = outputs
    log_mass_PHL = (top_PHL1 + jnp.log(total_PHL1))[..., 0]
    return (out_PHLD, log_mass_PHL), (q_PLHD, k_PSD, v_PSD, mask, *outputs)


def _by_head_bwd(logits: Callable[..., jax.Array], saved: Any, grads: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    wide = grads[1].dtype

    def of_head(head: Any) -> Any:
        (q_LHD, k_SD, v_SD, mask, out_HLD, top_HL1, total_HL1), (grad_HLD, grad_HL) = head
        along_HL1 = jnp.sum(grad_HLD.astype(wide) * out_HLD.astype(wide), axis=-1, keepdims=True) - grad_HL[..., None]
        grad_k_SD, grad_v_SD = (jnp.zeros_like(x, wide) for x in (k_SD, v_SD))
        parts = []
        for start, end, seen in parts_of_head(len(q_LHD), len(k_SD), mask):
            q_1LHD, k_1S1D, of_part = q_LHD[None, start:end], k_SD[None, :seen, None], mask.part(start, end, seen)
            logits_1HLS, pull = jax.vjp(lambda q, k, of_part=of_part: logits(q, k, None, of_part), q_1LHD, k_1S1D)
            # Not by the logarithm of the mass, which is lost in -1e9, the logits of a query that sees no key.
            probs_1HLS = jnp.exp(logits_1HLS - top_HL1[None, :, start:end]) / total_HL1[None, :, start:end]
            grad_1HLD = grad_HLD[None, :, start:end]
            grad_v_11SD = product("BGHLS,BGHLD->BGSD", 1, probs_1HLS.astype(grad_HLD.dtype), grad_1HLD, wide)
            grad_1HLS = product("BGHLD,BGSD->BGHLS", 1, grad_1HLD, v_SD[None, None, :seen], wide)
            grad_q_1LHD, grad_k_1S1D = pull(probs_1HLS * (grad_1HLS - along_HL1[None, :, start:end]))
            grad_k_SD = grad_k_SD.at[:seen].add(grad_k_1S1D[0, :, 0])
            grad_v_SD = grad_v_SD.at[:seen].add(grad_v_11SD[0, 0])
            parts.append(grad_q_1LHD[0])
        return jnp.concatenate(parts), grad_k_SD.astype(k_SD.dtype), grad_v_SD.astype(v_SD.dtype)

    return *jax.lax.map(of_head, (saved, grads)), None


_by_head.defvjp(_by_head_fwd, _by_head_bwd)
