"""Heads: what is computed from an encoder's output. Each is a module, whose parameters are the component "head".

B rows, L positions, M model, V vocabulary; P slots of a row: the places whose output is wanted, with C classes each. A packed
row holds several examples, told apart by `segments`; a slot belongs to the example that it lies in. Batches have int32 arrays
[B, P] `slots` (positions in the row) and `targets` (-1 for an unused slot), to which a head may add others.
"""

import abc
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts import heads_config as config
from models.parts import transformer
from models.parts.attention.mask import same_segment
from models.parts.layers import ACTIVATIONS, Embedding, add_bias, project
from models.parts.losses import Loss, Ratio, Totals, cross_entropy, per, token_loss, token_loss_in_chunks
from models.parts.pairs import softmax_pairs
from models.parts.transformer_config import LmConfig
from models.protocol import Batch, Context
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros

NEVER = -1e9  # the logit of a position outside the example


class Head(nnx.Module, abc.ABC):
    """Turns an encoder's output into outputs for each slot, and those into a loss.

    Attributes:
      couples_examples: whether the loss compares examples of a batch with each other; see models.protocol.Model.coupled.
      classes: how many classes of whole examples the outputs are logits of; 0 where they are none; see
        models.protocol.Classifies.
      embeds: whether the outputs are unit vectors of whole examples; see models.protocol.Embeds.
    """

    couples_examples: ClassVar[bool] = False
    classes: int = 0
    embeds: ClassVar[bool] = False

    @abc.abstractmethod
    def outputs(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding) -> jax.Array:
        """Returns the output of each slot, [B, P, ...].

        Args:
          x_BLM: the encoder's output.
          embedding: the encoder's token embedding, for logits that are tied to it.
        """

    @abc.abstractmethod
    def loss(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding, context: Context, totals: Totals) -> Loss:
        """Returns the loss of these rows, as a part of the batch's; arguments as those of `outputs`."""

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of slots with a target, over which the loss is a mean."""
        return {"slots": jnp.sum(batch["targets"] >= 0)}


class TransformedHead(Head):
    """A head that may have BERT's transform, norm(act(x W + b)), before its outputs; biases are those that `c` has elsewhere.

    Args:
      size: of the vectors that the transform makes, by default the model's.
      normed: whether they are normed.
    """

    def __init__(self, c: LmConfig, transform: bool, key: jax.Array, scope: Component, *, size: int = 0, normed: bool = True):
        self.c, self.scope, size = c, scope, size or c.model_dim
        weight, bias = _dense(c.model_dim, size, key, "mlp", scope)
        self.transform = weight if transform else None
        self.transform_bias = bias if transform and c.feed_forward.bias else None
        self.norm = transformer.norm(c, scope, size) if transform and normed else None

    def transformed(self, x_BPM: jax.Array) -> jax.Array:
        """Returns the vectors that outputs are made of."""
        if self.transform is None:
            return x_BPM
        y_BPM = add_bias(project(x_BPM, self.transform[...], self.scope), self.transform_bias)
        y_BPM = ACTIVATIONS[self.c.feed_forward.activation](y_BPM)
        return y_BPM if self.norm is None else self.norm(y_BPM)


class MaskedLmHead(TransformedHead):
    """Logits [B, P, V] of masked tokens, and on request of the next sentence (BERT, section 3.1). Targets are token ids.

    With next_sentence batches also have `pair_slots` and `pair_targets` [B, Q]: the [CLS] of each pair of sentences, and
    whether the second follows the first.
    """

    def __init__(self, c: LmConfig, head: config.MaskedLm, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        super().__init__(c, head.transform, k2, scope, size=c.embedding_dim)
        self.settings = head
        if head.next_sentence:
            self.pooler, self.pooler_bias = _dense(c.model_dim, c.model_dim, k1, "mlp", scope)
            self.next_weight, self.next_bias = _dense(c.model_dim, 2, k3, "labels", scope)
        self.bias = param(k4, (c.vocab,), ("vocab",), zeros, scope) if c.output.bias else None

    def outputs(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding) -> jax.Array:
        return self._logits(_take(x_BLM, batch["slots"], self.scope), embedding)

    def _logits(self, x_BPM: jax.Array, embedding: Embedding) -> jax.Array:
        x_BPM, w_MV = self.transformed(x_BPM), embedding.table[...].T
        return transformer.logits(x_BPM, w_MV, embedding.scope, bias=self.bias, cap=self.c.output.cap, positions=None)

    def loss(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding, context: Context, totals: Totals) -> Loss:
        x_BPM, targets_BP = _take(x_BLM, batch["slots"], self.scope), batch["targets"]
        logits = functools.partial(self._logits, embedding=embedding)
        loss = token_loss_in_chunks(
            logits, x_BPM, targets_BP, targets_BP >= 0, totals["slots"], self.c.output.label_smoothing, self.scope
        )
        return loss + self._next_sentence_loss(x_BLM, batch, totals) if self.settings.next_sentence else loss

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of slots with a target and of sentence pairs, over which losses are means."""
        pairs = {"pairs": jnp.sum(batch["pair_targets"] >= 0)} if self.settings.next_sentence else {}
        return super().totals(batch) | pairs

    def _next_sentence_loss(self, x_BLM: jax.Array, batch: Batch, totals: Totals) -> Loss:
        """Returns the auxiliary loss of sentence pairs, as a mean over the whole batch's, and their accuracy."""
        x_BQM = _pool(_take(x_BLM, batch["pair_slots"], self.scope), self.pooler, self.pooler_bias, self.scope)
        logits_BQ2 = add_bias(project(x_BQM, self.next_weight[...], self.scope), self.next_bias)
        targets_BQ = batch["pair_targets"]
        loss = token_loss(logits_BQ2, targets_BQ, targets_BQ >= 0, totals["pairs"])
        return Loss(loss.value, loss.value, {f"next_sentence/{name}": ratio for name, ratio in loss.metrics.items()})


