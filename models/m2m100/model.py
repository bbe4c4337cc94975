"""M2M-100 (arXiv 2010.11125) and NLLB-200 (arXiv 2207.04672): an encoder-decoder over one vocabulary of all languages.

B rows, L positions, M model, V vocabulary. The layers and both stacks are models/parts/encoder_decoder.py: pre-norm with layer
norms and biases, sinusoidal positions. A source begins with the token of its language, and so does a target, after `start_id`.
"""

import jax

from models.m2m100.config import M2M100Config
from models.parts.attention.config import Sinusoidal
from models.parts.encoder_decoder import EncoderDecoder
from models.parts.layers import Embedding, dropout, sinusoids
from models.parts.transformer import Key
from models.sharding.component import Component

FIRST_POSITION = 2  # fairseq counts positions from the padding's id, 1, on


class M2M100(EncoderDecoder):
    """The whole model: one embedding table, scaled by sqrt(M), whose transpose makes the output logits."""

    def __init__(self, c: M2M100Config, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.c: M2M100Config = c
        self.scope = scope
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding", std=c.model_dim**-0.5)
        self.make_encoder(k2)
        self.make_decoder(k3)

    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        m, dtype = self.c.model_dim, self.scope.dtype
        x_BLM = self.embedding(ids_BL, dtype) * m**0.5
        if isinstance(self.c.positions, Sinusoidal):
            x_BLM += sinusoids(positions_BL + FIRST_POSITION, m, dtype)
        return dropout(x_BLM, self.c.dropout, key)
