"""GPT: a decoder that predicts each token from those before it, for every published variant in configs/gpt.py.

B rows, L positions, K hypotheses, T cached positions, M model, V vocabulary. The layers are models/parts/transformer.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.gpt.config import GptConfig
from models.parts import preferences, transformer
from models.parts.attention.mask import AttentionMask, arrange
from models.parts.kv_cache import LayerCache, Slots, to_cache
from models.parts.layer_group import LayerGroup, run_groups
from models.parts.layers import Embedding, dropout, sinusoids
from models.parts.losses import Loss, Totals, log_probabilities, token_loss_in_chunks, zero_loss
from models.parts.moe.layer import check_groups, routing_loss
from models.parts.preferences import preference_loss
from models.parts.transformer import AttentionInputs, Block, LayerSettings, Statistics
from models.protocol import Batch, Context, Staged
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules, zeros


class Softmax(nnx.Module):
    """What the output logits have of their own: a matrix where the embedding is not tied, a bias where there is one."""

    def __init__(self, c: GptConfig, key: jax.Array, scope: Component):
        self.scope = scope
        init = normal(c.model_dim**-0.5)
        self.weight = None if c.tied else param(key, (c.model_dim, c.vocab), ("embed", "vocab"), init, scope)
        self.bias = param(key, (c.vocab,), ("vocab",), zeros, scope) if c.softmax_bias else None


class Gpt(Staged):
    """The whole model. Parameters only; every method is a pure function of them and its arguments."""

    def __init__(self, c: GptConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.c, self.scope = c, scope
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding", std=0.02)
        inner = scope / "position_embedding"
        self.position_embedding = (
            Embedding(c.max_positions, c.model_dim, k2, inner, std=0.02, axis="positions") if c.max_positions else None
        )
        self.leading = (
            stack_modules(lambda k: Block(c, k, scope / "leading"), jax.random.fold_in(k3, 0), c.leading_layers)
            if c.leading_layers
            else None
        )
        if c.moe is None:
            self.decoder = stack_modules(lambda k: Block(c, k, scope / "decoder"), k3, c.layers)
        else:
            self.decoder = stack_modules(lambda k: LayerGroup(c, k, scope / "decoder", causal=True), k3, c.layer_groups)
        self.final_norm = None if c.order == "post" else transformer.norm(c, scope / "final_norm")
        self.softmax = Softmax(c, k4, scope / "softmax")

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the logits [B, L, V] of the token after each, outside training."""
        segments_BL, positions_BL = batch["segments"], batch["positions"]
        g = self._attention_inputs(positions_BL, self._mask(segments_BL, batch), segments_BL)
        x_BLM = self._embed(batch["tokens"], positions_BL)
        for layers in self._stacks:
            x_BLM, _ = self._run(layers, x_BLM, g, Context.evaluation().for_layers(depth(layers)))
        return self._logits(x_BLM)

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns the model itself where the routers' balance is that of all of a batch's tokens together; see `Model`."""
        pooled = self.c.moe is not None and self.c.moe.balance == "pooled" and self.c.moe.balance_weight > 0
        return (self.scope.path,) if pooled else ()

    @property
    def _stacks(self) -> list[Block | LayerGroup]:
        """The stacks of layers, in order."""
        return [self.decoder] if self.leading is None else [self.leading, self.decoder]

    def _mask(self, segments_BL: jax.Array, batch: Batch) -> AttentionMask:
        """Returns the mask of rows in order, of which the segments may be in the layout's order already."""
        mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=True)
        return mask.with_prefix(leading(batch)) if self.c.prefix and "predicted" in batch else mask

    # --- training ---

    # The loss (Staged.loss) is the cross-entropy of each token that follows another in its document. Batches have int32 arrays
    # [B, L] `tokens`, `segments` (documents of a row from 1, 0 is padding) and `positions`, and may have `predicted`, how much
    # a token counts: 0 not at all. Those of preference pairs also have `reference` and `betas` (models/parts/preferences.py).
    # Between `embed` and `head_loss` positions are in the layout's order (models/parts/attention/mask.py).

    stack_name: ClassVar[str] = "decoder"

    def embed(self, batch: Batch, context: Context) -> jax.Array:
        """Returns the input [B, L, M] of the stack: the embedding, and what leading layers make of it."""
        tokens_BL, positions_BL = (arrange(batch[name], self.scope) for name in ("tokens", "positions"))
        x_BLM = self._embed(tokens_BL, positions_BL)
        if self.leading is None:
            return dropout(x_BLM, self.c.dropout, context.key)
        embedding, layers = context.split(2)
        x_BLM = dropout(x_BLM, self.c.dropout, embedding.key)
        return self._run(self.leading, x_BLM, self._arranged(batch), layers.for_layers(self.c.leading_layers))[0]

    def apply_layers(
        self, blocks: Block | LayerGroup, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals
    ) -> tuple[jax.Array, Loss]:
        """Runs some of the layers; see Staged."""
        x_BLM, statistics = self._run(blocks, x_BLM, self._arranged(batch), context)
        if self.c.moe is None:
            return x_BLM, zero_loss(x_BLM.dtype)
        return x_BLM, routing_loss(self.c.moe, statistics, totals["real"], "decoder")

    def head_loss(self, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of the last layer's output, of preference pairs DPO's loss; see Staged."""
        del context
        targets_BL, used_BL = (arrange(x, self.scope) for x in following(batch))
        if preferences.NEEDED in batch:
            logp_BL = log_probabilities(self._logits, x_BLM, targets_BL, self.scope)
            segments_BL, c = arrange(batch["segments"], self.scope), self.c
            return preference_loss(logp_BL, used_BL, segments_BL, batch, totals["pairs"], c.label_smoothing)
        return token_loss_in_chunks(
            self._logits, x_BLM, targets_BL, used_BL, totals["tokens"], self.c.label_smoothing, self.scope
        )

    def totals(self, batch: Batch) -> Totals:
        """Returns how much all tokens count, over which the loss is a mean; how many there are, for routers' losses; and how many
        preference pairs."""
        counted = {"tokens": jnp.sum(following(batch)[1])}
        if preferences.NEEDED in batch:
            counted["pairs"] = preferences.count(batch)
        return counted if self.c.moe is None else counted | {"real": jnp.sum(batch["segments"] > 0)}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens, padding left out."""
        return {"tokens": jnp.sum(batch["segments"] > 0)}

    def check_rows(self, lengths: Mapping[str, int], microbatches: int) -> None:
        """Raises LayoutError where rows are dealt out to microbatches and routing groups span rows."""
        pipeline = self.scope.layout.pipeline(self.stack_name)
        parts = microbatches * (pipeline.microbatches if pipeline else 1)
        if self.c.moe and parts > 1:
            check_groups(self.c.moe, lengths.values(), parts)

    def _arranged(self, batch: Batch) -> AttentionInputs:
        """Returns the geometry of a batch in the layout's order."""
        segments_BL, positions_BL = (arrange(batch[name], self.scope) for name in ("segments", "positions"))
        return self._attention_inputs(positions_BL, self._mask(segments_BL, batch).in_zigzag(self.scope), segments_BL)

    def _attention_inputs(
        self, positions_BL: jax.Array, mask: AttentionMask, segments_BL: jax.Array, reach_BL: jax.Array | None = None
    ) -> AttentionInputs:
        g = transformer.attention_inputs(self.c, positions_BL, mask, reach_BL)
        return g if self.c.moe is None else dataclasses.replace(g, real_BL=segments_BL > 0)

    def _run(
        self, layers: Block | LayerGroup, x_BLM: jax.Array, g: AttentionInputs, context: Context
    ) -> tuple[jax.Array, Statistics]:
        """Runs some of the layers of a stack; returns (the last one's output, statistics of mixtures)."""
        kinds = self._kinds(layers, context.numbers)
        if isinstance(layers, LayerGroup):
            return run_groups(layers, x_BLM, g, context.key, self.scope / self.stack_name, kinds)
        return transformer.run(layers, x_BLM, g, context.key, kinds), {}

    def _kinds(self, layers: Block | LayerGroup, numbers: jax.Array) -> LayerSettings | None:
        """Returns the kinds of layers, or of units those of their layers along a second axis, by their numbers in the stack."""
        if isinstance(layers, LayerGroup):
            own = jnp.arange(len(self.c.layer_group))
            numbers = self.c.leading_layers + numbers[:, None] * len(self.c.layer_group) + own
        return transformer.kinds(self.c, numbers)

    def _embed(self, ids_BL: jax.Array, positions_BL: jax.Array) -> jax.Array:
        dtype = self.scope.dtype
        x_BLM = self.embedding(ids_BL, dtype)
        if self.c.embedding_scale != 1:
            x_BLM *= jnp.asarray(self.c.embedding_scale, dtype)
        if self.c.positions == "sinusoidal":
            return x_BLM + sinusoids(positions_BL, self.c.model_dim, dtype)
        return x_BLM if self.position_embedding is None else x_BLM + self.position_embedding(positions_BL, dtype)

    def _logits(self, x_BLM: jax.Array) -> jax.Array:
        if self.final_norm is not None:
            x_BLM = self.final_norm(x_BLM)
        if self.softmax.weight is None:
            w_MV, scope = self.embedding.table[...].T, self.embedding.scope
        else:
            w_MV, scope = self.softmax.weight[...], self.softmax.scope
        return transformer.logits(self.c, x_BLM, w_MV, self.softmax.bias, scope)

    # --- generation, a token at a time ---

    @property
    def vocab(self) -> int:
        """How many tokens the model knows."""
        return self.c.vocab

    @property
    def longest(self) -> int | None:
        """The most positions that a text may have; None where nothing bounds it."""
        return self.c.max_positions or None

    def start(self, ids_BS: jax.Array, lengths_B: jax.Array, hypotheses: int, steps: int) -> "Cache":
        """Reads B prompts and prepares `hypotheses` continuations of each, of up to `steps` tokens.

        Args:
          ids_BS: prompts from the left; what stands beyond their end is not looked at.
          lengths_B: of the prompts, at least 1.
        """
        c, size = self.c, ids_BS.shape[1]
        positions_BS = jnp.broadcast_to(jnp.arange(size), ids_BS.shape)
        segments_BS = (positions_BS < lengths_B[:, None]).astype(jnp.int32)
        mask = AttentionMask.for_rows(segments_BS, segments_BS, causal=not c.prefix)
        slots = Slots.empty(len(ids_BS), hypotheses, steps, lengths_B - 1, size)
        g, x_BSM = self._attention_inputs(positions_BS, mask, segments_BS, slots.reach_B1), self._embed(ids_BS, positions_BS)
        heads = None if c.latent else "act_heads" if c.groups == c.heads else "act_kv_heads"
        names = ("batch", None, heads, None)

        def grown(x_BSGD: jax.Array) -> jax.Array:
            return self.scope.shard(jnp.pad(x_BSGD, ((0, 0), (0, steps * hypotheses), (0, 0), (0, 0))), *names)

        blocks, layers = [], []
        for layer_stack in self._stacks:
            kinds = self._kinds(layer_stack, jnp.arange(depth(layer_stack)))
            x_BSM, read = transformer.keys_values(layer_stack, c, x_BSM, g, kinds)
            blocks += [block for unit in transformer.unstacked(layer_stack) for block in unit.layers]
            layers += [LayerCache(to_cache((grown(k), grown(v)))) for unit in transformer.unstacked(read) for k, v in unit]
        last_B = jnp.take_along_axis(ids_BS, lengths_B[:, None] - 1, axis=1)[:, 0]
        return Cache(blocks, layers, slots, last_B)

    def step(self, cache: "Cache", ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, "Cache"]:
        """Logits [B, K, V] of the token after `ids`, the `at`-th of the continuation, and the cache with them in it.

        At 0 the prompt's last token takes their place. Hypotheses may be at different places: `at` is a scalar, or [B, K].
        """
        step = cache.slots.at(jnp.asarray(at))
        ids_BK = jnp.where(at == 0, cache.last_B[:, None], ids_BK)
        positions_BK = jnp.broadcast_to(step.positions_BK, ids_BK.shape)
        x_R1M = self._embed(ids_BK.reshape(-1, 1), positions_BK.reshape(-1, 1))
        g, layers = transformer.cached_attention_inputs(self.c, step), []
        if self.c.moe is not None:
            g = dataclasses.replace(g, real_BL=jnp.ones(x_R1M.shape[:2], bool))
        for i, (block, layer) in enumerate(zip(cache.blocks, cache.layers, strict=True)):
            x_R1M, layer = transformer.decoded(block, x_R1M, g, layer, transformer.kinds(self.c, jnp.array(i)))
            layers.append(layer)
        logits_BKV = self._logits(x_R1M).reshape(*ids_BK.shape, -1)
        return logits_BKV, dataclasses.replace(cache, layers=layers, slots=step.slots)

    @staticmethod
    def reorder(cache: "Cache", parent_BK: jax.Array) -> "Cache":
        """The cache in which hypothesis k of a prompt continues what hypothesis parent[b, k] was."""
        return dataclasses.replace(cache, slots=cache.slots.reordered(parent_BK))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """What generation remembers.

    Attributes:
      blocks: the model's layers, one by one (transformer.unstacked).
      layers: of each layer, what its slots hold.
      slots: which position each holds, and whose.
      last_B: each prompt's last token.
    """

    blocks: list[Block]
    layers: list[LayerCache]
    slots: Slots
    last_B: jax.Array


def depth(layers: Block | LayerGroup) -> int:
    """Returns how many blocks or units a stack has."""
    return len(jax.tree.leaves(layers)[0])


def leading(batch: Batch) -> jax.Array:
    """Returns which tokens stand before the first of their document that counts, bool [B, L]."""
    index_1L = jnp.arange(batch["tokens"].shape[1], dtype=jnp.int32)[None]
    counted_BL = jax.lax.cummax(jnp.where(batch["predicted"] > 0, index_1L, -1), axis=1)
    return counted_BL < index_1L - batch["positions"]


def following(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns (the next token of each [B, L], how much it counts [B, L]: nothing where it is of another document)."""
    tokens_BL, segments_BL = batch["tokens"], batch["segments"]

    def after(x_BL: jax.Array) -> jax.Array:
        return jnp.pad(x_BL[:, 1:], ((0, 0), (0, 1)))

    same_BL = (after(segments_BL) == segments_BL) & (segments_BL > 0)
    return after(tokens_BL), same_BL * after(batch["predicted"]) if "predicted" in batch else same_BL
