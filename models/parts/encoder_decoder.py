"""Encoder-decoders: a stack of layers that reads a source, and a decoder that attends to its output.

B rows, L positions, S source positions, K hypotheses, M model, N heads, V vocabulary.

A family says how tokens become vectors and vectors logits; the fields of its configuration say the rest (EncoderDecoderConfig).
"""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts import transformer
from models.parts.attention.config import RelativeBuckets
from models.parts.attention.mask import AttentionMask
from models.parts.decoder import Cache, Decoder
from models.parts.kv_cache import LayerCache, Slots, to_cache
from models.parts.layer_group import LayerGroup
from models.parts.layers import Embedding, Norm, add_positions, dropout
from models.parts.losses import Loss, Totals, token_loss_in_chunks
from models.parts.moe.layer import check_groups, routing_loss
from models.parts.transformer import AttentionInputs, Block, Key, Role, Source
from models.parts.transformer_config import EncoderDecoderConfig
from models.protocol import SOFT_TARGETS, Batch, ChecksRows, Context, Distils, HasPrologue, SequenceToSequence
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules

# Targets [B, L, M], sources [B, S, M], and the biases that the layers share [1, 1, N * K].
DecoderInput = tuple[jax.Array, jax.Array, jax.Array | None]


class Encoder(nnx.Module, abc.ABC):
    """A stack of layers that read a source in both directions."""

    c: EncoderDecoderConfig
    scope: Component

    def make_encoder(self, key: jax.Array) -> None:
        """Makes the parameters of the stack and of the norm after it; `c` and `scope` must be set."""
        c, scope = self.c, self.scope / "encoder"
        self.encoder = stack_modules(lambda k: LayerGroup(c, k, scope), key, c.encoder_groups)
        self.encoder_norm = _norm(c, scope)
        self.encoder_bias = _shared_bias(c, key, scope)

    @abc.abstractmethod
    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        """Returns the first layer's input [B, S, M]; draws dropout from the key."""

    @abc.abstractmethod
    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns, int32 [B, S] each, the segment of each of the source's positions and its place in its example."""

    def encode(self, batch: Batch, context: Context, totals: Totals | None = None) -> tuple[jax.Array, Loss]:
        """Returns (the last layer's output [B, S, M], normed; its routers' losses)."""
        embedding, layers, output = context.split(3)
        x_BSM = self.embed_source(batch, embedding.key)
        segments_BS, positions_BS = self.source_places(batch)
        bias_1NK = None if self.encoder_bias is None else self.encoder_bias[...][None]
        g = _attention_inputs(self.c, positions_BS, segments_BS, bias_1NK)
        x_BSM, statistics = transformer.run(self.encoder, x_BSM, g, layers.for_layers(self.c.encoder_groups))
        x_BSM = dropout(_normed(x_BSM, self.encoder_norm), self.c.decoder.source_dropout, output.key)
        tokens = totals["input"] if totals else jnp.sum(segments_BS > 0)
        return x_BSM, routing_loss(self.c.moe, statistics, tokens, "encoder", x_BSM.dtype)


