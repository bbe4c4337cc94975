"""GShard M4 (arXiv 2006.16668): a Transformer encoder-decoder in which every second feed-forward layer is an MoE layer.

B rows, L positions, M model, V vocabulary.

Written as if for one device: a layout decides what is cut. The layers and both stacks are models/parts/encoder_decoder.py and
models/parts/transformer.py; mixtures are models/parts/moe/. The paper leaves the norm's place and positions open; both follow
Lingvo's builder and Vaswani et al.: pre-norm residual layers with RMS norm, and sinusoids added to the embeddings.
"""

import jax
import jax.numpy as jnp

from models.gshard_m4.config import GShardM4Config
from models.parts import transformer
from models.parts.attention.config import Sinusoidal
from models.parts.encoder_decoder import EncoderDecoder
from models.parts.layers import Embedding, dropout, sinusoids
from models.parts.transformer import Key
from models.protocol import Batch
from models.sharding.component import Component
from models.sharding.params import normal, param


class GShardM4(EncoderDecoder):
    """The whole model: two vocabularies, and output logits with a matrix of their own."""

    def __init__(self, c: GShardM4Config, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        m = c.model_dim
        self.c: GShardM4Config = c
        self.scope = scope
        self.source_embedding = Embedding(c.source_vocab, m, k1, scope / "source_embedding")
        self.target_embedding = Embedding(c.target_vocab, m, k2, scope / "target_embedding")
        self.make_encoder(k3)
        self.make_decoder(k4)
        self.softmax = param(k5, (m, c.target_vocab), ("embed", "vocab"), normal(m**-0.5), scope / "softmax")

    @property
    def target_vocab(self) -> int:
        return self.c.target_vocab

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens of the target side, which translation throughput counts."""
        return {"tokens": jnp.sum(batch["targets_segments"] > 0)}

    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        return self._embed(self.source_embedding, batch["inputs"], self.source_places(batch)[1], key)

    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        return self._embed(self.target_embedding, ids_BL, positions_BL, key)

    def _embed(self, table: Embedding, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        x_BLM = table(ids_BL, self.scope.dtype)
        if isinstance(self.c.positions, Sinusoidal):
            x_BLM += sinusoids(positions_BL, self.c.model_dim, x_BLM.dtype)
        return dropout(x_BLM, self.c.dropout, key)

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        return transformer.logits(x_BLM, self.softmax[...], self.scope / "softmax")
