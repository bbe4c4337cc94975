"""The Conformer (arXiv 2005.08100) as BigSSL used it (arXiv 2109.13226): CTC, transducers, wav2vec 2.0 and w2v-BERT.

B rows, T frames, S positions, M model, V vocabulary. The block is models/parts/conformer.py; fronts.py hears; ctc.py,
transducer.py and contrastive.py are what the stack is trained for.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer import ctc
from models.conformer.config import ConformerConfig
from models.conformer.contrastive import Targets
from models.conformer.fronts import Places, front_of, positions_of
from models.conformer.transducer import Transducer
from models.parts.conformer import Block, block_of, heard, run_blocks
from models.parts.layers import Norm, add_bias, dropout, project
from models.parts.losses import Loss, Totals, token_loss, zero_loss
from models.protocol import Activations, Batch, Context, HasPrologue, Staged, Writes
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules, zeros


class Conformer(Staged, HasPrologue, Writes):
    """A front, a stack of blocks, and a head for the objective.

    Batches have `frames` [B, T, F], `frames_segments` int32 [B, T] (utterances from 1; 0 is padding), and `targets`,
    `targets_segments` int32 [B, L] of texts, or `masked` int32 [B, S] of pre-training.
    """

    stack_name: ClassVar[str] = "encoder"

    def __init__(self, c: ConformerConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c: ConformerConfig = c
        self.scope = scope
        self.front = front_of(c, k1, scope / "front")
        if c.pretrains:
            self.hidden = param(k2, (c.model_dim,), ("embed",), normal(0.1), scope / "front")
        if c.contrastive_layers:
            first = scope / "contrastive"
            self.contrastive = stack_modules(lambda k: block_of(c, k, first), k3, c.contrastive_layers)
        norm = functools.partial(Norm, c.model_dim, kind="layer", bias=True, eps=c.norm_eps)
        self.places = Places(c, k2, scope / "front") if c.positions == "convolution" else None
        self.first_norm = norm(scope / "front") if c.block == "transformer_post" else None
        self.encoder = stack_modules(lambda k: block_of(c, k, scope / "encoder"), k4, c.layers)
        self.final_norm = norm(scope / "encoder") if c.final_norm else None
        self.head = Head(c, k5, scope / "head")

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns what compares utterances of a batch: stacks, by the statistics of a batch norm, and the head, by the loss of a
        codebook's use; see `Model`."""
        normed = self.c.conv_norm == "batch"
        names = {
            "contrastive": normed and self.c.contrastive_layers > 0,
            "encoder": normed,
            "head": self.c.pretrains and self.c.codebooks > 0,
        }
        return tuple((self.scope / name).path for name, compares in names.items() if compares)

    @property
    def target_vocab(self) -> int:
        """How many ids the model writes."""
        return self.c.vocab

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of tokens, and of hidden positions, over which losses are means."""
        counts = {"tokens": jnp.sum(batch["targets_segments"] > 0)} if "targets" in batch else {}
        return counts | ({"hidden": jnp.sum(self._hidden(batch))} if self.c.pretrains else {})

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of frames, padding left out."""
        return {"frames": jnp.sum(batch["frames_segments"] > 0)}

    def _hidden(self, batch: Batch) -> jax.Array:
        """Returns which positions are hidden, bool [B, S]; none that is padding."""
        return (batch["masked"] > 0) & (self._segments(batch) > 0)

    def _segments(self, batch: Batch) -> jax.Array:
        """Returns the utterance of each position, int32 [B, S]."""
        return positions_of(self.c, batch["frames_segments"])

    # --- the stages (Staged) ---

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns ("heard", what the last stack reads [B, S, M], and what is predicted of it, the front's "features" or "codes";
        the contrastive loss and the drift of w2v-BERT's first stack); see HasPrologue."""
        features_BSM = self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"])
        arrays, loss, x_BSM = {}, zero_loss(features_BSM.dtype), features_BSM
        if self.c.pretrains:
            x_BSM = jnp.where(self._hidden(batch)[..., None], self.hidden[...].astype(x_BSM.dtype), x_BSM)
        first, layers, told = context.split(3)
        x_BSM = self._placed(x_BSM, self._segments(batch), first)
        if self.c.contrastive_layers:
            keys = layers.for_layers(self.c.contrastive_layers).key
            scope = self.scope / "contrastive"
            x_BSM, drift = run_blocks(self.contrastive, x_BSM, heard(self.c, self._segments(batch)), keys, scope)
            contrast, codes = self._contrast(features_BSM, x_BSM, batch, totals, told)
            loss += contrast + _drifted(drift)
            assert codes is not None
            arrays["codes"] = codes[..., 0]
        elif self.c.pretrains:
            arrays["features"] = features_BSM
        return arrays | {"heard": x_BSM}, loss

    def _placed(self, x_BSM: jax.Array, segments_BS: jax.Array, context: Context) -> jax.Array:
        """Returns the input of the first layer: what is heard, told where it is."""
        if self.places is not None:
            x_BSM += self.places(x_BSM, segments_BS)
        if self.first_norm is not None:
            x_BSM = self.first_norm(x_BSM)
        return dropout(x_BSM, self.c.dropout, context.key)

    def _normed(self, x_BSM: jax.Array) -> jax.Array:
        """Returns the last layer's output as what follows the stack reads it."""
        return x_BSM if self.final_norm is None else self.final_norm(x_BSM)

    def embed(self, batch: Batch, context: Context) -> Activations:
        """Returns (the stack's input, the front's features where its loss is of them)."""
        del context
        return tuple(batch[name] for name in ("heard", "features") if name in batch)

    def apply_layers(
        self, blocks: Block, x: Activations, batch: Batch, context: Context, totals: Totals
    ) -> tuple[Activations, Loss]:
        """Runs some of the blocks; features pass unchanged. See Staged."""
        del totals
        x_BSM, *features = x
        known = heard(self.c, self._segments(batch))
        x_BSM, drift = run_blocks(blocks, x_BSM, known, context.key, self.scope / "encoder")
        return (x_BSM, *features), _drifted(drift)

    def head_loss(self, x: Activations, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the loss of the objective; see Staged. It draws codes alone, which are no part of a model in stages."""
        c, segments_BS, (x_BSM, *features) = self.c, self._segments(batch), x
        x_BSM = self._normed(x_BSM)
        if c.objective == "wav2vec":
            return self._contrast(features[0], x_BSM, batch, totals, context)[0]
        if c.objective == "w2v_bert":
            logits_BSV = self.head(x_BSM)
            loss = token_loss(logits_BSV, batch["codes"], self._hidden(batch), totals["hidden"])
            metrics = {f"masked_{name}": ratio for name, ratio in loss.metrics.items()}
            return Loss(c.masked_weight * loss.value, c.masked_weight * loss.extra, metrics)
        texts = batch["targets"], batch["targets_segments"]
        if c.objective == "ctc":
            return ctc.ctc_loss(self.head(x_BSM), segments_BS, *texts, c.utterances, totals)
        heard_USM, real_US = ctc.aligned(x_BSM, segments_BS, c.utterances)
        said_UL, given_UL = ctc.aligned(*texts, c.utterances)
        assert self.head.transducer is not None
        return self.head.transducer.loss(heard_USM, real_US, said_UL, given_UL, totals)

    def _contrast(
        self, features_BSM: jax.Array, output_BSM: jax.Array, batch: Batch, totals: Totals, context: Context
    ) -> tuple[Loss, jax.Array | None]:
        assert self.head.targets is not None
        return self.head.targets(
            features_BSM, output_BSM, self._hidden(batch), self._segments(batch), totals, context.step, context.key
        )

    # --- writing ---

    def features(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns (the last block's output [B, S, M] outside training, nothing hidden; the utterance of each position)."""
        return self.encode(batch, Context.evaluation())[0], self._segments(batch)

    def encode(self, batch: Batch, context: Context, totals: Totals | None = None) -> tuple[jax.Array, Loss]:
        """Returns (the last block's output [B, S, M], the drift of batch norms), for larger models too."""
        del totals
        segments_BS = self._segments(batch)
        x_BSM = self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"])
        first, context = context.split(2)
        x_BSM = self._placed(x_BSM, segments_BS, first)
        known, loss = heard(self.c, segments_BS), zero_loss(x_BSM.dtype)
        for name, count in (("contrastive", self.c.contrastive_layers), ("encoder", self.c.layers)):
            if count:
                layers, context = context.split(2)
                keys = layers.for_layers(count).key
                x_BSM, drift = run_blocks(getattr(self, name), x_BSM, known, keys, self.scope / name)
                loss += _drifted(drift)
        return self._normed(x_BSM), loss

    def write(self, batch: Batch, beams: int, steps: int) -> jax.Array:
        """Returns the text of the first utterance of each row, int32 [B, steps] with 0 behind it; see models.protocol.Writes.

        Args:
          beams: hypotheses of a search over texts, of CTC by prefixes; 1 is greedy.
        """
        x_BSM, segments_BS = self.features(batch)
        real_BS = segments_BS == 1
        if (transducer := self.head.transducer) is not None:
            if beams == 1:
                return transducer.greedy(x_BSM, real_BS, steps)
            return transducer.beam_search(x_BSM, real_BS, beams, steps)
        logits_BSV = self.head(x_BSM)
        ids = ctc.greedy(logits_BSV, real_BS) if beams == 1 else ctc.beam_search(logits_BSV, real_BS, beams)
        return jnp.pad(ids, ((0, 0), (0, max(0, steps - ids.shape[1]))))[:, :steps]


class Head(nnx.Module):
    """What the objective adds to the stack; all of it starts fresh where another objective's weights are taken up."""

    def __init__(self, c: ConformerConfig, key: jax.Array, scope: Component):
        self.scope, outputs = scope, c.codes if c.objective == "w2v_bert" else c.vocab
        self.targets = Targets(c, key, scope) if c.pretrains else None
        self.transducer = Transducer(c, key, scope) if c.objective == "transducer" else None
        if self.transducer is None and outputs:
            self.weight = param(key, (c.model_dim, outputs), ("embed", "vocab"), normal(c.model_dim**-0.5), scope)
            self.bias = param(key, (outputs,), ("vocab",), zeros, scope)

    def __call__(self, x_BSM: jax.Array) -> jax.Array:
        """Returns logits [B, S, V]."""
        logits_BSV = add_bias(project(x_BSM, self.weight[...], self.scope), self.bias)
        return self.scope.shard(logits_BSV, "batch", "length", "act_vocab")


def _drifted(drift: jax.Array) -> Loss:
    """Returns how far kept statistics are from a batch's, as a loss that moves nothing else (parts.conformer.BatchNorm)."""
    return Loss(drift, drift, {})
