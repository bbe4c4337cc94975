"""GShard M4 (arXiv 2006.16668): a Transformer encoder-decoder in which every second feed-forward layer is an MoE layer.

B rows, L positions, M model, N heads, D head, H hidden, V vocabulary; G groups, S tokens of a group, E experts, C slots.

Written as if for one device: `where.shard` names the axes of an activation at the edges of a block, a layout decides
what is cut. The paper leaves the norm's place and positions open; both follow Lingvo's builder and Vaswani et al.:
pre-norm residual layers with RMS norm, and sinusoids added to the embeddings.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.gshard_m4.config import GShardM4Config
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention, KeysValues
from models.parts.layers import (
    Embedding,
    FeedForward,
    Norm,
    dropout,
    layer_keys,
    project,
    sinusoids,
    split_key,
)
from models.parts.losses import Loss, Ratio, Totals, per, token_loss, zero_loss
from models.parts.moe.layer import Moe, check_groups
from models.protocol import Batch, Context, Staged
from models.sharding.component import Component
from models.sharding.params import normal, param, scan, stack

Key = jax.Array | None  # None: evaluation, nothing random


class EncoderLayer(nnx.Module):
    """Self-attention, then a feed-forward or MoE layer, each x + dropout(f(norm(x)))."""

    def __init__(self, c: GShardM4Config, kind: str, key: jax.Array, where: Component):
        k1, k2 = jax.random.split(key)
        self.rate = c.dropout
        self.attention_norm = Norm(c.model_dim, where / "attention")
        self.attention = Attention(c.model_dim, c.heads, c.head_dim, k1, where / "attention")
        self.ffn_norm = Norm(c.model_dim, where / kind)
        self.ffn = make_ffn(c, kind, k2, where / kind)

    def __call__(self, x_BLM, mask: AttentionMask, real_BL, key: Key):
        k1, k2, k3, k4 = split_key(key, 4)
        y_BLM = self.attention_norm(x_BLM)
        y_BLM = self.attention(y_BLM, self.attention.keys_values(y_BLM), mask, rate=self.rate, key=k1)
        x_BLM = x_BLM + dropout(y_BLM, self.rate, k2)
        y_BLM, stats = apply_ffn(self.ffn, self.ffn_norm(x_BLM), real_BL, k3)
        return x_BLM + dropout(y_BLM, self.rate, k4), stats


class DecoderLayer(nnx.Module):
    """Causal self-attention, attention to the source, then a feed-forward or MoE layer."""

    def __init__(self, c: GShardM4Config, kind: str, key: jax.Array, where: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.rate = c.dropout
        self.attention_norm = Norm(c.model_dim, where / "attention")
        self.attention = Attention(c.model_dim, c.heads, c.head_dim, k1, where / "attention")
        self.cross_norm = Norm(c.model_dim, where / "cross_attention")
        self.cross_attention = Attention(c.model_dim, c.heads, c.head_dim, k2, where / "cross_attention")
        self.ffn_norm = Norm(c.model_dim, where / kind)
        self.ffn = make_ffn(c, kind, k3, where / kind, causal=True)

    def __call__(self, x_BLM, source_BSM, masks: tuple[AttentionMask, AttentionMask], real_BL, key: Key):
        own, source = masks
        k1, k2, k3, k4, k5, k6 = split_key(key, 6)
        y_BLM = self.attention_norm(x_BLM)
        y_BLM = self.attention(y_BLM, self.attention.keys_values(y_BLM), own, rate=self.rate, key=k1)
        x_BLM = x_BLM + dropout(y_BLM, self.rate, k2)
        kv = self.cross_attention.keys_values(source_BSM)
        y_BLM = self.cross_attention(self.cross_norm(x_BLM), kv, source, rate=self.rate, key=k3)
        x_BLM = x_BLM + dropout(y_BLM, self.rate, k4)
        y_BLM, stats = apply_ffn(self.ffn, self.ffn_norm(x_BLM), real_BL, k5)
        return x_BLM + dropout(y_BLM, self.rate, k6), stats

    def step(self, x_BKM, cache: "LayerCache", source: AttentionMask, at) -> tuple[jax.Array, "LayerCache"]:
        """One position of K hypotheses of each of B sentences, attending to the cached positions before it."""
        rows, beams, model = x_BKM.shape
        y_R1M = self.attention_norm(x_BKM).reshape(rows * beams, 1, model)
        new = self.attention.keys_values(y_R1M)
        k_RTND, v_RTND = (
            jax.lax.dynamic_update_slice_in_dim(c, n, at, axis=1) for c, n in zip(cache.own, new, strict=True)
        )
        own = (k_RTND, v_RTND)
        at_1T = jnp.arange(own[0].shape[1])[None]
        past = AttentionMask(
            jnp.ones((rows * beams, 1), jnp.int32), jnp.ones_like(at_1T), at[None, None], at_1T, causal=True
        )
        x_BKM = x_BKM + self.attention(y_R1M, own, past).reshape(rows, beams, model)
        # A sentence's hypotheses share its source, so they attend to it as the K positions of one query.
        x_BKM = x_BKM + self.cross_attention(self.cross_norm(x_BKM), cache.source, source)
        real_BK = jnp.broadcast_to(jnp.any(source.segments_BS > 0, axis=1, keepdims=True), (rows, beams))
        y_BKM, _ = apply_ffn(self.ffn, self.ffn_norm(x_BKM), real_BK, None)
        return x_BKM + y_BKM, dataclasses.replace(cache, own=own)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """What a decoder layer remembers: its own keys and values [B * K, T, N, D] and the source's [B, S, N, D]."""

    own: KeysValues
    source: KeysValues


