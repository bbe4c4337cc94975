"""BERT (arXiv 1810.04805): a bidirectional encoder, pre-trained on masked tokens and fine-tuned with a head.

B rows, L positions, M model, V vocabulary; P slots of a row: the places whose output is wanted, with C classes each. A packed
row holds several examples, told apart by `segments`; a slot belongs to the example that it lies in.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.bert.config import BertConfig, Classification, MaskedLm, SentenceEmbedding, Span
from models.parts import transformer
from models.parts.attention.mask import Sight, same_segment
from models.parts.layers import (
    ACTIVATIONS,
    Embedding,
    add_bias,
    dropout,
    project,
)
from models.parts.losses import Loss, Ratio, Totals, cross_entropy, per, token_loss, zero_loss
from models.parts.transformer import Block, Key
from models.protocol import Batch, Context, Staged
from models.sharding.component import Component
from models.sharding.params import normal, param, stack, zeros

NEVER = -1e9  # the logit of a position outside the example


class Head(nnx.Module):
    """The parameters between the encoder and the outputs; which there are depends on the config's head."""

    def __init__(self, c: BertConfig, key: jax.Array, where: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        m, head = c.model_dim, c.head
        self.where = where

        def dense(key: jax.Array, outputs: int, name: str):
            weight = param(key, (m, outputs), ("embed", name), normal(0.02), where)
            return weight, param(key, (outputs,), (name,), zeros, where)

        masked = head if isinstance(head, MaskedLm) else None
        pooled = bool(masked and masked.next_sentence) or (isinstance(head, Classification) and head.pooling == "cls")
        if pooled:
            self.pooler, self.pooler_bias = dense(k1, m, "mlp")
        if masked and masked.transform:
            self.transform, self.transform_bias = dense(k2, m, "mlp")
            self.norm = transformer.norm(c, where)
        if masked and masked.next_sentence:
            self.next_weight, self.next_bias = dense(k3, 2, "labels")
        if masked:
            self.bias = param(k4, (c.vocab,), ("vocab",), zeros, where) if c.softmax_bias else None
        elif outputs := 2 if isinstance(head, Span) else c.labels:
            self.weight, self.bias = dense(k4, outputs, "labels")


class Bert(Staged):
    """The whole model. Parameters only; every method is a pure function of them and its arguments."""

    def __init__(self, c: BertConfig, key: jax.Array, where: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        m = c.model_dim
        self.c, self.where = c, where
        self.embedding = Embedding(c.vocab, m, k1, where / "embedding", std=0.02)
        self.position_embedding = self._table(c.max_positions, k2, "position_embedding")
        self.type_embedding = self._table(c.types, k3, "type_embedding")
        self.embedding_norm = transformer.norm(c, where / "embedding_norm") if c.embedding_norm else None
        self.encoder = stack(lambda k: Block(c, k, where / "encoder"), k4, c.layers)
        self.final_norm = None if c.order == "post" else transformer.norm(c, where / "final_norm")
        self.head = None if isinstance(c.head, SentenceEmbedding) else Head(c, k5, where / "head")

    def _table(self, rows: int, key: jax.Array, name: str) -> Embedding | None:
        where = self.where / name
        return Embedding(rows, self.c.model_dim, key, where, std=0.02, axis="positions") if rows else None

    # --- training ---

    # The loss (Staged.loss) is the head's, over the slots that have a target. Batches have int32 arrays [B, L] `tokens`,
    # `segments` (examples of a row from 1, 0 is padding), `positions` (from 0 in each example) and, with token types, `types`;
    # [B, P] `slots` (positions in the row) and `targets` (ids or classes, -1 for an unused slot). Targets of a Span are
    # [B, P, 2], positions in the row; those of a SentenceEmbedding number the pairs of a row. With next_sentence there are also
    # `pair_slots` and `pair_targets` [B, Q]. Outside training classifications add their confusion matrix.

    stack: ClassVar[str] = "encoder"

    @property
    def couples_examples(self) -> bool:
        """Whether the loss compares the rows of a batch with each other."""
        return isinstance(self.c.head, SentenceEmbedding)

    def embed(self, batch: Batch, context: Context) -> jax.Array:
        """Returns the first layer's input [B, L, M]."""
        c, dtype = self.c, jnp.dtype(self.c.dtype)
        x_BLM = self.embedding(batch["tokens"], dtype)
        if self.position_embedding is not None:
            x_BLM += self.position_embedding(batch["positions"], dtype)
        if self.type_embedding is not None:
            types_BL = batch["types"] if "types" in batch else jnp.zeros_like(batch["tokens"])
            x_BLM += self.type_embedding(types_BL, dtype)
        if self.embedding_norm is not None:
            x_BLM = self.embedding_norm(x_BLM)
        return dropout(x_BLM, c.dropout, context.key)

    def apply_layers(
        self, blocks: Block, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals
    ) -> tuple[jax.Array, Loss]:
        """Runs some of the layers; see Staged."""
        del totals
        return self._run(blocks, x_BLM, batch, context.key), zero_loss(x_BLM.dtype)

    def head_loss(self, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the head's loss of the last layer's output; see Staged."""
        if self.final_norm is not None:
            x_BLM = self.final_norm(x_BLM)
        match self.c.head:
            case Span():
                return self._span_loss(x_BLM, batch, totals)
            case SentenceEmbedding():
                return self._pair_loss(x_BLM, batch, totals)
        logits_BPC = self._outputs(x_BLM, batch)
        targets_BP, used_BP = batch["targets"], batch["targets"] >= 0
        loss = token_loss(logits_BPC, targets_BP, used_BP, totals["slots"], self.c.label_smoothing)
        if not context.training and self.c.labels:
            guess_BP, classes = jnp.argmax(logits_BPC, axis=-1), jnp.arange(self.c.labels)
            true_BPC, guess_BPC = (targets_BP[..., None] == classes), (guess_BP[..., None] == classes)
            confusion_CD = jnp.einsum("BPC,BPD->CD", true_BPC.astype(loss.value.dtype), guess_BPC * 1.0)
            loss.metrics["confusion"] = Ratio(confusion_CD, jnp.sum(used_BP))
        if isinstance(self.c.head, MaskedLm) and self.c.head.next_sentence:
            loss += self._next_sentence(x_BLM, batch, totals)
        return loss

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of slots with a target and of sentence pairs, over which losses are means."""
        used = batch["targets"] >= 0
        found = {"slots": jnp.sum(jnp.any(used, axis=-1) if used.ndim == 3 else used)}
        return found | ({"pairs": jnp.sum(batch["pair_targets"] >= 0)} if "pair_targets" in batch else {})

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens, padding left out."""
        return {"tokens": jnp.sum(batch["segments"] > 0)}

    def encode(self, batch: Batch) -> jax.Array:
        """Returns the encoder's output [B, L, M] outside training."""
        x_BLM = self._run(self.encoder, self.embed(batch, Context.evaluation()), batch, None)
        return x_BLM if self.final_norm is None else self.final_norm(x_BLM)

    def _run(self, blocks: Block, x_BLM: jax.Array, batch: Batch, keys: Key) -> jax.Array:
        g = transformer.geometry(self.c, batch["positions"], Sight.of(batch["segments"], batch["segments"]))
        return transformer.run(blocks, self.c, x_BLM, g, keys)[0]

    # --- heads ---

    def outputs(self, batch: Batch) -> jax.Array:
        """What the head gives for each slot: logits [B, P, C] (C = V for masked tokens), for a Span the logits [B, P, L, 2]
        of starts and ends, for a SentenceEmbedding unit vectors [B, P, M]."""
        return self._outputs(self.encode(batch), batch)

    def _outputs(self, x_BLM: jax.Array, batch: Batch) -> jax.Array:
        c, head = self.c, self.head
        if head is None:
            return self._unit(self._mean(x_BLM, batch))
        if isinstance(c.head, Span):
            logits_BLC = add_bias(project(x_BLM, head.weight[...], head.where), head.bias)
            logits_BPLC = jnp.where(self._example(batch)[..., None], logits_BLC[:, None], NEVER)
            return logits_BPLC.astype(jnp.promote_types(logits_BLC.dtype, jnp.float32))
        if isinstance(c.head, Classification) and c.head.pooling == "mean":
            x_BPM = self._mean(x_BLM, batch)
        else:
            x_BPM = self._take(x_BLM, batch["slots"])
        if not isinstance(c.head, MaskedLm):
            if isinstance(c.head, Classification) and c.head.pooling == "cls":
                x_BPM = self._pool(x_BPM)
            return add_bias(project(x_BPM, head.weight[...], head.where), head.bias)
        if c.head.transform:
            act = ACTIVATIONS[c.activation]
            x_BPM = head.norm(act(add_bias(project(x_BPM, head.transform[...], head.where), head.transform_bias)))
        table, where = self.embedding.table[...], self.embedding.where
        return transformer.logits(c, x_BPM, table.T, head.bias, where, positions=None)

    def _take(self, x_BLM: jax.Array, slots_BP: jax.Array) -> jax.Array:
        x_BPM = jnp.take_along_axis(x_BLM, slots_BP[..., None], axis=1)
        return self.where.shard(x_BPM, "batch", None, "act_embed")

    def _pool(self, x_BPM: jax.Array) -> jax.Array:
        assert self.head is not None
        return jnp.tanh(add_bias(project(x_BPM, self.head.pooler[...], self.head.where), self.head.pooler_bias))

    def _example(self, batch: Batch) -> jax.Array:
        """[B, P, L]: True where a position lies in the slot's example."""
        return same_segment(jnp.take_along_axis(batch["segments"], batch["slots"], axis=1), batch["segments"])

    def _mean(self, x_BLM: jax.Array, batch: Batch) -> jax.Array:
        """The mean vector [B, P, M] of each slot's example, special tokens included, float32 at least."""
        wide = jnp.promote_types(x_BLM.dtype, jnp.float32)
        weight_BPL = self._example(batch).astype(wide)
        total_BPM = jnp.einsum("BPL,BLM->BPM", weight_BPL, x_BLM.astype(wide))
        return total_BPM / jnp.maximum(jnp.sum(weight_BPL, axis=-1, keepdims=True), 1)

    @staticmethod
    def _unit(x_BPM: jax.Array) -> jax.Array:
        return x_BPM * jax.lax.rsqrt(jnp.maximum(jnp.sum(x_BPM * x_BPM, axis=-1, keepdims=True), 1e-24))

    def _next_sentence(self, x_BLM: jax.Array, batch: Batch, totals: Totals) -> Loss:
        """Returns the auxiliary loss of sentence pairs, as a mean over the whole batch's, and their accuracy."""
        assert self.head is not None
        pooled_BQM = self._pool(self._take(x_BLM, batch["pair_slots"]))
        logits_BQ2 = add_bias(project(pooled_BQM, self.head.next_weight[...], self.head.where), self.head.next_bias)
        targets_BQ = batch["pair_targets"]
        loss = token_loss(logits_BQ2, targets_BQ, targets_BQ >= 0, totals["pairs"])
        return Loss(loss.value, loss.value, {f"next_sentence/{name}": ratio for name, ratio in loss.metrics.items()})

    def _span_loss(self, x_BLM: jax.Array, batch: Batch, totals: Totals) -> Loss:
        """Cross-entropy of start plus that of end; accuracy counts answers with both right, f1 shared tokens."""
        logits_BPLC = self._outputs(x_BLM, batch)
        targets_BPC = batch["targets"]
        plain_BPC = jnp.stack([cross_entropy(logits_BPLC[..., i], targets_BPC[..., i])[1] for i in (0, 1)], axis=-1)
        weight_BP = jnp.any(targets_BPC >= 0, axis=-1).astype(plain_BPC.dtype)
        start_BP, end_BP = best_span(logits_BPLC)
        true_start_BP, true_end_BP = targets_BPC[..., 0], targets_BPC[..., 1]
        both_BP = (start_BP == true_start_BP) & (end_BP == true_end_BP)
        shared_BP = jnp.maximum(jnp.minimum(end_BP, true_end_BP) - jnp.maximum(start_BP, true_start_BP) + 1, 0)
        f1_BP = 2 * shared_BP / jnp.maximum(end_BP - start_BP + 1 + true_end_BP - true_start_BP + 1, 1)
        total = jnp.sum(jnp.sum(plain_BPC, axis=-1) * weight_BP)
        n = jnp.sum(weight_BP)
        sums = {"cross_entropy": total, "accuracy": jnp.sum(both_BP * weight_BP), "f1": jnp.sum(f1_BP * weight_BP)}
        value = per(total, totals["slots"])
        return Loss(value, jnp.zeros_like(value), {k: Ratio(v, n) for k, v in sums.items()})

    def _pair_loss(self, x_BLM: jax.Array, batch: Batch, totals: Totals) -> Loss:
        """Cross-entropy of each member's partner among all members of the batch's other side, both ways.

        Pairs lie in neighbouring slots: 2i holds a first member and 2i + 1 its partner, with the same target.
        """
        assert isinstance(self.c.head, SentenceEmbedding)
        unit_BPM = self._outputs(x_BLM, batch)
        first_NM, second_NM = (unit_BPM[:, i::2].reshape(-1, unit_BPM.shape[-1]) for i in (0, 1))
        used_N = batch["targets"][:, 0::2].reshape(-1) >= 0
        scores_NN = first_NM @ second_NM.T / self.c.head.temperature
        total, hits = jnp.zeros((), scores_NN.dtype), jnp.zeros((), scores_NN.dtype)
        weight_N = used_N.astype(scores_NN.dtype)
        own_N = jnp.arange(len(used_N))
        for side_NN in (scores_NN, scores_NN.T):
            side_NN = jnp.where(used_N[None, :], side_NN, NEVER)
            total += jnp.sum(cross_entropy(side_NN, own_N)[1] * weight_N)
            hits += jnp.sum((jnp.argmax(side_NN, axis=-1) == own_N) * weight_N)
        n = 2 * jnp.sum(used_N)
        value = per(total, totals["slots"])
        return Loss(value, jnp.zeros_like(value), {"cross_entropy": Ratio(total, n), "accuracy": Ratio(hits, n)})


def best_span(logits_BPLC: jax.Array, longest: int = 30) -> tuple[jax.Array, jax.Array]:
    """(start, end) [B, P] with the largest sum of logits among spans of at most `longest` tokens (BERT, section 4.2)."""
    start_BPL, end_BPL = logits_BPLC[..., 0], logits_BPLC[..., 1]
    length = start_BPL.shape[-1]
    sums_BPLD = jnp.stack(
        [
            jnp.pad(
                start_BPL[..., : length - d] + end_BPL[..., d:], ((0, 0), (0, 0), (0, d)), constant_values=2 * NEVER
            )
            for d in range(min(longest, length))
        ],
        axis=-1,
    )
    best_BP = jnp.argmax(sums_BPLD.reshape(*sums_BPLD.shape[:2], -1), axis=-1)
    start_BP, extra_BP = jnp.divmod(best_BP, sums_BPLD.shape[-1])
    return start_BP, start_BP + extra_BP
