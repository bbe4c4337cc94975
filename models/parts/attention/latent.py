"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1; DeepSeek-V3, arXiv 2412.19437, section 2.1.1).

B batch, L queries, S keys, M model, N heads, R rank of the latent that keys and values are made of, D dimensions of a head
without positions, P dimensions that rotary positions turn, V dimensions of a value.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.parts.attention import blocks, ring, splash
from models.parts.attention.config import Latent
from models.parts.attention.logits import masked_logits, mix
from models.parts.attention.mask import AttentionMask
from models.parts.attention.rotary import Rotation, rotate
from models.parts.layers import Norm, project
from models.sharding.component import Component
from models.sharding.params import normal, param

Latents = tuple[jax.Array, jax.Array]  # the latent of each position [B, S, 1, R], and its rotated key [B, S, 1, P]


class LatentAttention(nnx.Module):
    """Attention whose keys and values are made of one latent of R numbers a position and P more, which all heads share.

    These R + P numbers are what a cache holds. Whole rows multiply them out to keys and values of N heads; a step that is
    decoded takes the matrix into queries and outputs instead (section 2.1.2: "absorbed"), and attends to the latents
    themselves, as to one head of keys and values.

    Args:
      size: M.
      init_scale: variance of the initial matrices times their inputs.
    """

    def __init__(self, c: Latent, size: int, key: jax.Array, scope: Component, *, init_scale: float = 1.0):
        heads, rotated = c.heads, c.rotary_dim
        self.c, self.scope = c, scope
        self.scale = (c.scale_dim or c.head_dim + rotated) ** -0.5
        self.key_shards = ring.num_shards(scope)
        k_down, k_up, k_kv_down, k_kv_up, k_o = jax.random.split(key, 5)
        head, into = c.head_dim + rotated, lambda inputs: normal((init_scale / inputs) ** 0.5)
        rank = c.query_rank
        self.q_down = param(k_down, (size, rank), ("embed", "rank"), into(size), scope) if rank else None
        self.q_norm = Norm(rank, scope, eps=c.norm_eps, axis="rank") if rank else None
        up = ((rank, heads, head), ("latent", "heads", "kv")) if rank else ((size, heads, head), ("embed", "heads", "kv"))
        self.q = param(k_up, *up, into(rank or size), scope)
        self.kv_down = param(k_kv_down, (size, c.rank + rotated), ("embed", "rank"), into(size), scope)
        self.kv_norm = Norm(c.rank, scope, eps=c.norm_eps, axis="rank")
        shape = c.rank, heads, c.head_dim + c.value_dim
        self.kv = param(k_kv_up, shape, ("latent", "heads", "kv"), into(c.rank), scope)
        out = heads, c.value_dim, size
        self.o = param(k_o, out, ("heads", "kv", "embed"), into(heads * c.value_dim), scope)

    def keys_values(self, y_BSM: jax.Array, rotation: Rotation | None = None, *, hypotheses: bool = False) -> Latents:
        """Returns the latents of a sequence, to attend to or to cache, and the rotated keys.

        Args:
          hypotheses: see Attention.
        """
        keys = None if hypotheses else "keys"
        w_MX = jnp.concatenate([self.kv_down[..., : self.c.rank], self._paired(self.kv_down[..., self.c.rank :])], -1)
        x_BSX = project(y_BSM, w_MX, self.scope, dense=True)
        latent_BSR = self.kv_norm(x_BSX[..., : self.c.rank])
        k_BS1P = rotate(x_BSX[..., None, self.c.rank :], rotation, self.scope)
        latent_BS1R, k_BS1P = (self.scope.shard(x, "batch", keys, None, None) for x in (latent_BSR[:, :, None], k_BS1P))
        return checkpoint_name(latent_BS1R, "attention_in"), checkpoint_name(k_BS1P, "attention_in")

    def _queries(self, x_BLM: jax.Array, rotation: Rotation | None, length: str | None) -> tuple[jax.Array, jax.Array]:
        """Returns queries without positions [B, L, N, D], and rotated ones [B, L, N, P], both scaled."""
        if self.q_down is not None and self.q_norm is not None:
            x_BLM = self.q_norm(project(x_BLM, self.q_down[...], self.scope, dense=True))
        d = self.c.head_dim
        w_XND = jnp.concatenate([self.q[..., :d], self._paired(self.q[..., d:])], axis=-1)
        q_BLND = self.scope.shard(project(x_BLM, w_XND, self.scope, dense=True), "batch", length, "act_heads", None)
        q_BLND = checkpoint_name(q_BLND, "attention_in") * self.scale
        return q_BLND[..., :d], rotate(q_BLND[..., d:], rotation, self.scope)

    def _paired(self, w: jax.Array) -> jax.Array:
        """Returns a weight whose outputs are turned half against half, of one whose neighbours are turned together.

        The same order of dimensions in queries and keys changes no logit; a weight is smaller than what is made with it.
        """
        if not self.c.interleaved:
            return w
        return w.reshape(*w.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(w.shape)

    def __call__(
        self,
        x_BLM: jax.Array,
        kv: Latents,
        mask: AttentionMask,
        *,
        rotation: Rotation | None = None,
        bias_NK: jax.Array | None = None,
        rate: float = 0.0,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Attends from x to the latents that it sees; see Attention."""
        assert bias_NK is None, "rotary positions alone"
        length, res_length = (None, None) if mask.hypotheses else ("length", "res_length")
        q_BLND, q_BLNP = self._queries(x_BLM, rotation, length)
        latent_BS1R, k_BS1P = kv
        d, w_RNX = self.c.head_dim, self.kv[...].astype(x_BLM.dtype)
        if mask.hypotheses:
            q_BLNR = jnp.einsum("BLND,RND->BLNR", q_BLND, w_RNX[..., :d])
            k_BS1X = jnp.concatenate([latent_BS1R, k_BS1P], axis=-1)
            q_BLNX = jnp.concatenate([q_BLNR, q_BLNP], axis=-1)
            out_BLNR = self._attend(q_BLNX, k_BS1X, latent_BS1R, mask, rate, key)
            out_BLNV = jnp.einsum("BLNR,RNV->BLNV", out_BLNR, w_RNX[..., d:])
        else:
            made_BSNX = project(latent_BS1R[:, :, 0], w_RNX, self.scope, dense=True)
            made_BSNX = self.scope.shard(made_BSNX, "batch", "keys", "act_heads", None)
            k_BSNP = jnp.broadcast_to(k_BS1P, (*made_BSNX.shape[:3], self.c.rotary_dim))
            k_BSNX = jnp.concatenate([made_BSNX[..., :d], k_BSNP], axis=-1)
            q_BLNX = jnp.concatenate([q_BLND, q_BLNP], axis=-1)
            out_BLNV = self._attend(q_BLNX, k_BSNX, made_BSNX[..., d:], mask, rate, key)
        out_BLNV = self.scope.shard(out_BLNV, "batch", length, "act_heads", None)
        y_BLM = project(out_BLNV, self.o[...], self.scope, contract=2, dense=True)
        return checkpoint_name(self.scope.shard(y_BLM, "batch", res_length, "act_embed"), "attention_out")

    def _attend(
        self, q_BLND: jax.Array, k_BSGD: jax.Array, v_BSGV: jax.Array, mask: AttentionMask, rate: float, key: jax.Array | None
    ) -> jax.Array:
        dropping = key is not None and rate > 0
        if splash.applies(self.scope, q_BLND, k_BSGD, mask, biased=False, dropping=dropping):
            return splash.attend(q_BLND, k_BSGD, v_BSGV, mask, self.scope)  # which names its own context
        logits = functools.partial(masked_logits, limit=0.0, max_distance=0)
        if self.key_shards == 1 or mask.hypotheses:
            out, _ = blocks.attend(logits, q_BLND, k_BSGD, v_BSGV, None, mask, self.scope, rate=rate, key=key)
        else:
            out, _ = ring.Ring(logits, mix, self.scope, "act_heads", rate)(q_BLND, k_BSGD, v_BSGV, None, mask, key)
        return checkpoint_name(out, "context")
