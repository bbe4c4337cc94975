"""T5 (arXiv 1910.10683) and Switch Transformer (arXiv 2101.03961): an encoder-decoder over one vocabulary.

B rows, L positions, M model, V vocabulary. The layers and both stacks are models/parts/encoder_decoder.py; what makes them T5's
are the fields of T5Config: one table of relative biases a stack, unscaled attention, RMS norm, no biases.
"""

import jax

from models.parts import transformer
from models.parts.encoder_decoder import EncoderDecoder
from models.parts.layers import Embedding
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
        self.make_encoder(k2)
        self.make_decoder(k3)
        shape, names = (c.model_dim, c.vocab), ("embed", "vocab")
        self.softmax = None if c.tied else param(k4, shape, names, normal(c.model_dim**-0.5), scope / "softmax")

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        if self.c.scale_logits:
            x_BLM = x_BLM * self.c.model_dim**-0.5
        if self.softmax is None:
            return super().logits(x_BLM)
        return transformer.logits(x_BLM, self.softmax[...], self.scope / "softmax")