def make_ffn(
    c: GShardM4Config, kind: str, key: jax.Array, where: Component, *, causal: bool = False
) -> FeedForward | Moe:
    """Returns the feed-forward layer, "ffn", or the mixture, "moe"; `causal` in a decoder."""
    if kind == "ffn" or c.moe is None:
        return FeedForward(c.model_dim, c.hidden_dim, key, where)
    gating = c.moe.decoder_gating if causal else c.moe.gating
    return Moe(c.moe, gating, c.model_dim, c.hidden_dim, key, where)


def apply_ffn(ffn: FeedForward | Moe, x_BLM, real_BL, key: Key) -> tuple[jax.Array, dict]:
    return ffn(x_BLM, real_BL, key) if isinstance(ffn, Moe) else (ffn(x_BLM), {})


class Block(nnx.Module):
    """The repeated unit of a tower: a dense layer followed by an MoE layer, or in the dense model one dense layer."""

    def __init__(self, layer: type, c: GShardM4Config, key: jax.Array, where: Component):
        k1, k2 = jax.random.split(key)
        self.dense = layer(c, "ffn", k1, where)
        self.sparse = layer(c, "moe", k2, where) if c.moe else None

    def __call__(self, x_BLM, *args, key: Key):
        k1, k2 = split_key(key, 2)
        x_BLM, stats = self.dense(x_BLM, *args, k1)
        return self.sparse(x_BLM, *args, k2) if self.sparse is not None else (x_BLM, stats)


