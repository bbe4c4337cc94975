"""Encoder-decoders: two stacks of one kind of layer, of which the second attends to the first's output.

B rows, L positions, S source positions, K hypotheses, T cached positions, M model, V vocabulary.

A family says how tokens become vectors and vectors logits; the fields of its configuration say the rest (EncoderDecoderConfig).
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts import transformer
from models.parts.activations import POLICIES_WITH_EXPERTS, WITH_EXPERTS
from models.parts.attention.mask import AttentionMask
from models.parts.kv_cache import LayerCache, Slots, to_cache
from models.parts.layer_group import LayerGroup, run_groups
from models.parts.layers import Norm, dropout
from models.parts.losses import Loss, Totals, token_loss_in_chunks, zero_loss
from models.parts.moe.layer import check_groups, hyperparameters, notes, routing_loss
from models.parts.transformer import AttentionInputs, Block, Key, Source, Statistics, unstacked
from models.parts.transformer_config import MEANING_OF_BLOCKS, EncoderDecoderConfig
from models.protocol import Batch, Context, Family, MakeModel, Staged
from models.sharding.expert_layouts import searched
from models.sharding.layouts import Recipe
from models.sharding.params import normal, param, stack_modules

# Targets [B, L, M], sources [B, S, M], and the biases that the layers share [1, 1, N * K].
DecoderInput = tuple[jax.Array, jax.Array, jax.Array | None]
Side = Literal["input", "target"]  # the first word of the side's arrays: `inputs`, `inputs_segments`, ...


class EncoderDecoder(Staged):
    """A model that predicts a target text from a source text. Every method is a pure function of parameters and arguments."""

    stack_name: ClassVar[str] = "decoder"
    c: EncoderDecoderConfig

    def _make_stacks(self, key_encoder: jax.Array, key_decoder: jax.Array) -> None:
        """Makes the parameters of both stacks and the norms after them; `c` and `scope` must be set."""
        c, scope = self.c, self.scope
        self.encoder = stack_modules(lambda k: LayerGroup(c, k, scope / "encoder"), key_encoder, c.encoder_groups)
        self.decoder = stack_modules(
            lambda k: LayerGroup(c, k, scope / "decoder", causal=True, attends_to_source=True), key_decoder, c.decoder_groups
        )
        has_norm = c.order == "pre"
        self.encoder_norm = transformer.norm(c, scope / "encoder") if has_norm else None
        self.decoder_norm = transformer.norm(c, scope / "decoder") if has_norm else None
        shared, names = c.positions == "relative_shared", ("heads", "buckets")

        def bias(key: jax.Array, name: str) -> nnx.Param:
            return param(key, (c.heads, c.buckets), names, normal(c.model_dim**-0.5), scope / name / "attention")

        self.encoder_bias = bias(jax.random.fold_in(key_encoder, 0), "encoder") if shared else None
        self.decoder_bias = bias(jax.random.fold_in(key_decoder, 0), "decoder") if shared else None

    @abc.abstractmethod
    def embed_tokens(self, side: Side, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        """Returns the first layer's input [B, L, M] of either stack; draws dropout from the key."""

    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        """Returns the encoder's first layer's input [B, S, M]; a source that is no text has an embedding of its own."""
        return self.embed_tokens("input", batch["inputs"], batch["inputs_positions"], key)

    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns, int32 [B, S] each, the segment of each of the source's positions and its place in its example."""
        return batch["inputs_segments"], batch["inputs_positions"]

    def alone(self, batch: Batch) -> Batch:
        """Returns a batch to decode, with what `start` leaves out of sources that are alone in their rows."""
        ids_BS = batch["inputs"]
        real_BS = batch.get("inputs_segments", ids_BS) > 0
        positions_BS = jnp.maximum(jnp.cumsum(real_BS, axis=1) - 1, 0)
        return batch | {"inputs_segments": real_BS.astype(jnp.int32), "inputs_positions": positions_BS}

    @abc.abstractmethod
    def logits(self, x_BLM: jax.Array) -> jax.Array:
        """Returns the output logits [B, L, V] of the decoder's output, its norm applied."""

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the logits [B, L, V] that predict the targets, teacher-forced, outside training."""
        context, totals = Context.evaluation(), self.totals(batch)
        source, _ = self.before(batch, context, totals)  # the encoder
        x = self.embed(batch | source, context)
        (x_BLM, *_), _ = self.apply_layers(self.decoder, x, batch, context, totals)
        return self._logits(x_BLM)

    # --- training ---

    # The loss (Staged.loss) is the cross-entropy of the targets given the sources, plus the routers' losses. Batches have int32
    # arrays [B, L] `inputs`, `inputs_segments`, `inputs_positions` and the same of `targets`; several examples share a row,
    # numbered from 1 in both segments (0 is padding).

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns ({"source": the encoder's output [B, S, M]}, its routers' losses); see HasPrologue."""
        source_BSM, statistics = self.encode(batch, context)
        return {"source": source_BSM}, self._routing_loss(statistics, "input", source_BSM.dtype, totals)

    def embed(self, batch: Batch, context: Context) -> DecoderInput:
        """Returns the decoder's input, from the targets and the encoder's output."""
        ids_BL = shift_right(batch["targets"], batch["targets_positions"], self.c.start_id)
        x_BLM = self.embed_tokens("target", ids_BL, batch["targets_positions"], context.key)
        # The layers of a pipeline's stage have no parameter but their own.
        bias_11X = None if self.decoder_bias is None else self.decoder_bias[...].reshape(1, 1, -1)
        return x_BLM, batch["source"], bias_11X

    def apply_layers(
        self, blocks: LayerGroup, x: DecoderInput, batch: Batch, context: Context, totals: Totals
    ) -> tuple[DecoderInput, Loss]:
        """Runs some of the decoder's units; sources and biases pass unchanged. See Staged."""
        x_BLM, source_BSM, bias_11X = x
        segments_BL = batch["targets_segments"]
        bias_1NK = None if bias_11X is None else bias_11X.reshape(1, self.c.heads, -1)
        g = self._attention_inputs(batch["targets_positions"], segments_BL, bias_1NK, causal=True)
        source = Source(AttentionMask.for_rows(segments_BL, self.source_places(batch)[0]), source_BSM)
        g = dataclasses.replace(g, source=source)
        x_BLM, statistics = run_groups(blocks, x_BLM, g, context.key, self.scope / "decoder")
        return (x_BLM, source_BSM, bias_11X), self._routing_loss(statistics, "target", x_BLM.dtype, totals)

    def head_loss(self, x: DecoderInput, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of the last layer's output; see Staged."""
        del context
        used_BL = batch["targets_segments"] > 0
        return token_loss_in_chunks(
            self._logits, x[0], batch["targets"], used_BL, totals["target"], self.c.label_smoothing, self.scope, self.c.z_loss
        )

    def check_rows(self, lengths: Mapping[str, int], microbatches: int) -> None:
        """Raises LayoutError where rows are dealt out to microbatches, the step's or a pipeline's, and groups span rows.

        Args:
          lengths: positions of a row, by the name of the input.
          microbatches: of the step.
        """
        pipelines = {"inputs": self.scope.layout.pipeline("encoder"), "targets": self.scope.layout.pipeline("decoder")}
        parts = {side: microbatches * (p.microbatches if p else 1) for side, p in pipelines.items()}
        if self.c.moe:
            check_groups(self.c.moe, [lengths[side] for side, n in parts.items() if n > 1], max(parts.values()))

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of real tokens of either side, over which losses are means."""
        segments = {"input": self.source_places(batch)[0], "target": batch["targets_segments"]}
        return {side: jnp.sum(segments_BL > 0) for side, segments_BL in segments.items()}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens of both sides, padding left out."""
        return {"tokens": jnp.sum(batch["inputs_segments"] > 0) + jnp.sum(batch["targets_segments"] > 0)}

    def encode(self, batch: Batch, context: Context) -> tuple[jax.Array, Statistics]:
        """Returns (the encoder's output [B, S, M], statistics of its mixtures, stacked)."""
        embedding, layers, output = context.split(3)
        x_BSM = self.embed_source(batch, embedding.key)
        segments_BS, positions_BS = self.source_places(batch)
        keys = layers.for_layers(self.c.encoder_groups).key
        bias_1NK = None if self.encoder_bias is None else self.encoder_bias[...][None]
        g = self._attention_inputs(positions_BS, segments_BS, bias_1NK)
        x_BSM, statistics = run_groups(self.encoder, x_BSM, g, keys, self.scope / "encoder")
        return dropout(_normed(x_BSM, self.encoder_norm), self.c.output_dropout, output.key), statistics

    def _attention_inputs(
        self, positions_BL: jax.Array, segments_BL: jax.Array, bias_1NK: jax.Array | None, *, causal: bool = False
    ) -> AttentionInputs:
        mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=causal)
        g = transformer.attention_inputs(self.c, positions_BL, mask)
        return dataclasses.replace(g, bias_1NK=bias_1NK, real_BL=segments_BL > 0)

    def _routing_loss(self, statistics: Statistics, side: Side, dtype: jnp.dtype, totals: Totals) -> Loss:
        if self.c.moe is None:
            return zero_loss(dtype)
        return routing_loss(self.c.moe, statistics, totals[side], {"input": "encoder", "target": "decoder"}[side])

    def _logits(self, x_BLM: jax.Array) -> jax.Array:
        return self.logits(_normed(x_BLM, self.decoder_norm))

    # --- decoding, a position at a time ---

    @property
    @abc.abstractmethod
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""

    def start(self, batch: Batch, hypotheses: int, steps: int) -> "Cache":
        """Encodes B sources and prepares the decoder's caches for `hypotheses` of each, of up to `steps` tokens.

        Args:
          batch: `inputs` int32 [B, S], an example a row. 0 is padding, on either side; where a token may have id 0, padding is
            where `inputs_segments` is 0.
        """
        c, batch = self.c, self.alone(batch)
        real_BS = self.source_places(batch)[0] > 0
        source_BSM, _ = self.encode(batch, Context.evaluation())
        slots = Slots.empty(len(real_BS), hypotheses, steps, jnp.zeros(1, jnp.int32), 0)
        shape = (len(real_BS), slots.number, c.groups, c.head_dim)
        names = ("batch", None, "act_heads" if c.groups == c.heads else "act_kv_heads", None)

        def layer_cache(layer: Block) -> LayerCache:
            assert layer.cross_attention is not None
            zeros = self.scope.shard(jnp.zeros(shape, source_BSM.dtype), *names)
            return LayerCache(to_cache((zeros, zeros)), to_cache(layer.cross_attention.keys_values(source_BSM)))

        units = unstacked(self.decoder)
        return Cache(units, [[layer_cache(layer) for layer in unit.layers] for unit in units], slots, real_BS)

    def step(self, cache: "Cache", ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, "Cache"]:
        """Returns the logits [B, K, V] of the token after `ids`, which are at position `at`, and the cache with them in it.

        At 0 `start_id` takes their place.
        """
        step = cache.slots.at(at)
        ids_BK = jnp.where(at == 0, self.c.start_id, ids_BK)
        positions_BK = jnp.broadcast_to(step.positions_BK, ids_BK.shape)
        x_R1M = self.embed_tokens("target", ids_BK.reshape(-1, 1), positions_BK.reshape(-1, 1), None)
        source = AttentionMask.for_rows(jnp.ones_like(ids_BK), cache.real_BS.astype(jnp.int32))
        source = Source(dataclasses.replace(source, hypotheses=True))
        real_R1 = jnp.repeat(jnp.any(cache.real_BS, axis=1), ids_BK.shape[1])[:, None]
        bias_1NK = None if self.decoder_bias is None else self.decoder_bias[...][None]
        g = transformer.cached_attention_inputs(self.c, step)
        g, layers = dataclasses.replace(g, bias_1NK=bias_1NK, real_BL=real_R1, source=source), []
        for unit, caches in zip(cache.units, cache.layers, strict=True):
            x_R1M, caches = transformer.decoded(unit, x_R1M, g, caches)
            layers.append(caches)
        logits_BKV = self._logits(x_R1M).reshape(*ids_BK.shape, -1)
        return logits_BKV, dataclasses.replace(cache, layers=layers, slots=step.slots)

    @staticmethod
    def reorder(cache: "Cache", parent_BK: jax.Array) -> "Cache":
        """Returns the cache in which hypothesis k of a row continues what hypothesis parent[b, k] was."""
        return dataclasses.replace(cache, slots=cache.slots.reordered(parent_BK))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """What decoding remembers.

    Attributes:
      units: the decoder's, one by one (transformer.unstacked).
      layers: of each layer of each unit, what its slots hold.
      slots: which position each holds, and whose.
      real_BS: False for padding of the source.
    """

    units: list[LayerGroup]
    layers: list[list[LayerCache]]
    slots: Slots
    real_BS: jax.Array