class TaggingHead(TransformedHead):
    """Logits [B, P, C] of each slot's class; outside training the loss has the confusion matrix [C, C] too (true, predicted)."""

    def __init__(self, c: LmConfig, head: config.Tagging | config.Classification, key: jax.Array, scope: Component):
        _, k2, _, k4 = jax.random.split(key, 4)
        super().__init__(c, head.transform, k2, scope)
        self.label_smoothing = c.output.label_smoothing
        self.weight, self.bias = _dense(c.model_dim, head.labels, k4, "labels", scope)

    def vectors(self, x_BLM: jax.Array, batch: Batch) -> jax.Array:
        """Returns the vector [B, P, M] of each slot that is classified."""
        return _take(x_BLM, batch["slots"], self.scope)

    def outputs(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding) -> jax.Array:
        x_BPM = self.transformed(self.vectors(x_BLM, batch))
        return add_bias(project(x_BPM, self.weight[...], self.scope), self.bias)

    def loss(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding, context: Context, totals: Totals) -> Loss:
        logits_BPC, targets_BP = self.outputs(x_BLM, batch, embedding), batch["targets"]
        used_BP = targets_BP >= 0
        loss = token_loss(logits_BPC, targets_BP, used_BP, totals["slots"], self.label_smoothing)
        if not context.training:
            guess_BP, classes = jnp.argmax(logits_BPC, axis=-1), jnp.arange(logits_BPC.shape[-1])
            true_BPC, guess_BPC = (targets_BP[..., None] == classes), (guess_BP[..., None] == classes)
            confusion_CD = jnp.einsum("BPC,BPD->CD", true_BPC.astype(loss.value.dtype), guess_BPC * 1.0)
            loss.metrics["confusion"] = Ratio(confusion_CD, jnp.sum(used_BP))
        return loss


class ClassificationHead(TaggingHead):
    """Logits [B, P, C] of each example's class, from its [CLS] through a pooler or from the mean of its tokens."""

    def __init__(self, c: LmConfig, head: config.Classification, key: jax.Array, scope: Component):
        k1, *_ = jax.random.split(key, 4)
        super().__init__(c, head, key, scope)
        self.settings, self.classes = head, head.labels
        if head.pooled:
            self.pooler, self.pooler_bias = _dense(c.model_dim, c.model_dim, k1, "mlp", scope)

    def vectors(self, x_BLM: jax.Array, batch: Batch) -> jax.Array:
        """Returns the vector [B, P, M] of each slot's example."""
        if self.settings.pooling == "mean":
            return mean_vectors(x_BLM, batch)
        x_BPM = super().vectors(x_BLM, batch)
        if not self.settings.pooled:
            return x_BPM
        return _pool(x_BPM, self.pooler, self.pooler_bias, self.scope, self.settings.pooler)