class GShardM4(Staged):
    """The whole model. Parameters only; every method is a pure function of them and its arguments."""

    def __init__(self, c: GShardM4Config, key: jax.Array, where: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        m = c.model_dim
        self.c, self.where = c, where
        self.source_embedding = Embedding(c.source_vocab, m, k1, where / "source_embedding")
        self.target_embedding = Embedding(c.target_vocab, m, k2, where / "target_embedding")
        self.encoder = stack(lambda k: Block(EncoderLayer, c, k, where / "encoder"), k3, c.blocks)
        self.decoder = stack(lambda k: Block(DecoderLayer, c, k, where / "decoder"), k4, c.blocks)
        self.encoder_norm = Norm(m, where / "encoder")
        self.decoder_norm = Norm(m, where / "decoder")
        self.softmax = param(k5, (m, c.target_vocab), ("embed", "vocab"), normal(m**-0.5), where / "softmax")

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the logits [B, L, V] that predict the targets, teacher-forced, outside training."""
        context, totals = Context.evaluation(), self.totals(batch)
        sources, _ = self.before(batch, context, totals)  # the encoder
        x = self.embed(batch | sources, context)
        (x_BLM, _), _ = self.apply_layers(self.decoder, x, batch, context, totals)
        return self._logits(x_BLM)

    # --- training ---

    # The loss (Staged.loss) is the cross-entropy of the targets given the sources, plus the routers' losses. Batches have int32
    # arrays [B, L] `inputs`, `inputs_segments`, `inputs_positions` and the same of `targets`; several examples share a row,
    # numbered from 1 in both segments (0 is padding).

    stack: ClassVar[str] = "decoder"

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns ({"source": the encoder's output [B, S, M]}, its routers' losses); see HasPrologue."""
        args = batch["inputs"], batch["inputs_segments"], batch["inputs_positions"]
        source_BSM, stats = self.encode(*args, context.key)
        return {"source": source_BSM}, self._routing_loss(stats, "input", source_BSM.dtype, totals)

    def embed(self, batch: Batch, context: Context) -> tuple[jax.Array, jax.Array]:
        """Returns the decoder's input: targets [B, L, M] and sources [B, S, M]."""
        ids_BL, positions_BL = batch["targets"], batch["targets_positions"]
        ids_BL = shift_right(ids_BL, positions_BL)
        return self._embed(self.target_embedding, ids_BL, positions_BL, context.key), batch["source"]

    def apply_layers(
        self, blocks: Block, x: tuple[jax.Array, jax.Array], batch: Batch, context: Context, totals: Totals
    ) -> tuple[tuple[jax.Array, jax.Array], Loss]:
        """Runs some of the decoder's blocks; sources pass unchanged. See Staged."""
        x_BLM, source_BSM = x
        segments_BL, source_segments_BS = batch["targets_segments"], batch["inputs_segments"]
        own = AttentionMask.for_rows(segments_BL, segments_BL, causal=True)
        masks = (own, AttentionMask.for_rows(segments_BL, source_segments_BS))

        def layer(x_BLM, inputs, rows):
            block, key = inputs
            return block(x_BLM, *rows, key=key)

        rows, where = (source_BSM, masks, segments_BL > 0), self.where / "decoder"
        x_BLM, stats = scan(layer, x_BLM, (blocks, context.key), rows, where=where)
        return (x_BLM, source_BSM), self._routing_loss(stats, "target", x_BLM.dtype, totals)

    def head_loss(self, x: tuple[jax.Array, jax.Array], batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of the last block's output; see Staged."""
        del context
        used_BL = batch["targets_segments"] > 0
        return token_loss(self._logits(x[0]), batch["targets"], used_BL, totals["target"], self.c.label_smoothing)

    def _routing_loss(self, stats: dict[str, Ratio], side: str, dtype: jnp.dtype, totals: Totals) -> Loss:
        """Returns what some MoE layers of a tower add: each its own balance loss and z-loss (k layers, k terms)."""
        if self.c.moe is None:
            return zero_loss(dtype)
        pooled = jax.tree.map(lambda x: jnp.sum(x, axis=0), stats)  # over layers
        extra = self.c.moe.balance_weight * per(pooled["balance_loss"].sum, totals[side])
        if self.c.moe.z_weight:
            extra += self.c.moe.z_weight * per(pooled["z_loss"].sum, totals[side])
        metrics = {f"moe/{k}": v for k, v in pooled.items() if k != "load"}
        tower = {"input": "encoder", "target": "decoder"}[side]
        return Loss(extra, extra, metrics | {f"moe/load_{tower}": pooled["load"]})

    def check_rows(self, lengths: Mapping[str, int], microbatches: int) -> None:
        """Raises LayoutError where rows are dealt out to microbatches, the step's or a pipeline's, and groups span rows.

        Args:
          lengths: positions of a row, by the name of the input.
          microbatches: of the step.
        """
        pipelines = {"inputs": self.where.layout.pipeline("encoder"), "targets": self.where.layout.pipeline("decoder")}
        parts = {side: microbatches * (p.microbatches if p else 1) for side, p in pipelines.items()}
        if self.c.moe:
            check_groups(self.c.moe, [lengths[side] for side, n in parts.items() if n > 1], max(parts.values()))

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of real tokens of either side, over which losses are means."""
        return {side: jnp.sum(batch[f"{side}s_segments"] > 0) for side in ("input", "target")}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens of the target side, which translation throughput counts."""
        return {"tokens": jnp.sum(batch["targets_segments"] > 0)}

    def encode(self, ids_BS, segments_BS, positions_BS, key: Key) -> tuple[jax.Array, dict]:
        """The encoder tower: (its output [B, S, M], statistics of its MoE layers, stacked)."""
        k1, k2 = split_key(key, 2)
        x_BSM = self._embed(self.source_embedding, ids_BS, positions_BS, k1)
        mask = AttentionMask.for_rows(segments_BS, segments_BS)
        real_BS = segments_BS > 0

        def layer(x_BSM, inputs, rows):
            block, key = inputs
            return block(x_BSM, *rows, key=key)

        layers, where = (self.encoder, layer_keys(k2, self.c.blocks)), self.where / "encoder"
        x_BSM, stats = scan(layer, x_BSM, layers, (mask, real_BS), where=where)
        return self.encoder_norm(x_BSM), stats

    def _embed(self, table: Embedding, ids_BL, positions_BL, key: Key) -> jax.Array:
        dtype = self.where.dtype
        x_BLM = table(ids_BL, dtype) + sinusoids(positions_BL, self.c.model_dim, dtype)
        return dropout(x_BLM, self.c.dropout, key)

    def _logits(self, x_BLM: jax.Array) -> jax.Array:
        x_BLM = self.decoder_norm(x_BLM)
        where = self.where / "softmax"
        return where.shard(project(x_BLM, self.softmax[...], where), "batch", "length", "act_vocab")

    # --- translation, a position at a time ---

    @property
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""
        return self.c.target_vocab

    def start(self, ids_BS: jax.Array, beams: int, steps: int) -> tuple[LayerCache, LayerCache | None, jax.Array]:
        """Encodes B sources and prepares the decoder's caches for `beams` hypotheses of up to `steps` tokens each."""
        real_BS = ids_BS > 0
        positions_BS = jnp.broadcast_to(jnp.arange(ids_BS.shape[1]), ids_BS.shape)
        source_BSM, _ = self.encode(ids_BS, real_BS.astype(jnp.int32), positions_BS, None)
        c = self.c
        shape = (ids_BS.shape[0] * beams, steps, c.heads, c.head_dim)
        names = ("batch", None, "act_heads", None)

        def cache(layer: DecoderLayer) -> LayerCache:
            zeros = self.where.shard(jnp.zeros(shape, source_BSM.dtype), *names)
            return LayerCache((zeros, zeros), layer.cross_attention.keys_values(source_BSM))

        def block_cache(_, block: Block, __):
            return None, (cache(block.dense), cache(block.sparse) if block.sparse is not None else None)

        _, (dense, sparse) = scan(block_cache, None, self.decoder)
        return dense, sparse, real_BS

    def step(self, state, ids_BK: jax.Array, at: jax.Array):
        """Logits [B, K, V] of the token after `ids`, which stand at position `at`, and the state with them in it."""
        dense, sparse, real_BS = state
        dtype = self.where.dtype
        positions_BK = jnp.broadcast_to(at, ids_BK.shape)
        x_BKM = self.target_embedding(ids_BK, dtype) + sinusoids(positions_BK, self.c.model_dim, dtype)
        source = AttentionMask.for_rows(jnp.ones_like(ids_BK), real_BS.astype(jnp.int32))

        def layer(x_BKM, inputs, _):
            block, dense, sparse = inputs
            x_BKM, dense = block.dense.step(x_BKM, dense, source, at)
            if block.sparse is not None:
                x_BKM, sparse = block.sparse.step(x_BKM, sparse, source, at)
            return x_BKM, (dense, sparse)

        x_BKM, (dense, sparse) = scan(layer, x_BKM, (self.decoder, dense, sparse))
        return self._logits(x_BKM), (dense, sparse, real_BS)

    @staticmethod
    def reorder(state, parent_BK: jax.Array):
        """The state in which hypothesis k of a sentence continues what hypothesis parent[b, k] was."""

        def take(own):
            blocks, _, *rest = own.shape
            b, k = parent_BK.shape
            x = own.reshape(blocks, b, k, *rest)
            index = parent_BK.reshape(1, b, k, *(1 for _ in rest))
            return jnp.take_along_axis(x, index, axis=2).reshape(own.shape)

        dense, sparse, real_BS = state
        moved = [c and dataclasses.replace(c, own=jax.tree.map(take, c.own)) for c in (dense, sparse)]
        return moved[0], moved[1], real_BS


def shift_right(ids_BL: jax.Array, positions_BL: jax.Array) -> jax.Array:
    """The decoder's inputs: each token's predecessor in its own example; an example begins with 0 (padding's id)."""
    before_BL = jnp.pad(ids_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_BL == 0, 0, before_BL)