def _normed(x_BLM: jax.Array, norm: Norm | None) -> jax.Array:
    return x_BLM if norm is None else norm(x_BLM)


def shift_right(ids_BL: jax.Array, positions_BL: jax.Array, start_id: int = 0) -> jax.Array:
    """Returns the decoder's inputs: each token's predecessor in its own example; an example begins with `start_id`."""
    before_BL = jnp.pad(ids_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_BL == 0, start_id, before_BL)


def family(model: MakeModel, layouts: dict[str, Recipe], like: Callable[[Any], str], meaning: tuple[str, ...] = ()) -> Family:
    """Returns what the trainer, the planner and the commands need to know of a family of encoder-decoders.

    Args:
      meaning: fields of its configuration that change what it computes, beside those of its layers.
    """
    return Family(
        model=model,
        layouts=layouts,
        like=like,
        activations=WITH_EXPERTS,
        policies=POLICIES_WITH_EXPERTS,
        searched=lambda c: searched(layouts, experts=c.moe is not None),
        comparable=comparable,
        meaning=(*MEANING_OF_BLOCKS, *meaning),
        hyperparameters=lambda c: hyperparameters(c.moe),
        notes=lambda c, execution: notes(c.moe, c.hidden_dim, execution),
    )


def comparable(c: EncoderDecoderConfig, lengths: Sequence[int]) -> EncoderDecoderConfig:
    """Returns the configuration with nothing random; see Family.comparable.

    Routing groups lie within rows, since rows are dealt out to microbatches.
    """
    return dataclasses.replace(
        c,
        layers=4 * len(c.layer_group),
        decoder_layers=0,
        dropout=0.0,
        hidden_dropout=0.0,
        output_dropout=0.0,
        moe=c.moe and c.moe.comparable(min(lengths)),
    )
