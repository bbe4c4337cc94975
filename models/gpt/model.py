"""GPT: a decoder that predicts each token from those before it, for every published variant in configs/gpt.py.

B rows, L positions, K hypotheses, T cached positions, M model, V vocabulary. The layers are models/parts/transformer.py.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import UserError
from models.gpt.config import GptConfig
from models.parts import preferences, transformer
from models.parts.attention.config import Learned, Sinusoidal
from models.parts.attention.mask import AttentionMask, arrange
from models.parts.decoder import Cache, Decoder
from models.parts.kv_cache import LayerCache, Slots, to_cache
from models.parts.layer_group import LayerGroup
from models.parts.layers import Embedding, dropout, project, sinusoids
from models.parts.losses import Loss, Totals, log_probabilities, token_loss_in_chunks
from models.parts.moe.layer import check_groups, routing_loss
from models.parts.preferences import preference_loss
from models.parts.transformer import AttentionInputs, Block, Key, LayerSettings, Role
from models.protocol import SOFT_TARGETS, Batch, ChecksRows, Context, ContinuesText, Distils
from models.sharding.component import Component
from models.sharding.layout import LayoutError
from models.sharding.params import normal, param, stack_modules, zeros


class Softmax(nnx.Module):
    """The parameters of the output logits alone: a matrix where the embedding is not tied, a bias where there is one."""

    def __init__(self, c: GptConfig, key: jax.Array, scope: Component):
        self.scope = scope
        init = normal(c.model_dim**-0.5)
        self.weight = None if c.output.tied else param(key, (c.model_dim, c.vocab), ("embed", "vocab"), init, scope)
        self.bias = param(key, (c.vocab,), ("vocab",), zeros, scope) if c.output.bias else None


class SecondHead(nnx.Module):
    """Predicts the token after the next one: a layer like the stack's last, on the stack's output and the next token's embedding
    (multi-token prediction of depth 1, DeepSeek-V3, section 2.2). Table and output matrix are the model's.

    Its layer is of the component "decoder", whose layout it has.
    """

    def __init__(self, c: GptConfig, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.scope, size = scope, c.model_dim
        self.hidden_norm, self.token_norm = transformer.norm(c, scope), transformer.norm(c, scope)
        self.join = param(k1, (2 * size, size), ("mlp", "embed"), normal((2 * size) ** -0.5), scope)
        self.layer = stack_modules(_layers(c, scope), k2, 1)
        self.norm = transformer.norm(c, scope)

    def joined(self, x_BLM: jax.Array, next_BLM: jax.Array) -> jax.Array:
        """Returns the input [B, L, M] of the layer."""
        y_BLX = jnp.concatenate([self.hidden_norm(x_BLM), self.token_norm(next_BLM)], axis=-1)
        y_BLX = self.scope.shard(y_BLX, "batch", "length", "act_mlp")
        return self.scope.shard(project(y_BLX, self.join[...], self.scope), "batch", "res_length", "act_embed")


class Gpt(Decoder, ContinuesText, ChecksRows, Distils):
    """A decoder without a source."""

    def __init__(self, c: GptConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.c, self.scope = c, scope
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding", std=0.02)
        inner = scope / "position_embedding"
        self.position_embedding = (
            Embedding(c.max_positions, c.model_dim, k2, inner, std=0.02, axis="positions") if c.max_positions else None
        )
        self.embedding_norm = transformer.norm(c, scope / "embedding_norm") if c.norm.embedding else None
        self.leading = (
            stack_modules(lambda k: Block(c, k, scope / "leading"), jax.random.fold_in(k3, 0), c.leading) if c.leading else None
        )
        self.decoder = stack_modules(_layers(c, scope / "decoder"), k3, c.layers if c.moe is None else c.layer_groups)
        self.final_norm = None if c.norm.order == "post" else transformer.norm(c, scope / "final_norm")
        self.softmax = Softmax(c, k4, scope / "softmax")
        self.mtp = SecondHead(c, jax.random.fold_in(k4, 1), scope / "decoder") if c.output.mtp else None
        if c.output.mtp and scope.layout.pipeline("decoder"):
            raise LayoutError(
                f"model.output.mtp={c.output.mtp}: layout {scope.layout.name!r} has the decoder in stages; choose one "
                "without, or 0"
            )

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the logits [B, L, V] of the token after each, outside training."""
        segments_BL, positions_BL = batch["segments"], batch["positions"]
        g = self._attention_inputs(positions_BL, self._mask(segments_BL, batch), segments_BL)
        x_BLM = self.embed_tokens(batch["tokens"], positions_BL, None)
        for layers in self.stacks:
            context = Context.evaluation().for_layers(depth(layers))
            x_BLM, _ = transformer.run(layers, x_BLM, g, context, self._layer_settings(layers, context.numbers))
        return self.output_logits(x_BLM)

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns the model itself where the routers' balance is that of all of a batch's tokens together; see `Model`."""
        pooled = self.c.moe is not None and self.c.moe.losses.balance == "pooled" and self.c.moe.losses.balance_weight > 0
        return (self.scope.path,) if pooled else ()

    @property
    def stacks(self) -> list[Block | LayerGroup]:
        """The stacks of layers, in order."""
        return [self.decoder] if self.leading is None else [self.leading, self.decoder]

    def _mask(self, segments_BL: jax.Array, batch: Batch) -> AttentionMask:
        """Returns the mask of rows in order, of which the segments may be in the layout's order already."""
        mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=True)
        return mask.with_prefix(leading(batch)) if self.c.prefix and "loss_weights" in batch else mask

    # --- training ---

    # The loss (Staged.loss) is the cross-entropy of each token that follows another in its document. Batches have int32 arrays
    # [B, L] `tokens`, `segments` (documents of a row from 1, 0 is padding) and `positions`, and may have `loss_weights`, how much
    # a token counts: 0 not at all; and a teacher's `soft_targets`. Those of preference pairs also have `reference` and `betas`
    # (models/parts/preferences.py). Between `embed` and `head_loss` positions are in the layout's order
    # (models/parts/attention/mask.py).

    def embed(self, batch: Batch, context: Context) -> jax.Array:
        """Returns the input [B, L, M] of the stack: the embedding, and what leading layers make of it."""
        tokens_BL, positions_BL = (arrange(batch[name], self.scope) for name in ("tokens", "positions"))
        if self.leading is None:
            return self.embed_tokens(tokens_BL, positions_BL, context.key)
        embedding, layers = context.split(2)
        x_BLM = self.embed_tokens(tokens_BL, positions_BL, embedding.key)
        context = layers.for_layers(self.c.leading)
        settings = self._layer_settings(self.leading, context.numbers)
        return transformer.run(self.leading, x_BLM, self._arranged(batch), context, settings)[0]

    def apply_layers(
        self, blocks: Block | LayerGroup, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals
    ) -> tuple[jax.Array, Loss]:
        settings = self._layer_settings(blocks, context.numbers)
        x_BLM, statistics = transformer.run(blocks, x_BLM, self._arranged(batch), context, settings)
        return x_BLM, routing_loss(self.c.moe, statistics, totals["real"], "decoder", x_BLM.dtype)

    def head_loss(self, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of the last layer's output, of preference pairs DPO's loss; see Staged.

        In training that of the second head is added; its layer has no dropout.
        """
        targets_BL, used_BL = (arrange(x, self.scope) for x in following(batch))
        if preferences.NEEDED in batch:
            if SOFT_TARGETS in batch:
                raise UserError("train.distillation.teacher: the loss of preference pairs reads no soft targets; leave it out")
            logp_BL = log_probabilities(self.output_logits, x_BLM, targets_BL, self.scope)
            segments_BL, c = arrange(batch["segments"], self.scope), self.c
            return preference_loss(logp_BL, used_BL, segments_BL, batch, totals["pairs"], c.output.label_smoothing)
        soft_BLV = arrange(batch[SOFT_TARGETS], self.scope, "act_vocab") if SOFT_TARGETS in batch else None
        smoothing, total = self.c.output.label_smoothing, totals["tokens"]
        loss = token_loss_in_chunks(
            self.output_logits, x_BLM, targets_BL, used_BL, total, smoothing, self.scope, soft_BLV=soft_BLV
        )
        if self.mtp is None or not context.training:
            return loss
        return loss + self._second_loss(self.mtp, x_BLM, batch, context, totals)

    def _second_loss(self, head: SecondHead, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns what the second head adds to the loss."""
        next_BL, positions_BL = arrange(following(batch)[0], self.scope), arrange(batch["positions"], self.scope)
        targets_BL, used_BL = (arrange(x, self.scope) for x in following(batch, 2))
        x_BLM = head.joined(self._normed(x_BLM), self.embed_tokens(next_BL, positions_BL, None))
        number = jnp.full(1, self.c.layers if self.c.moe is None else self.c.layer_groups, jnp.int32)
        context = dataclasses.replace(context, key=None, layers=number)
        settings = self._layer_settings(head.layer, context.numbers)
        x_BLM, statistics = transformer.run(head.layer, x_BLM, self._arranged(batch), context, settings)
        routing = routing_loss(self.c.moe, statistics, totals["real"], "mtp", x_BLM.dtype)

        def logits(x_BLM: jax.Array) -> jax.Array:
            return self._logits(head.norm(x_BLM))

        loss = token_loss_in_chunks(logits, x_BLM, targets_BL, used_BL, totals["second"], 0.0, self.scope)
        value = self.c.output.mtp * loss.value
        return routing + Loss(value, value, {f"mtp_{name}": ratio for name, ratio in loss.metrics.items()})

    def totals(self, batch: Batch) -> Totals:
        """Returns how much all tokens count, over which the loss is a mean; how many there are, for routers' losses; and how many
        preference pairs."""
        totals = {"tokens": jnp.sum(following(batch)[1]), "real": jnp.sum(batch["segments"] > 0)}
        if self.mtp is not None:
            totals["second"] = jnp.sum(following(batch, 2)[1])
        if preferences.NEEDED in batch:
            totals["pairs"] = preferences.count(batch)
        return totals

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens, padding left out."""
        return {"tokens": jnp.sum(batch["segments"] > 0)}

    def check_rows(self, lengths: Mapping[str, int], microbatches: int, rows: int | None) -> None:
        if self.c.moe:
            check_groups(self.c.moe, self.scope, {self.stack_name: lengths["tokens"]}, microbatches, rows)

    def _arranged(self, batch: Batch) -> AttentionInputs:
        """Returns the attention inputs of a batch in the layout's order."""
        segments_BL, positions_BL = (arrange(batch[name], self.scope) for name in ("segments", "positions"))
        return self._attention_inputs(positions_BL, self._mask(segments_BL, batch).in_zigzag(self.scope), segments_BL)

    def _attention_inputs(
        self, positions_BL: jax.Array, mask: AttentionMask, segments_BL: jax.Array, reach_BL: jax.Array | None = None
    ) -> AttentionInputs:
        g = transformer.attention_inputs(self.c, positions_BL, mask, reach_BL)
        return g if self.c.moe is None else dataclasses.replace(g, real_BL=segments_BL > 0)

    def _layer_settings(self, layers: Block | LayerGroup, numbers: jax.Array) -> LayerSettings | None:
        """Returns the settings of layers, or along a second axis those of groups' layers, by their numbers in the stack."""
        if isinstance(layers, LayerGroup):
            own = jnp.arange(len(self.c.layer_group))
            numbers = self.c.leading + numbers[:, None] * len(self.c.layer_group) + own
        return transformer.layer_settings(self.c, numbers)

    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        dtype = self.scope.dtype
        x_BLM = self.embedding(ids_BL, dtype)
        if self.c.embedding_scale != 1:
            x_BLM *= jnp.asarray(self.c.embedding_scale, dtype)
        if isinstance(self.c.positions, Sinusoidal):
            x_BLM += sinusoids(positions_BL, self.c.model_dim, dtype)
        elif self.position_embedding is not None:
            assert isinstance(self.c.positions, Learned)
            x_BLM += self.position_embedding(positions_BL + self.c.positions.first, dtype)
        if self.embedding_norm is not None:
            x_BLM = self.embedding_norm(x_BLM)
        return dropout(x_BLM, self.c.dropout, key)

    def output_logits(self, x_BLM: jax.Array) -> jax.Array:
        return self._logits(self._normed(x_BLM))

    def _normed(self, x_BLM: jax.Array) -> jax.Array:
        return x_BLM if self.final_norm is None else self.final_norm(x_BLM)

    def _logits(self, x_BLM: jax.Array) -> jax.Array:
        if self.softmax.weight is None:
            w_MV, scope = self.embedding.table[...].T, self.embedding.scope
        else:
            w_MV, scope = self.softmax.weight[...], self.softmax.scope
        out = self.c.output
        return transformer.logits(x_BLM, w_MV, scope, bias=self.softmax.bias, cap=out.cap, divisor=out.divisor)

    # --- generation ---

    @property
    def vocab(self) -> int:
        return self.c.vocab

    @property
    def longest(self) -> int | None:
        positions = self.c.positions
        return positions.rows - positions.first if isinstance(positions, Learned) else None

    def start(self, batch: Batch, hypotheses: int, steps: int) -> Cache:
        """Reads B prompts, and prepares `hypotheses` continuations of each, of up to `steps` tokens; see ContinuesText."""
        ids_BS, lengths_B = batch["tokens"], batch["lengths"]
        (rows, size), c = ids_BS.shape, self.c
        positions_BS = jnp.broadcast_to(jnp.arange(size), ids_BS.shape)
        segments_BS = (positions_BS < lengths_B[:, None]).astype(jnp.int32)
        mask = AttentionMask.for_rows(segments_BS, segments_BS, causal=not c.prefix)
        slots = Slots.empty(rows, hypotheses, steps, lengths_B - 1, size)
        g = self._attention_inputs(positions_BS, mask, segments_BS, slots.reach_B1)
        x_BSM = self.embed_tokens(ids_BS, positions_BS, None)

        def grown(x_BSGD: jax.Array) -> jax.Array:
            return self.scope.shard(jnp.pad(x_BSGD, ((0, 0), (0, steps * hypotheses), (0, 0), (0, 0))), *self.cache_axes)

        layers = []
        for layer_stack in self.stacks:
            settings = self._layer_settings(layer_stack, jnp.arange(depth(layer_stack)))
            x_BSM, read = transformer.keys_values(layer_stack, c, x_BSM, g, settings)
            layers += [LayerCache(to_cache((grown(k), grown(v)))) for group in transformer.unstacked(read) for k, v in group]
        last_B = jnp.take_along_axis(ids_BS, lengths_B[:, None] - 1, axis=1)[:, 0]
        return Cache(self.blocks, layers, slots, last_B, jnp.ones(rows, bool))


def _layers(c: GptConfig, scope: Component) -> Callable[[jax.Array], Block | LayerGroup]:
    """Returns a function that makes a layer of the stack, or a group of them with a mixture, from a key."""
    return lambda key: Block(c, key, scope) if c.moe is None else LayerGroup(c, key, scope, Role(causal=True))


def depth(layers: Block | LayerGroup) -> int:
    """Returns how many blocks or layer groups a stack has."""
    return len(jax.tree.leaves(layers)[0])


def leading(batch: Batch) -> jax.Array:
    """Returns which tokens stand before the first of their document that counts, bool [B, L]."""
    index_1L = jnp.arange(batch["tokens"].shape[1], dtype=jnp.int32)[None]
    counted_BL = jax.lax.cummax(jnp.where(batch["loss_weights"] > 0, index_1L, -1), axis=1)
    return counted_BL < index_1L - batch["positions"]


def following(batch: Batch, places: int = 1) -> tuple[jax.Array, jax.Array]:
    """Returns (the next token of each [B, L], or one that is so many places behind it, and how much that counts [B, L]: nothing
    where it is of another document)."""
    tokens_BL, segments_BL = batch["tokens"], batch["segments"]

    def after(x_BL: jax.Array) -> jax.Array:
        return jnp.pad(x_BL[:, places:], ((0, 0), (0, places)))

    same_BL = (after(segments_BL) == segments_BL) & (segments_BL > 0)
    return after(tokens_BL), same_BL * after(batch["loss_weights"]) if "loss_weights" in batch else same_BL