class SourceDecoder(Decoder, HasPrologue, ChecksRows, SequenceToSequence, Distils):
    """A decoder that attends to a source. By default it has one embedding table, whose transpose makes the output logits, and may
    have a learned table of positions."""

    c: EncoderDecoderConfig
    embedding: Embedding
    positions: nnx.Param | None = None  # [positions, M]

    def make_decoder(self, key: jax.Array) -> None:
        """Makes the parameters of the stack and of the norm after it; `c` and `scope` must be set."""
        c, scope = self.c, self.scope / "decoder"
        role = Role(causal=True, attends_to_source=True, source_dim=c.source_dim)
        self.decoder = stack_modules(lambda k: LayerGroup(c, k, scope, role), key, c.decoder_groups)
        self.decoder_norm = _norm(c, scope)
        self.decoder_bias = _shared_bias(c, key, scope)

    @abc.abstractmethod
    def encode(self, batch: Batch, context: Context, totals: Totals | None = None) -> tuple[jax.Array, Loss]:
        """Returns (what the decoder attends to [B, S, M], the losses of what made it)."""

    @abc.abstractmethod
    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the segment of each of the source's positions and its place, int32 [B, S] each."""

    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        x_BLM = self.embedding(ids_BL, self.scope.dtype)
        if self.positions is not None:
            x_BLM = add_positions(x_BLM, self.positions, positions_BL, self.scope)
        return dropout(x_BLM, self.c.dropout, key)

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        """Returns the output logits [B, L, V] of the decoder's output, its norm applied."""
        return transformer.logits(x_BLM, self.embedding.table[...].T, self.embedding.scope)

    def output_logits(self, x_BLM: jax.Array) -> jax.Array:
        return self.logits(_normed(x_BLM, self.decoder_norm))

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the logits [B, L, V] that predict the targets, teacher-forced, outside training."""
        context, totals = Context.evaluation(), self.totals(batch)
        source, _ = self.before(batch, context, totals)
        x = self.embed(batch | source, context)
        (x_BLM, *_), _ = self.apply_layers(self.decoder, x, batch, context, totals)
        return self.output_logits(x_BLM)

    # --- training ---

    # The loss (Staged.loss) is the cross-entropy of the targets given the sources, plus the routers' losses. Batches have int32
    # arrays [B, L] `targets`, `targets_segments`, `targets_positions`; several examples share a row, numbered from 1 in the
    # segments of both sides (0 is padding).

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns ({"source": what the decoder attends to [B, S, M]}, its losses); see HasPrologue."""
        source_BSM, loss = self.encode(batch, context, totals)
        return {"source": source_BSM}, loss

    def embed(self, batch: Batch, context: Context) -> DecoderInput:
        """Returns the decoder's input, from the targets and the source."""
        ids_BL = shift_right(batch["targets"], batch["targets_positions"], self.c.decoder.start_id)
        x_BLM = self.embed_tokens(ids_BL, batch["targets_positions"], context.key)
        # The layers of a pipeline's stage have no parameter but their own.
        bias_11X = None if self.decoder_bias is None else self.decoder_bias[...].reshape(1, 1, -1)
        return x_BLM, batch["source"], bias_11X

    def apply_layers(
        self, blocks: LayerGroup, x: DecoderInput, batch: Batch, context: Context, totals: Totals
    ) -> tuple[DecoderInput, Loss]:
        """Runs some of the decoder's layer groups; sources and biases pass unchanged. See Staged."""
        x_BLM, source_BSM, bias_11X = x
        segments_BL = batch["targets_segments"]
        bias_1NK = None if bias_11X is None else bias_11X.reshape(1, self.c.attention.heads, -1)
        g = _attention_inputs(self.c, batch["targets_positions"], segments_BL, bias_1NK, causal=True)
        source = Source(AttentionMask.for_rows(segments_BL, self.source_places(batch)[0]), source_BSM)
        g = dataclasses.replace(g, source=source)
        x_BLM, statistics = transformer.run(blocks, x_BLM, g, context)
        loss = routing_loss(self.c.moe, statistics, totals["target"], "decoder", x_BLM.dtype)
        return (x_BLM, source_BSM, bias_11X), loss

    def head_loss(self, x: DecoderInput, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of the last layer's output; see Staged."""
        used_BL, total, c = batch["targets_segments"] > 0, totals["target"], self.c.loss
        return token_loss_in_chunks(
            self.output_logits,
            x[0],
            batch["targets"],
            used_BL,
            total,
            c.label_smoothing,
            self.scope,
            c.z_weight,
            batch.get(SOFT_TARGETS),
        )

    def check_rows(self, lengths: Mapping[str, int], microbatches: int, rows: int | None) -> None:
        if self.c.moe:
            check_groups(self.c.moe, self.scope, {path: lengths[k] for k, path in self.routed.items()}, microbatches, rows)

    @property
    def routed(self) -> dict[str, str]:
        """The inputs whose positions may be routed to experts, each with the component that does so."""
        return {"targets": "decoder"}

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of real positions of either side, over which losses are means."""
        segments = {"input": self.source_places(batch)[0], "target": batch["targets_segments"]}
        return {side: jnp.sum(segments_BL > 0) for side, segments_BL in segments.items()}

    # --- decoding ---

    @property
    def target_vocab(self) -> int:
        return self.embedding.table.shape[0]

    def start(self, batch: Batch, hypotheses: int, steps: int) -> Cache:
        """Reads B sources, and prepares the caches for `hypotheses` of each, of up to `steps` tokens."""
        c, real_BS = self.c, self.source_places(batch)[0] > 0
        source_BSM, _ = self.encode(batch, Context.evaluation())
        slots = Slots.empty(len(real_BS), hypotheses, steps, jnp.zeros(1, jnp.int32), 0)
        shape = (len(real_BS), slots.number, c.attention.groups, c.attention.head_dim)

        def layer_cache(layer: Block) -> LayerCache:
            assert layer.cross_attention is not None
            zeros = self.scope.shard(jnp.zeros(shape, source_BSM.dtype), *self.cache_axes)
            return LayerCache(to_cache((zeros, zeros)), to_cache(layer.cross_attention.keys_values(source_BSM)))

        blocks, first_B = self.blocks, jnp.full(len(real_BS), c.decoder.start_id, jnp.int32)
        return Cache(blocks, [layer_cache(block) for block in blocks], slots, first_B, jnp.any(real_BS, axis=1), real_BS)


class EncoderDecoder(Encoder, SourceDecoder):
    """An encoder of texts and a decoder.

    Batches also have int32 arrays [B, S] `inputs`, `inputs_segments` and `inputs_positions`. Without positions a source is alone
    in its row, as in decoding; without segments as well, 0 is padding, on either side.
    """

    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        return self.embed_tokens(batch["inputs"], self.source_places(batch)[1], key)

    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        if "inputs_positions" in batch:
            return batch["inputs_segments"], batch["inputs_positions"]
        real_BS = batch.get("inputs_segments", batch["inputs"]) > 0
        return real_BS.astype(jnp.int32), jnp.maximum(jnp.cumsum(real_BS, axis=1) - 1, 0)

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens of both sides, padding left out."""
        return {"tokens": jnp.sum(batch["inputs_segments"] > 0) + jnp.sum(batch["targets_segments"] > 0)}

    @property
    def routed(self) -> dict[str, str]:
        return {"inputs": "encoder", "targets": "decoder"}


def _attention_inputs(
    c: EncoderDecoderConfig, positions_BL: jax.Array, segments_BL: jax.Array, bias_1NK: jax.Array | None, *, causal: bool = False
) -> AttentionInputs:
    """Returns the inputs of a stack's own rows."""
    g = transformer.attention_inputs(c, positions_BL, AttentionMask.for_rows(segments_BL, segments_BL, causal=causal))
    return dataclasses.replace(g, bias_1NK=bias_1NK, real_BL=segments_BL > 0)


def _norm(c: EncoderDecoderConfig, scope: Component) -> Norm | None:
    """Returns the norm after a stack, where there is one."""
    return transformer.norm(c, scope) if c.norm.order == "pre" else None


def _normed(x_BLM: jax.Array, norm: Norm | None) -> jax.Array:
    return x_BLM if norm is None else norm(x_BLM)


def _shared_bias(c: EncoderDecoderConfig, key: jax.Array, scope: Component) -> nnx.Param | None:
    """Returns the biases of relative positions that the layers of a stack share, where they share them."""
    if not isinstance(c.positions, RelativeBuckets) or not c.positions.shared:
        return None
    init, shape = normal(c.model_dim**-0.5), (c.attention.heads, c.positions.buckets)
    return param(jax.random.fold_in(key, 0), shape, ("heads", "buckets"), init, scope / "attention")


def shift_right(ids_BL: jax.Array, positions_BL: jax.Array, start_id: int = 0) -> jax.Array:
    """Returns the decoder's inputs: each token's predecessor in its own example; an example begins with `start_id`."""
    before_BL = jnp.pad(ids_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_BL == 0, start_id, before_BL)
