"""Attention by a kernel of TPUs, which holds a block of logits at a time: all of them, [L, S] a head, never exist.

The kernel is JAX's splash attention (jax.experimental.pallas.ops.tpu.splash_attention): FlashAttention-2 (Dao, arXiv 2307.08691)
that skips the blocks of which a causal mask leaves nothing. No compiler cuts a kernel, so `attend` maps it over the mesh itself,
as the layout's rules for "batch" and "act_heads" say: a device has whole rows of its own heads.

B batch, L queries, S keys, N heads, G heads of keys and values, D size of a head.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from models.parts.attention.mask import AttentionMask
from models.sharding.component import Component

# The largest that divides a length is its block: fewer steps, each of which fills the matrix unit better. 512 x 512 logits take
# 1 MiB of a core's 16 MiB; a register has 128 lanes, so nothing smaller will do.
BLOCKS = (512, 256, 128)

# Queries and keys from which on the kernel pays. It computes the logits thrice (again for the gradients of queries, and of keys
# and values); in return they do not travel to memory and back, which in shorter rows costs less than the matrix products.
LENGTH = 1024

_used = contextvars.ContextVar("used", default=True)


@contextlib.contextmanager
def without_kernel() -> Iterator[None]:
    """Programs traced inside compute all attention by blocks.py: as runs did that are older than the kernel."""
    token = _used.set(False)
    try:
        yield
    finally:
        _used.reset(token)


def applies(scope: Component, q_BLND: jax.Array, k_BSGD: jax.Array, mask: AttentionMask, *, biased: bool, dropping: bool) -> bool:
    """Returns whether the kernel can compute this attention and is faster than blocks.py. Decided from shapes alone.

    Args:
      biased: logits get a bias of relative positions.
      dropping: probabilities are dropped.
    """
    lengths = q_BLND.shape[1], k_BSGD.shape[1]
    return (
        scope.on_tpu
        and _used.get()
        and not biased
        and not dropping
        and scope.num_shards("length") == scope.num_shards("keys") == 1  # a device has whole rows
        and q_BLND.shape[2] % scope.num_shards("act_heads") == 0  # and as many heads as the others
        and (mask.in_order or not mask.causal)  # places are the numbers of positions, or don't matter
        and mask.first_BL is None  # a window may differ from layer to layer, and the kernel's masks are made beforehand
        and q_BLND.dtype in (jnp.bfloat16, jnp.float32)
        and all(n >= LENGTH and n % BLOCKS[-1] == 0 for n in lengths)
    )


def attend(
    q_BLND: jax.Array, k_BSGD: jax.Array, v_BSGD: jax.Array, mask: AttentionMask, scope: Component, *, cap: float = 0.0
) -> jax.Array:
    """Returns softmax(logits) v, [B, L, N, D] in q's dtype; gradients included. Other devices than TPUs interpret the kernel.

    A query that sees no key, which padding alone does, gets some finite value, not that of the plain path.

    Args:
      scope: a component with a mesh; lengths must be whole, and divisible by the smallest block.
      cap: limit of the logits, see `layers.soft_cap`.
    """
    # Imported here: it takes seconds, and only what TPUs run needs it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    b, length = q_BLND.shape[:2]
    _, s, g, _ = k_BSGD.shape
    # A device takes the heads of keys and values that its own queries read; if there are fewer than devices, several take one.
    shared = math.lcm(g, scope.num_shards("act_heads")) // g
    k_BSGD, v_BSGD = (jnp.repeat(x, shared, axis=2) if shared > 1 else x for x in (k_BSGD, v_BSGD))
    segments_BL = jnp.broadcast_to(mask.segments_BL, (b, length))
    segments_BS = jnp.broadcast_to(mask.segments_BS, (b, s))
    q, kv = (next(block for block in BLOCKS if n % block == 0) for n in (length, s))
    blocks = kernels.BlockSizes(block_q=q, block_kv=kv, block_q_dkv=q, block_kv_dkv=kv, block_q_dq=q, block_kv_dq=kv)
    visible = masks.CausalMask((length, s)) if mask.causal else masks.FullMask((length, s))

    def local(q_BLND, k_BSGD, v_BSGD, segments_BL, segments_BS):
        kernel = kernels.make_splash_mha(
            masks.MultiHeadMask([visible] * q_BLND.shape[2]),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=cap or None,
            interpret=not scope.on_tpu,
            residual_checkpoint_name="context",
        )
        # Padding is a segment as well, which sees itself; no example sees it.
        segments = kernels.SegmentIds(segments_BL, segments_BS)
        by_head = (jnp.swapaxes(x, 1, 2) for x in (q_BLND, k_BSGD, v_BSGD))
        out_BNLD: Any = jax.vmap(kernel)(*by_head, segments)
        return jnp.swapaxes(out_BNLD, 1, 2)

    vectors = scope.spec_of(q_BLND, "batch", None, "act_heads", None)
    numbers = scope.spec_of(segments_BL, "batch", None)
    # Over all mesh axes, as no part of a kernel is left to the compiler. Unchecked: the kernel doesn't say what its outputs
    # vary over. The gradient is right where an axis cuts nothing too; it's added up over copies, each divided by their number.
    mapped = jax.shard_map(local, mesh=scope.mesh, in_specs=(vectors,) * 3 + (numbers,) * 2, out_specs=vectors, check_vma=False)
    return mapped(q_BLND, k_BSGD, v_BSGD, segments_BL, segments_BS)
