"""M2M-100 (arXiv 2010.11125), NLLB-200 (arXiv 2207.04672), BART and its kin: an encoder-decoder over one vocabulary.

B rows, L positions, M model, V vocabulary. The layers and both stacks are models/parts/encoder_decoder.py, with layer norms and
biases. A multilingual source begins with the token of its language, and so does a target, after `start_id`.
"""

import jax
from flax import nnx

from models.m2m100.config import Inputs, M2M100Config, check_rows
from models.parts import transformer
from models.parts.attention.config import Learned, Sinusoidal
from models.parts.decoder import Cache
from models.parts.encoder_decoder import EncoderDecoder
from models.parts.layers import Embedding, add_positions, dropout, sinusoids
from models.parts.transformer import Key
from models.parts.transformer_config import BlockConfig
from models.protocol import Batch
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros

FIRST_POSITION = 2  # fairseq counts positions from the padding's id, 1, on


class StackInputs(nnx.Module):
    """Adds positions to the vectors of a stack's tokens, which it may scale, and norms the sum.

    Args:
      c: settings of a stack, among which are `positions`.
    """

    def __init__(self, c: BlockConfig, inputs: Inputs, key: jax.Array, scope: Component):
        self.c, self.inputs, self.scope = c, inputs, scope
        learned = c.positions if isinstance(c.positions, Learned) else None
        shape, axes = (learned.rows if learned else 0, c.model_dim), ("positions", "embed")
        self.positions = param(key, shape, axes, normal(0.02), scope) if learned else None
        self.norm = transformer.norm(c, scope) if inputs.norm else None

    def __call__(self, x_BLM: jax.Array, positions_BL: jax.Array) -> jax.Array:
        """Returns [B, L, M]; raises UserError for rows that are longer than the table of positions."""
        c, paper = self.c, self.inputs.sinusoids == "paper"
        if self.inputs.scaled:
            x_BLM *= c.model_dim**0.5
        if isinstance(c.positions, Learned) and self.positions is not None:
            check_rows(c.positions, positions_BL.shape[1])
            x_BLM = add_positions(x_BLM, self.positions, positions_BL + c.positions.first, self.scope)
        if isinstance(c.positions, Sinusoidal):
            first = 0 if paper else FIRST_POSITION
            x_BLM += sinusoids(positions_BL + first, c.model_dim, x_BLM.dtype, paper=paper)
        return x_BLM if self.norm is None else self.norm(x_BLM)


class M2M100(EncoderDecoder):
    """The whole model: one embedding table, scaled by sqrt(M) unless it is BART's, whose transpose makes the output logits."""

    def __init__(self, c: M2M100Config, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.c: M2M100Config = c
        self.scope = scope
        std = c.model_dim**-0.5 if c.inputs.scaled else 0.02
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding", std=std)
        self.source_inputs = StackInputs(c, c.inputs, jax.random.fold_in(k1, 0), scope / "source_inputs")
        self.target_inputs = StackInputs(c, c.inputs, jax.random.fold_in(k1, 1), scope / "target_inputs")
        self.logits_bias = param(k1, (c.vocab,), ("vocab",), zeros, scope) if c.logits_bias else None
        self.make_encoder(k2)
        self.make_decoder(k3)

    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        return self._embed(self.source_inputs, batch["inputs"], self.source_places(batch)[1], key)

    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        return self._embed(self.target_inputs, ids_BL, positions_BL, key)

    def _embed(self, inputs: StackInputs, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        return dropout(inputs(self.embedding(ids_BL, self.scope.dtype), positions_BL), self.c.dropout, key)

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        return transformer.logits(x_BLM, self.embedding.table[...].T, self.embedding.scope, bias=self.logits_bias)

    def start(self, batch: Batch, hypotheses: int, steps: int) -> Cache:
        self.c.check_length(steps)
        return super().start(batch, hypotheses, steps)
