"""The Conformer (arXiv 2005.08100) as BigSSL used it (arXiv 2109.13226): CTC, transducers, wav2vec 2.0 and w2v-BERT.

B rows, T frames, S positions, M model, V vocabulary. fronts.py makes positions of sound, block.py is a layer, and heads.py
what the stack is trained for.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp

from models.conformer.block import ConformerBlock, block_of, run_blocks
from models.conformer.config import BatchNorm, ConformerConfig, ConformerLayer, Contrastive, TransformerLayer
from models.conformer.fronts import Places, front_of, positions_of
from models.conformer.heads import TextHead, W2vBertHead, Wav2VecHead, head_of, hidden
from models.parts.layers import Norm, dropout
from models.parts.losses import Loss, Totals, zero_loss
from models.parts.transformer import Block
from models.protocol import Activations, Batch, Context, HasPrologue, Staged, Writes
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules


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
        self.pretrains = isinstance(c.objective, Contrastive)
        self.hidden = param(k2, (c.model_dim,), ("embed",), normal(0.1), scope / "front") if self.pretrains else None
        norm = functools.partial(Norm, c.model_dim, kind="layer", bias=True, eps=c.norm_eps)
        self.places = Places(c, c.positions, k2, scope / "front") if c.positions else None
        self.first_norm = norm(scope / "front") if isinstance(c.layer, TransformerLayer) and c.layer.order == "post" else None
        self.contrastive = self._stack("contrastive", c.contrastive_layers, k3) if c.contrastive_layers else None
        self.encoder = self._stack("encoder", c.layers, k4)
        self.final_norm = norm(scope / "encoder") if c.final_norm else None
        # One table for all layers; those of a pipeline's stage have no parameter but their own, and are given it.
        shape, axes = (c.heads, c.buckets.buckets if c.buckets else 0), ("heads", "buckets")
        std, at = c.model_dim**-0.5, scope / "encoder" / "attention"
        self.encoder_bias = param(jax.random.fold_in(k4, 0), shape, axes, normal(std), at) if c.buckets else None
        self.head = head_of(c, k5, scope / "head")

    def _stack(self, name: str, layers: int, key: jax.Array) -> ConformerBlock | Block:
        return stack_modules(lambda k: block_of(self.c, k, self.scope / name), key, layers)

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns what compares utterances of a batch: stacks, by the statistics of a batch norm, and the head, by the loss of a
        codebook's use; see `Model`."""
        c = self.c
        normed = isinstance(c.layer, ConformerLayer) and isinstance(c.layer.norm, BatchNorm)
        coded = isinstance(c.objective, Contrastive) and c.objective.quantizer is not None
        names = {"contrastive": normed and c.contrastive_layers > 0, "encoder": normed, "head": coded}
        return tuple((self.scope / name).path for name, compares in names.items() if compares)

    @property
    def target_vocab(self) -> int:
        return self.c.vocab

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of tokens, and of hidden positions, over which losses are means."""
        counts = {"tokens": jnp.sum(batch["targets_segments"] > 0)} if "targets" in batch else {}
        return counts | ({"hidden": jnp.sum(hidden(batch, self._segments(batch)))} if self.pretrains else {})

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of frames, padding left out."""
        return {"frames": jnp.sum(batch["frames_segments"] > 0)}

    @property
    def _bias(self) -> jax.Array | None:
        return None if self.encoder_bias is None else self.encoder_bias[...]

    def _segments(self, batch: Batch) -> jax.Array:
        """Returns the utterance of each position, int32 [B, S]."""
        return positions_of(self.c, batch["frames_segments"])

    # --- the stages (Staged) ---

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns ("input", what the last stack reads [B, S, M], and what is predicted of it, the front's "features" or "codes";
        the loss of w2v-BERT's first stack); see HasPrologue."""
        segments_BS = self._segments(batch)
        features_BSM = self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"])
        arrays, loss, x_BSM = {}, zero_loss(features_BSM.dtype), features_BSM
        if self.hidden is not None:
            x_BSM = jnp.where(hidden(batch, segments_BS)[..., None], self.hidden[...].astype(x_BSM.dtype), x_BSM)
        first, layers, targets = context.split(3)
        x_BSM = self._placed(x_BSM, segments_BS, first)
        if isinstance(self.head, W2vBertHead) and self.contrastive is not None:
            layers = layers.for_layers(self.c.contrastive_layers)
            stack, at = self.contrastive, self.scope / "contrastive"
            x_BSM, of_stack = run_blocks(self.c, stack, x_BSM, segments_BS, layers, at, self._bias)
            is_hidden_BS = hidden(batch, segments_BS)
            contrast, codes = self.head.targets(features_BSM, x_BSM, is_hidden_BS, segments_BS, totals, targets)
            loss += contrast + of_stack
            assert codes is not None
            arrays["codes"] = codes[..., 0]
        elif isinstance(self.head, Wav2VecHead):
            arrays["features"] = features_BSM
        return arrays | {"input": x_BSM}, loss

    def _placed(self, x_BSM: jax.Array, segments_BS: jax.Array, context: Context) -> jax.Array:
        """Returns the input of the first layer: the front's output with positions."""
        if self.places is not None:
            x_BSM += self.places(x_BSM, segments_BS)
        if self.first_norm is not None:
            x_BSM = self.first_norm(x_BSM)
        return dropout(x_BSM, self.c.dropout, context.key)

    def _normed(self, x_BSM: jax.Array) -> jax.Array:
        """Returns the last layer's output as what follows the stack reads it."""
        return x_BSM if self.final_norm is None else self.final_norm(x_BSM)

    def embed(self, batch: Batch, context: Context) -> Activations:
        """Returns (the stack's input, the front's features where its loss is of them, the table of biases where there is one)."""
        arrays = tuple(batch[name] for name in ("input", "features") if name in batch)
        return arrays if self._bias is None else (*arrays, self._bias.reshape(1, 1, -1))

    def apply_layers(
        self, blocks: ConformerBlock | Block, x: Activations, batch: Batch, context: Context, totals: Totals
    ) -> tuple[Activations, Loss]:
        """Runs some of the blocks; the other arrays pass unchanged. See Staged."""
        x_BSM, *others = x
        bias_NK = others[-1].reshape(self.c.heads, -1) if self.c.buckets else None
        x_BSM, loss = run_blocks(self.c, blocks, x_BSM, self._segments(batch), context, self.scope / "encoder", bias_NK)
        return (x_BSM, *others), loss

    def head_loss(self, x: Activations, batch: Batch, context: Context, totals: Totals) -> Loss:
        assert self.head is not None, "a tower has no loss of its own"
        x_BSM, *features = x
        return self.head.loss(self._normed(x_BSM), features, batch, self._segments(batch), context, totals)

    # --- writing ---

    def features(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns (the last block's output [B, S, M] outside training, nothing hidden; the utterance of each position)."""
        return self.encode(batch, Context.evaluation())[0], self._segments(batch)

    def encode(self, batch: Batch, context: Context, totals: Totals | None = None) -> tuple[jax.Array, Loss]:
        """Returns (the last block's output [B, S, M], no loss but new running statistics), for larger models too."""
        segments_BS = self._segments(batch)
        x_BSM = self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"])
        first, context = context.split(2)
        x_BSM = self._placed(x_BSM, segments_BS, first)
        loss = zero_loss(x_BSM.dtype)
        for name, count in (("contrastive", self.c.contrastive_layers), ("encoder", self.c.layers)):
            if count:
                layers, context = context.split(2)
                layers = layers.for_layers(count)
                stack, at = getattr(self, name), self.scope / name
                x_BSM, of_stack = run_blocks(self.c, stack, x_BSM, segments_BS, layers, at, self._bias)
                loss += of_stack
        return self._normed(x_BSM), loss

    def write(self, batch: Batch, beams: int, steps: int) -> jax.Array:
        """Returns the text of the first utterance of each row, int32 [B, steps] with 0 behind it; see models.protocol.Writes.

        Args:
          beams: hypotheses of a search over texts, of CTC by prefixes; 1 is greedy.
        """
        assert isinstance(self.head, TextHead), "the objective writes no text"
        x_BSM, segments_BS = self.features(batch)
        return self.head.write(x_BSM, segments_BS == 1, beams, steps)
