"""The dense Transformer stack of encoders and decoders. B rows, L positions, S keys, M model, V vocabulary.

A stack is a `Block` with a leading axis "layers", run by `scan`. A decoder that generates passes a cache of keys and
values through the same code, so that decoding a token at a time cannot differ from reading the whole row.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention, KeysValues
from models.parts.attention.rotary import Rotation, rotation
from models.parts.layers import FeedForward, Norm, add_bias, dropout, project, soft_cap, split_key
from models.parts.transformer_config import BlockConfig, LmConfig
from models.sharding.component import Component
from models.sharding.params import scan

Key = jax.Array | None  # None: evaluation, nothing random


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where tokens stand, the same for all layers.

    Attributes:
      mask: which keys a query attends to.
      rotation: of queries and new keys, where positions are rotary.
      write_BLT: with a cache of T positions: True where the l-th new key goes.
    """

    mask: AttentionMask
    rotation: Rotation | None = None
    write_BLT: jax.Array | None = None


def geometry(c: BlockConfig, positions_BL: jax.Array, mask: AttentionMask) -> Geometry:
    """The geometry of whole rows."""
    return Geometry(mask, rotation(positions_BL, c.head_dim, c.rotary_base) if c.positions == "rotary" else None)


def cached_geometry(c: BlockConfig, at_B: jax.Array, length: int) -> Geometry:
    """The geometry of one new token a row, at position `at`, in a cache of `length` positions."""
    at_B1, at_1T = at_B[:, None], jnp.arange(length)[None, :]
    mask = AttentionMask(jnp.ones_like(at_B1), jnp.ones_like(at_1T), at_B1, at_1T, causal=True)
    return dataclasses.replace(geometry(c, at_B1, mask), write_BLT=(at_1T == at_B1)[:, None, :])


def norm(c: BlockConfig, where: Component) -> Norm:
    return Norm(c.model_dim, where, kind=c.norm, bias=c.norm_bias, eps=c.norm_eps)


class Block(nnx.Module):
    """One layer: attention and a feed-forward network, each with a residual, in the config's order."""

    def __init__(self, c: BlockConfig, key: jax.Array, where: Component):
        k1, k2 = jax.random.split(key)
        self.where, self.order, self.rate = where, c.order, c.dropout
        self.attention_norm = norm(c, where / "attention")
        self.attention = Attention(
            c.model_dim, c.heads, c.head_dim, k1, where / "attention", kv_heads=c.kv_heads, bias=c.attention_bias,
            per_dim_scale=c.per_dim_scale, buckets=c.buckets if c.positions == "relative" else 0,
            max_distance=c.max_distance, cap=c.logit_cap,
        )  # fmt: skip
        self.ffn_norm = None if c.order == "parallel" else norm(c, where / "ffn")
        self.ffn = FeedForward(
            c.model_dim, c.hidden_dim, k2, where / "ffn", activation=c.activation, gated=c.gated, bias=c.ffn_bias
        )

    def __call__(
        self, x_BLM: jax.Array, g: Geometry, cache: KeysValues | None, key: Key
    ) -> tuple[jax.Array, KeysValues | None]:
        """(y_BLM, the cache with the new keys and values in it)."""
        k1, k2, k3 = split_key(key, 3)
        x_BLM = self.where.shard(x_BLM, "batch", "res_length", "act_embed")

        def attend(x_BLM: jax.Array) -> tuple[jax.Array, KeysValues | None]:
            new = self.attention.keys_values(x_BLM, g.rotation)
            kept = cache and _write(cache, new, g.write_BLT)
            y_BLM = self.attention(x_BLM, kept or new, g.mask, rotation=g.rotation, rate=self.rate, key=k1)
            return dropout(y_BLM, self.rate, k2), kept

        def ffn(x_BLM: jax.Array) -> jax.Array:
            return dropout(self.ffn(x_BLM), self.rate, k3)

        match self.order:
            case "pre":  # GPT-2 (section 2.3)
                y_BLM, kept = attend(self.attention_norm(x_BLM))
                x_BLM = x_BLM + y_BLM
                return x_BLM + ffn(self.ffn_norm(x_BLM)), kept  # pyright: ignore[reportOptionalCall]
            case "post":  # Vaswani et al. 2017 (section 3.1), BERT
                y_BLM, kept = attend(x_BLM)
                x_BLM = self.attention_norm(x_BLM + y_BLM)
                return self.ffn_norm(x_BLM + ffn(x_BLM)), kept  # pyright: ignore[reportOptionalCall]
            case _:  # "parallel": PaLM (section 2)
                y_BLM = self.attention_norm(x_BLM)
                z_BLM, kept = attend(y_BLM)
                return x_BLM + z_BLM + ffn(y_BLM), kept


def _write(cache: KeysValues, new: KeysValues, write_B1T: jax.Array | None) -> KeysValues:
    """The cache with one new key and value a row; a choice per position, which the compiler partitions as it lies."""
    assert write_B1T is not None
    here_BT11 = write_B1T[:, 0, :, None, None]
    k, v = (jnp.where(here_BT11, n, c) for c, n in zip(cache, new, strict=True))
    return k, v


def run(
    blocks: Block, c: LmConfig, x_BLM: jax.Array, g: Geometry, keys: Key, caches: KeysValues | None = None
) -> tuple[jax.Array, KeysValues | None]:
    """A stack of layers: (y_BLM, caches [layers, B, T, G, D] after it).

    Args:
      keys: [layers], see `layer_keys`.
    """

    def layer(x_BLM, inputs, g: Geometry):
        block, cache, key = inputs
        return block(x_BLM, g, cache, key)

    staged = caches is None  # a token at a time is no work for a pipeline
    return scan(layer, x_BLM, (blocks, caches, keys), g, where=blocks.where, staged=staged)


def keys_values(blocks: Block, c: BlockConfig, x_BLM: jax.Array, g: Geometry) -> KeysValues:
    """The keys and values [layers, B, L, G, D] that each layer of the stack makes of a row: what a cache starts from."""

    def layer(x_BLM, block: Block, _):
        y_BLM = x_BLM if c.order == "post" else block.attention_norm(x_BLM)
        return block(x_BLM, g, None, None)[0], block.attention.keys_values(y_BLM, g.rotation)

    return scan(layer, x_BLM, blocks)[1]


def logits(
    c: LmConfig, x_BLM: jax.Array, w_MV: jax.Array, bias: nnx.Param | None, where: Component, *,
    positions: str | None = "length",
) -> jax.Array:  # fmt: skip
    """Output logits [B, L, V] of the last layer's vectors, capped as the config says.

    Args:
      where: the component that owns the matrix: the embedding where it is tied.
      positions: the logical name of the second dimension.
    """
    y_BLV = add_bias(project(x_BLM, w_MV, where), bias)
    return soft_cap(where.shard(y_BLV, "batch", positions, "act_vocab"), c.softmax_cap)
