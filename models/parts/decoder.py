"""Decoders: models that predict each token from those before it, and continue a text a token at a time.

B rows, L positions, S source positions, K hypotheses, R = B K rows of one position, M model, V vocabulary.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts import transformer
from models.parts.attention.config import Latent
from models.parts.attention.mask import AttentionMask
from models.parts.kv_cache import LayerCache, Slots
from models.parts.transformer import Block, Key, Source
from models.protocol import Decodes, Staged


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The state of decoding between two steps.

    Attributes:
      blocks: the model's layers, one by one (transformer.unstacked).
      layers: for each layer, its keys and values.
      slots: which position each slot holds, and whose.
      first_B: int32, the token before the first step.
      real_B: False for rows that only fill the batch up.
      source_BS: False for padding of the source; None without a source.
    """

    blocks: list[Block]
    layers: list[LayerCache]
    slots: Slots
    first_B: jax.Array
    real_B: jax.Array
    source_BS: jax.Array | None = None


class Decoder(Staged, Decodes):
    """A model whose last stack is a decoder. Every method is a pure function of parameters and arguments."""

    stack_name: ClassVar[str] = "decoder"
    decoder: Any  # a Block, or a LayerGroup of them (models/parts/layer_group.py), with a leading axis of layers
    decoder_bias: nnx.Param | None = None  # [N, K] for buckets of relative positions, where the layers share one

    @abc.abstractmethod
    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        """Returns the first layer's input [B, L, M]; draws dropout from the key."""

    @abc.abstractmethod
    def output_logits(self, x_BLM: jax.Array) -> jax.Array:
        """Returns the logits [B, L, V] of the last layer's output; applies the norm between them."""

    @property
    def stacks(self) -> list[Any]:
        """The stacks of layers, in order."""
        return [self.decoder]

    @property
    def blocks(self) -> list[Block]:
        """The layers of all stacks, one by one."""
        return [block for layers in self.stacks for group in transformer.unstacked(layers) for block in group.layers]

    @property
    def cache_axes(self) -> tuple[str | None, ...]:
        """The logical axes of a layer's keys and values [B, S, G, D]."""
        attention = self.c.attention
        heads = "act_heads" if attention.groups == attention.heads else "act_kv_heads"
        return ("batch", None, None if isinstance(attention, Latent) else heads, None)

    def step(self, state: Cache, ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, Cache]:
        """Returns (the logits [B, K, V] of the token after `ids`, the `at`-th of the continuation; the cache with them in it).

        At 0 the token before the first step takes their place. `at` is a scalar, or [B, K] for hypotheses at different places.
        """
        step = state.slots.at(jnp.asarray(at))
        ids_BK = jnp.where(at == 0, state.first_B[:, None], ids_BK)
        positions_BK = jnp.broadcast_to(step.positions_BK, ids_BK.shape)
        x_R1M = self.embed_tokens(ids_BK.reshape(-1, 1), positions_BK.reshape(-1, 1), None)
        g, layers = transformer.attention_inputs(self.c, step.positions_BK, step.mask(), step.slots.reach_B1), []
        real_R1 = jnp.repeat(state.real_B, ids_BK.shape[1])[:, None]
        bias_1NK = None if self.decoder_bias is None else self.decoder_bias[...][None]
        source = _cached_source(state.source_BS, ids_BK)
        g = dataclasses.replace(g, step=step, real_BL=real_R1, bias_1NK=bias_1NK, source=source)
        for i, (block, layer) in enumerate(zip(state.blocks, state.layers, strict=True)):
            x_R1M, layer = transformer.decoded(block, x_R1M, g, layer, transformer.layer_settings(self.c, jnp.array(i)))
            layers.append(layer)
        logits_BKV = self.output_logits(x_R1M).reshape(*ids_BK.shape, -1)
        return logits_BKV, dataclasses.replace(state, layers=layers, slots=step.slots)

    def reorder(self, state: Cache, parent_BK: jax.Array) -> Cache:
        """Returns the cache in which hypothesis k of a row continues what hypothesis parent[b, k] was."""
        return dataclasses.replace(state, slots=state.slots.reordered(parent_BK))


def _cached_source(real_BS: jax.Array | None, ids_BK: jax.Array) -> Source | None:
    """Returns the source of a step, whose keys and values every layer has in its cache."""
    if real_BS is None:
        return None
    mask = AttentionMask.for_rows(jnp.ones_like(ids_BK), real_BS.astype(jnp.int32))
    return Source(dataclasses.replace(mask, hypotheses=True))
