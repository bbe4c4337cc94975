"""BERT (arXiv 1810.04805): a bidirectional encoder, pre-trained on masked tokens and fine-tuned with a head.

B rows, L positions, M model; P slots of a row: the places whose output is wanted. A packed row holds several examples, told
apart by `segments`. The layers are models/parts/transformer.py, the heads models/parts/heads.py.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.bert.config import BertConfig
from models.parts import heads, transformer
from models.parts.attention.config import Disentangled, Learned, LearnedAndBuckets, Sinusoidal
from models.parts.attention.mask import AttentionMask
from models.parts.layers import Embedding, add_bias, dropout, project, sinusoids
from models.parts.losses import Loss, Totals, zero_loss
from models.parts.transformer import Block, Role
from models.protocol import Batch, Classifies, Context, Embeds, Staged
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules, zeros

# What passes from layer to layer: vectors [B, L, M], and what layers share of K buckets of relative positions: biases [1, 1, N K]
# or vectors [1, K, M].
StackInput = tuple[jax.Array, jax.Array | None]


class Bert(Staged, Classifies, Embeds):
    """The whole model. Parameters only; every method is a pure function of them and its arguments."""

    def __init__(self, c: BertConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        e, m = c.embedding_dim, c.model_dim
        self.c, self.scope = c, scope
        self.embedding = Embedding(c.vocab, e, k1, scope / "embedding", std=0.02)
        self.position_embedding = self._table(c.max_positions, k2, "position_embedding")
        self.type_embedding = self._table(c.embedding.types, k3, "type_embedding")
        self.embedding_norm = transformer.norm(c, scope / "embedding_norm", e) if c.embedding.norm else None
        into, between = jax.random.fold_in(k1, 1), scope / "projection"
        self.projection = param(into, (e, m), ("embed", "mlp"), normal(0.02), between) if e != m else None
        self.projection_bias = param(into, (m,), ("mlp",), zeros, between) if e != m else None
        self.relative_bias = self._relative_bias(jax.random.fold_in(k2, 1))
        distances = 2 * c.positions.buckets if isinstance(c.positions, Disentangled) else 0
        self.distance_embedding = self._table(distances, jax.random.fold_in(k2, 2), "distance_embedding", m)
        self.distance_norm = transformer.norm(c, scope / "distance_norm") if distances else None
        if c.bare_first:  # a stack of one layer, which is run as the other one is
            first = stack_modules(lambda k: Block(c, k, scope / "first", Role(normed=False)), jax.random.fold_in(k4, 1), 1)
        self.first = first if c.bare_first else None
        self.encoder = stack_modules(lambda k: Block(c, k, scope / "encoder"), k4, c.stacked)
        self.final_norm = None if c.norm.order == "post" else transformer.norm(c, scope / "final_norm")
        self.head = heads.make(c, c.head, k5, scope / "head")

    def _table(self, rows: int, key: jax.Array, name: str, size: int = 0) -> Embedding | None:
        scope = self.scope / name
        return Embedding(rows, size or self.c.embedding_dim, key, scope, std=0.02, axis="positions") if rows else None

    def _relative_bias(self, key: jax.Array) -> nnx.Param | None:
        c = self.c
        if not isinstance(c.positions, LearnedAndBuckets):
            return None
        shape, init = (c.attention.heads, c.positions.buckets), normal(c.model_dim**-0.5)
        return param(key, shape, ("heads", "buckets"), init, self.scope / "encoder" / "attention")

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the head's output [B, P, ...] of each slot, outside training (models/parts/heads.py)."""
        return self.head.outputs(self.encode(batch), batch, self.embedding)

    def encode(self, batch: Batch) -> jax.Array:
        """Returns the encoder's output [B, L, M], outside training."""
        nothing_random = Context.evaluation()
        x, layers = self.embed(batch, nothing_random), nothing_random.for_layers(self.c.stacked)
        return self._normed(self._run(self.encoder, x, batch, layers)[0])

    # --- training ---

    # The loss (Staged.loss) is the head's, over the slots that have a target. Batches have int32 arrays [B, L] `tokens`,
    # `segments` (examples of a row from 1, 0 is padding), `positions` (from 0 in each example) and, with token types, `types`;
    # `slots`, `targets` and what else the head reads are described in models/parts/heads.py.

    stack_name: ClassVar[str] = "encoder"

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns the head where its loss compares the rows of a batch with each other; see `Model`."""
        return ((self.scope / "head").path,) if self.head.couples_examples else ()

    @property
    def classes(self) -> int:
        return self.head.classes

    @property
    def embeds(self) -> bool:
        return self.head.embeds

    def embed(self, batch: Batch, context: Context) -> StackInput:
        """Returns the stack's input: the embeddings [B, L, M], or what a first layer before it makes of them, and what layers
        share."""
        c, dtype = self.c, self.scope.dtype
        x_BLM = self.embedding(batch["tokens"], dtype)
        if self.position_embedding is not None:
            first = c.positions.first if isinstance(c.positions, Learned) else 0
            x_BLM += self.position_embedding(batch["positions"] + first, dtype)
        if isinstance(c.positions, Sinusoidal):
            x_BLM += sinusoids(batch["positions"], c.embedding_dim, dtype)
        if self.type_embedding is not None:
            types_BL = batch["types"] if "types" in batch and c.embedding.types > 1 else jnp.zeros_like(batch["tokens"])
            x_BLM += self.type_embedding(types_BL, dtype)
        if self.embedding_norm is not None:
            x_BLM = self.embedding_norm(x_BLM)
        of_embeddings, first = (context, context) if self.first is None else context.split(2)
        x_BLM = dropout(x_BLM, c.dropout, of_embeddings.key)
        if self.projection is not None:
            x_BLM = add_bias(project(x_BLM, self.projection[...], self.scope / "projection"), self.projection_bias)
            x_BLM = self.scope.shard(x_BLM, "batch", "res_length", "act_embed")
        x = x_BLM, self._shared()
        return x if self.first is None else self._run(self.first, x, batch, first.for_layers(1), before=0)

    def _shared(self) -> jax.Array | None:
        """Returns what layers share: those of a pipeline's stage have no parameter but their own."""
        if self.distance_embedding is not None and self.distance_norm is not None:
            table_1KM = self.distance_embedding.table[...].astype(self.scope.dtype)[None]
            return self.distance_norm(self.scope.shard(table_1KM, None, None, None))
        return None if self.relative_bias is None else self.relative_bias[...].reshape(1, 1, -1)

    def apply_layers(
        self, blocks: Block, x: StackInput, batch: Batch, context: Context, totals: Totals
    ) -> tuple[StackInput, Loss]:
        return self._run(blocks, x, batch, context), zero_loss(x[0].dtype)

    def head_loss(self, x: StackInput, batch: Batch, context: Context, totals: Totals) -> Loss:
        return self.head.loss(self._normed(x[0]), batch, self.embedding, context, totals)

    def totals(self, batch: Batch) -> Totals:
        """Returns the head's counts, over which its losses are means."""
        return self.head.totals(batch)

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens, padding left out."""
        return {"tokens": jnp.sum(batch["segments"] > 0)}

    def _run(self, blocks: Block, x: StackInput, batch: Batch, context: Context, before: int | None = None) -> StackInput:
        """Runs some layers of a stack; `before` it are so many, by default the first layer where it is apart."""
        (x_BLM, shared), c = x, self.c
        mask = AttentionMask.for_rows(batch["segments"], batch["segments"])
        g = transformer.attention_inputs(c, batch["positions"], mask)
        if shared is not None:
            of_heads = shared if self.distance_norm is not None else shared.reshape(1, c.attention.heads, -1)
            g = dataclasses.replace(g, bias_1NK=of_heads)
        numbers = context.numbers + (c.bare_first if before is None else before)
        settings = transformer.layer_settings(c, numbers)
        return transformer.run(blocks, x_BLM, g, context, settings, c.repeats)[0], shared

    def _normed(self, x_BLM: jax.Array) -> jax.Array:
        return x_BLM if self.final_norm is None else self.final_norm(x_BLM)
