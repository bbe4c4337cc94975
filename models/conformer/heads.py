"""The heads of the Conformer: each maps the stack's output to the loss of an objective, and to a text where there are texts.

B rows, S positions, M model, V vocabulary, L tokens, U utterances.
"""

import abc

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer import ctc
from models.conformer.config import ConformerConfig, Contrastive, Ctc, W2vBert
from models.conformer.config import Transducer as TransducerConfig
from models.conformer.contrastive import Targets
from models.conformer.transducer import Transducer
from models.parts.layers import add_bias, project
from models.parts.losses import Loss, Totals, token_loss
from models.protocol import Batch, Context
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros


class Head(nnx.Module, abc.ABC):
    """The part of an objective behind the stack; all of it starts fresh where another objective's weights are taken up."""

    @abc.abstractmethod
    def loss(
        self, x_BSM: jax.Array, features: list[jax.Array], batch: Batch, segments_BS: jax.Array, context: Context, totals: Totals
    ) -> Loss:
        """Returns the loss of the stack's output.

        Args:
          features: what the front made of the sound [B, S, M], where the loss is of it.
          segments_BS: the utterance of each position.
        """


class TextHead(Head):
    """A head that writes texts."""

    @abc.abstractmethod
    def write(self, x_BSM: jax.Array, real_BS: jax.Array, beams: int, steps: int) -> jax.Array:
        """Returns the text of each row, int32 [B, steps] with 0 behind it, by so many hypotheses; 1 is greedy."""


class Outputs(nnx.Module):
    """A linear map to logits."""

    def __init__(self, size: int, outputs: int, key: jax.Array, scope: Component):
        self.scope = scope
        self.weight = param(key, (size, outputs), ("embed", "vocab"), normal(size**-0.5), scope)
        self.bias = param(key, (outputs,), ("vocab",), zeros, scope)

    def logits(self, x_BSM: jax.Array) -> jax.Array:
        """Returns logits [B, S, V]."""
        logits_BSV = add_bias(project(x_BSM, self.weight[...], self.scope), self.bias)
        return self.scope.shard(logits_BSV, "batch", "length", "act_vocab")


class CtcHead(Outputs, TextHead):
    """Connectionist temporal classification."""

    def __init__(self, c: ConformerConfig, objective: Ctc, key: jax.Array, scope: Component):
        super().__init__(c.model_dim, objective.vocab, key, scope)
        self.utterances = c.utterances

    def loss(self, x_BSM, features, batch, segments_BS, context, totals) -> Loss:
        texts = batch["targets"], batch["targets_segments"]
        return ctc.ctc_loss(self.logits(x_BSM), segments_BS, *texts, self.utterances, totals)

    def write(self, x_BSM: jax.Array, real_BS: jax.Array, beams: int, steps: int) -> jax.Array:
        """Returns the texts, by prefixes with several beams; see TextHead."""
        logits_BSV = self.logits(x_BSM)
        ids = ctc.greedy(logits_BSV, real_BS) if beams == 1 else ctc.beam_search(logits_BSV, real_BS, beams)
        return jnp.pad(ids, ((0, 0), (0, max(0, steps - ids.shape[1]))))[:, :steps]


class TransducerHead(TextHead):
    """A transducer."""

    def __init__(self, c: ConformerConfig, objective: TransducerConfig, key: jax.Array, scope: Component):
        self.transducer, self.utterances = Transducer(objective, c.model_dim, key, scope), c.utterances

    def loss(self, x_BSM, features, batch, segments_BS, context, totals) -> Loss:
        x_USM, real_US = ctc.aligned(x_BSM, segments_BS, self.utterances)
        targets_UL, given_UL = ctc.aligned(batch["targets"], batch["targets_segments"], self.utterances)
        return self.transducer.loss(x_USM, real_US, targets_UL, given_UL, totals)

    def write(self, x_BSM: jax.Array, real_BS: jax.Array, beams: int, steps: int) -> jax.Array:
        if beams == 1:
            return self.transducer.greedy(x_BSM, real_BS, steps)
        return self.transducer.beam_search(x_BSM, real_BS, beams, steps)


class Wav2VecHead(Head):
    """wav2vec 2.0: hidden positions of the stack's output are told from others."""

    def __init__(self, c: ConformerConfig, objective: Contrastive, key: jax.Array, scope: Component):
        self.targets = Targets(objective, c.model_dim, key, scope)

    def loss(self, x_BSM, features, batch, segments_BS, context, totals) -> Loss:
        """Returns the contrastive loss; see Head. It draws codes alone, which are no part of a model in stages."""
        return self.targets(features[0], x_BSM, hidden(batch, segments_BS), segments_BS, totals, context)[0]


class W2vBertHead(Outputs, Head):
    """w2v-BERT: codes of hidden positions are predicted; its `targets`, of the stack before, make the codes."""

    def __init__(self, c: ConformerConfig, objective: W2vBert, key: jax.Array, scope: Component):
        super().__init__(c.model_dim, objective.quantizer.codes, key, scope)
        self.targets, self.weight_of_loss = Targets(objective, c.model_dim, key, scope), objective.masked_weight

    def loss(self, x_BSM, features, batch, segments_BS, context, totals) -> Loss:
        loss = token_loss(self.logits(x_BSM), batch["codes"], hidden(batch, segments_BS), totals["hidden"])
        metrics = {f"masked_{name}": ratio for name, ratio in loss.metrics.items()}
        return Loss(self.weight_of_loss * loss.value, self.weight_of_loss * loss.extra, metrics)


def hidden(batch: Batch, segments_BS: jax.Array) -> jax.Array:
    """Returns which positions are hidden, bool [B, S]; none that is padding."""
    return (batch["masked"] > 0) & (segments_BS > 0)


def head_of(c: ConformerConfig, key: jax.Array, scope: Component) -> Head | None:
    """Returns the head of the configuration's objective; None for a tower."""
    match c.objective:
        case TransducerConfig() as objective:
            return TransducerHead(c, objective, key, scope)
        case Ctc() as objective:
            return CtcHead(c, objective, key, scope)
        case W2vBert() as objective:
            return W2vBertHead(c, objective, key, scope)
        case Contrastive() as objective:
            return Wav2VecHead(c, objective, key, scope)
        case _:
            return None
