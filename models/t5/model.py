"""T5 (arXiv 1910.10683) and Switch Transformer (arXiv 2101.03961): an encoder-decoder over one vocabulary.

B rows, L positions, M model, V vocabulary. The layers and both stacks are models/parts/encoder_decoder.py; what makes them T5's
are the fields of T5Config: one table of relative biases a stack, unscaled attention, RMS norm, no biases.
"""

import jax

from models.parts.encoder_decoder import EncoderDecoder, Side
from models.parts.layers import Embedding, dropout, project
from models.parts.transformer import Key
from models.sharding.component import Component
from models.sharding.params import normal, param
from models.t5.config import T5Config


class T5(EncoderDecoder):
    """The whole model: one embedding table, whose transpose may also make the output logits."""

    def __init__(self, c: T5Config, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.c: T5Config = c
        self.scope = scope
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding")
        self._make_stacks(k2, k3)
        shape, names = (c.model_dim, c.vocab), ("embed", "vocab")
        self.softmax = None if c.tied else param(k4, shape, names, normal(c.model_dim**-0.5), scope / "softmax")

    @property
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""
        return self.c.vocab

    def embed_tokens(self, side: Side, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        """Returns the first layer's input [B, L, M] of either stack; see EncoderDecoder."""
        del side, positions_BL  # both share the table; positions are in the attention
        return dropout(self.embedding(ids_BL, self.scope.dtype), self.c.dropout, key)

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        """Returns the output logits [B, L, V]; see EncoderDecoder."""
        if self.c.scale_logits:
            x_BLM = x_BLM * self.c.model_dim**-0.5
        if self.softmax is None:
            scope, w_MV = self.embedding.scope, self.embedding.table[...].T
        else:
            scope, w_MV = self.scope / "softmax", self.softmax[...]
        return scope.shard(project(x_BLM, w_MV, scope), "batch", "length", "act_vocab")
