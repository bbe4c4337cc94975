"""Whisper (Robust Speech Recognition via Large-Scale Weak Supervision, arXiv 2212.04356, section 2.2).

B rows, T frames, S positions (two frames each), L tokens, F mel bands, M model, V vocabulary. The layers and both stacks are
models/parts/encoder_decoder.py: pre-norm with layer norms and biases, all but those of keys.

Unlike the released code, which hears 30 s of silence behind a short utterance, rows may hold several utterances with padding
between them (data/speech/config.py): padding is masked before both convolutions and in attention, and never changes a result.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.parts.convolution_1d import Conv1d, masked, places
from models.parts.encoder_decoder import EncoderDecoder, Side
from models.parts.layers import Embedding, dropout, project, sinusoids
from models.parts.transformer import Key
from models.protocol import Batch
from models.sharding.component import Component
from models.sharding.params import normal, param
from models.whisper.config import WhisperConfig

STRIDE = 2  # frames of a position


class Front(nnx.Module):
    """Two convolutions over frames, the second of stride 2, each with a GELU, and a table of positions."""

    def __init__(self, c: WhisperConfig, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.scope = scope
        self.conv1 = Conv1d(c.mels, c.model_dim, k1, scope / "conv1")
        self.conv2 = Conv1d(c.model_dim, c.model_dim, k2, scope / "conv2", stride=STRIDE)
        self.positions = param(k3, (c.source_positions, c.model_dim), ("positions", "embed"), _sinusoids, scope)

    def __call__(self, frames_BTF: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Returns [B, S, M]; positions count anew in every segment."""
        x_BTM = jax.nn.gelu(self.conv1(masked(frames_BTF, segments_BT)), approximate=False)
        x_BSM = jax.nn.gelu(self.conv2(masked(x_BTM, segments_BT)), approximate=False)
        # Looked up with its vectors whole, as tokens are (layers.Embedding).
        table_PM = self.scope.shard(self.positions[...].astype(x_BSM.dtype), None, None)
        x_BSM += table_PM[places(segments_BT[:, ::STRIDE])]
        return self.scope.shard(x_BSM, "batch", "res_length", "act_embed")


def _sinusoids(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """The encoder's positions as they are initially: the released models' too, which did not learn them."""
    del key
    rows, size = shape
    return sinusoids(np.arange(rows), size, dtype)  # pyright: ignore[reportArgumentType]


class Whisper(EncoderDecoder):
    """The whole model: one embedding table of tokens, not scaled, whose transpose makes the output logits."""

    def __init__(self, c: WhisperConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c: WhisperConfig = c
        self.scope = scope
        self.front = Front(c, k1, scope / "front")
        self.embedding = Embedding(c.vocab, c.model_dim, k2, scope / "embedding", std=0.02)
        self.positions = param(k3, (c.max_positions, c.model_dim), ("positions", "embed"), normal(0.02), scope)
        self._make_stacks(k4, k5)

    @property
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""
        return self.c.vocab

    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        """Returns the encoder's input [B, S, M] of frames; see EncoderDecoder."""
        x_BSM = self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"])
        return dropout(x_BSM, self.c.dropout, key)

    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns segments and places of the encoder's positions; see EncoderDecoder."""
        segments_BS = batch["frames_segments"][:, ::STRIDE]
        return segments_BS, places(segments_BS)

    def alone(self, batch: Batch) -> Batch:
        """Returns the batch; frames come with their segments."""
        return batch

    def embed_tokens(self, side: Side, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        """Returns the decoder's input [B, L, M]; see EncoderDecoder."""
        del side
        dtype = self.scope.dtype
        table_PM = self.scope.shard(self.positions[...].astype(dtype), None, None)
        x_BLM = self.embedding(ids_BL, dtype) + table_PM[positions_BL]
        return dropout(self.scope.shard(x_BLM, "batch", "res_length", "act_embed"), self.c.dropout, key)

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        """Returns the output logits [B, L, V]; see EncoderDecoder."""
        scope = self.embedding.scope
        return scope.shard(project(x_BLM, self.embedding.table[...].T, scope), "batch", "length", "act_vocab")

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of frames and of the texts' tokens, padding left out."""
        return {"frames": jnp.sum(batch["frames_segments"] > 0), "tokens": jnp.sum(batch["targets_segments"] > 0)}