class DetectionHead(TransformedHead):
    """A logit [B, P] of each slot: that its token is another than the text's. Targets are 0 where it is the text's, or more."""

    def __init__(self, c: LmConfig, head: config.Detection, key: jax.Array, scope: Component):
        _, k2, _, k4 = jax.random.split(key, 4)
        super().__init__(c, True, k2, scope, normed=False)
        self.weight, self.bias = _dense(c.model_dim, 1, k4, "labels", scope)

    def outputs(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding) -> jax.Array:
        x_BPM = self.transformed(_take(x_BLM, batch["slots"], self.scope))
        return add_bias(project(x_BPM, self.weight[...], self.scope), self.bias)[..., 0]

    def loss(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding, context: Context, totals: Totals) -> Loss:
        logits_BP, targets_BP = self.outputs(x_BLM, batch, embedding), batch["targets"]
        both_BP2 = jnp.stack([jnp.zeros_like(logits_BP), logits_BP], axis=-1)  # a sigmoid's softmax
        return token_loss(both_BP2, jnp.minimum(targets_BP, 1), targets_BP >= 0, totals["slots"])


class SpanHead(TransformedHead):
    """Logits [B, P, L, 2] of an answer's start and end in the slot's example. Targets [B, P, 2] are positions in the row."""

    def __init__(self, c: LmConfig, head: config.Span, key: jax.Array, scope: Component):
        _, k2, _, k4 = jax.random.split(key, 4)
        super().__init__(c, head.transform, k2, scope)
        self.weight, self.bias = _dense(c.model_dim, 2, k4, "labels", scope)

    def outputs(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding) -> jax.Array:
        logits_BL2 = add_bias(project(self.transformed(x_BLM), self.weight[...], self.scope), self.bias)
        logits_BPL2 = jnp.where(_example(batch)[..., None], logits_BL2[:, None], NEVER)
        return logits_BPL2.astype(jnp.promote_types(logits_BL2.dtype, jnp.float32))

    def loss(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of the start plus that of the end; see Head.

        Accuracy counts the answers of which both are predicted, f1 is that of the tokens shared with the true answer.
        """
        logits_BPL2 = self.outputs(x_BLM, batch, embedding)
        targets_BP2 = batch["targets"]
        plain_BP2 = jnp.stack([cross_entropy(logits_BPL2[..., i], targets_BP2[..., i])[1] for i in (0, 1)], axis=-1)
        weight_BP = jnp.any(targets_BP2 >= 0, axis=-1).astype(plain_BP2.dtype)
        start_BP, end_BP = best_span(logits_BPL2)
        true_start_BP, true_end_BP = targets_BP2[..., 0], targets_BP2[..., 1]
        both_BP = (start_BP == true_start_BP) & (end_BP == true_end_BP)
        shared_BP = jnp.maximum(jnp.minimum(end_BP, true_end_BP) - jnp.maximum(start_BP, true_start_BP) + 1, 0)
        f1_BP = 2 * shared_BP / jnp.maximum(end_BP - start_BP + 1 + true_end_BP - true_start_BP + 1, 1)
        total = jnp.sum(jnp.sum(plain_BP2, axis=-1) * weight_BP)
        n = jnp.sum(weight_BP)
        sums = {"cross_entropy": total, "accuracy": jnp.sum(both_BP * weight_BP), "f1": jnp.sum(f1_BP * weight_BP)}
        value = per(total, totals["slots"])
        return Loss(value, jnp.zeros_like(value), {k: Ratio(v, n) for k, v in sums.items()})

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of slots with an answer, over which the loss is a mean."""
        return {"slots": jnp.sum(jnp.any(batch["targets"] >= 0, axis=-1))}


class SentenceEmbeddingHead(Head):
    """A unit vector [B, P, M] for each example: by default the mean of its tokens' (Sentence-BERT, Reimers and Gurevych 2019).

    Pairs lie in neighbouring slots: 2i holds a first member and 2i + 1 its partner, with the same target. There are no
    parameters.
    """

    couples_examples: ClassVar[bool] = True
    embeds: ClassVar[bool] = True

    def __init__(self, c: LmConfig, head: config.SentenceEmbedding, key: jax.Array, scope: Component):
        self.settings = head

    def outputs(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding) -> jax.Array:
        if self.settings.vector == "mean":
            x_BPM = mean_vectors(x_BLM, batch)
        else:
            x_BPM = end_vectors(x_BLM, batch, last=self.settings.vector == "last")
        return x_BPM * jax.lax.rsqrt(jnp.maximum(jnp.sum(x_BPM * x_BPM, axis=-1, keepdims=True), 1e-24))

    def loss(self, x_BLM: jax.Array, batch: Batch, embedding: Embedding, context: Context, totals: Totals) -> Loss:
        """Returns the cross-entropy of each member's partner among all members of the batch's other side, both ways."""
        unit_BPM = self.outputs(x_BLM, batch, embedding)
        first_NM, second_NM = (unit_BPM[:, i::2].reshape(-1, unit_BPM.shape[-1]) for i in (0, 1))
        used_N = batch["targets"][:, 0::2].reshape(-1) >= 0
        return softmax_pairs(first_NM, second_NM, used_N, 1 / self.settings.temperature, totals["slots"])


_HEADS = {
    config.MaskedLm: MaskedLmHead,
    config.Classification: ClassificationHead,
    config.Tagging: TaggingHead,
    config.Detection: DetectionHead,
    config.Span: SpanHead,
    config.SentenceEmbedding: SentenceEmbeddingHead,
}


def make(c: LmConfig, head: config.Head, key: jax.Array, scope: Component) -> Head:
    """Returns the head of these settings, for an encoder of the configuration c."""
    return _HEADS[type(head)](c, head, key, scope)


def mean_vectors(x_BLM: jax.Array, batch: Batch) -> jax.Array:
    """Returns the mean vector [B, P, M] of each slot's example, special tokens included, in float32 at least."""
    wide = jnp.promote_types(x_BLM.dtype, jnp.float32)
    weight_BPL = _example(batch).astype(wide)
    total_BPM = jnp.einsum("BPL,BLM->BPM", weight_BPL, x_BLM.astype(wide))
    return total_BPM / jnp.maximum(jnp.sum(weight_BPL, axis=-1, keepdims=True), 1)


def end_vectors(x_BLM: jax.Array, batch: Batch, *, last: bool) -> jax.Array:
    """Returns the vector [B, P, M] of the first or the last token of each slot's example, in float32 at least."""
    example_BPL = _example(batch)
    at_BP = jnp.argmax(example_BPL, axis=-1)
    if last:
        at_BP = example_BPL.shape[-1] - 1 - jnp.argmax(example_BPL[..., ::-1], axis=-1)
    x_BPM = jnp.take_along_axis(x_BLM, at_BP[..., None], axis=1)
    return x_BPM.astype(jnp.promote_types(x_BLM.dtype, jnp.float32))


def best_span(logits_BPL2: jax.Array, longest: int = 30) -> tuple[jax.Array, jax.Array]:
    """Returns (start, end) [B, P] of the span of at most `longest` tokens with the largest sum of logits (BERT, section 4.2)."""
    start_BPL, end_BPL = logits_BPL2[..., 0], logits_BPL2[..., 1]
    length = start_BPL.shape[-1]
    sums_BPLD = jnp.stack(
        [
            jnp.pad(start_BPL[..., : length - d] + end_BPL[..., d:], ((0, 0), (0, 0), (0, d)), constant_values=2 * NEVER)
            for d in range(min(longest, length))
        ],
        axis=-1,
    )
    best_BP = jnp.argmax(sums_BPLD.reshape(*sums_BPLD.shape[:2], -1), axis=-1)
    start_BP, extra_BP = jnp.divmod(best_BP, sums_BPLD.shape[-1])
    return start_BP, start_BP + extra_BP


def _dense(size: int, outputs: int, key: jax.Array, name: str, scope: Component) -> tuple[nnx.Param, nnx.Param]:
    """Makes a matrix [size, outputs] and a bias, whose outputs have this logical name."""
    weight = param(key, (size, outputs), ("embed", name), normal(0.02), scope)
    return weight, param(key, (outputs,), (name,), zeros, scope)


def _pool(x_BPM: jax.Array, weight: nnx.Param, bias: nnx.Param, scope: Component, activation: str = "tanh") -> jax.Array:
    """Applies a pooler, act(x W + b)."""
    act = jnp.tanh if activation == "tanh" else ACTIVATIONS[activation]
    return act(add_bias(project(x_BPM, weight[...], scope), bias))


def _take(x_BLM: jax.Array, slots_BP: jax.Array, scope: Component) -> jax.Array:
    """Returns the vectors [B, P, M] at the slots."""
    x_BPM = jnp.take_along_axis(x_BLM, slots_BP[..., None], axis=1)
    return scope.shard(x_BPM, "batch", None, "act_embed")


def _example(batch: Batch) -> jax.Array:
    """Returns a mask [B, P, L], True where a position lies in the slot's example."""
    return same_segment(jnp.take_along_axis(batch["segments"], batch["slots"], axis=1), batch["segments"])
