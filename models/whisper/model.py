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
from models.parts.encoder_decoder import Encoder, EncoderDecoder
from models.parts.layers import Embedding, add_positions, dropout, sinusoids
from models.parts.transformer import Key
from models.protocol import Batch, HearsWindows
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
        return add_positions(x_BSM, self.positions, places(segments_BT[:, ::STRIDE]), self.scope)


def _sinusoids(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """The encoder's positions as they are initially: the released models' too, which did not learn them."""
    rows, size = shape
    return sinusoids(np.arange(rows), size, dtype)  # pyright: ignore[reportArgumentType]


class WhisperEncoder(Encoder):
    """The encoder of sound, which is also a tower of larger models, with the names of its parameters in Whisper."""

    c: WhisperConfig
    front: Front

    def __init__(self, c: WhisperConfig, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.c, self.scope = c, scope
        self.front = Front(c, k1, scope / "front")
        self.make_encoder(k2)

    def embed_source(self, batch: Batch, key: Key) -> jax.Array:
        x_BSM = self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"])
        return dropout(x_BSM, self.c.dropout, key)

    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        segments_BS = batch["frames_segments"][:, ::STRIDE]
        return segments_BS, places(segments_BS)


class Whisper(WhisperEncoder, EncoderDecoder, HearsWindows):
    """The whole model: one embedding table of tokens, not scaled, whose transpose makes the output logits."""

    def __init__(self, c: WhisperConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c, self.scope = c, scope
        self.front = Front(c, k1, scope / "front")
        self.embedding = Embedding(c.vocab, c.model_dim, k2, scope / "embedding", std=0.02)
        self.positions = param(k3, (c.positions.rows, c.model_dim), ("positions", "embed"), normal(0.02), scope)
        self.make_encoder(k4)
        self.make_decoder(k5)

    @property
    def window(self) -> tuple[int, int]:
        return self.c.most_frames, self.c.frame_width

    @property
    def longest(self) -> int:
        return self.c.positions.rows

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of frames and of the texts' tokens, padding left out."""
        return {"frames": jnp.sum(batch["frames_segments"] > 0), "tokens": jnp.sum(batch["targets_segments"] > 0)}
