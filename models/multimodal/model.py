"""Pictures and sounds into text: an image tower (ViT), an audio tower (a Conformer, or Whisper's encoder) and a decoder.

B rows, N slots of a row, L tokens, P positions of a picture, S positions of a sound, M model, V vocabulary. Each tower is a
family's own model as a component, with its own configuration, layout, rematerialisation and weights.

A row is a pack: texts side by side, and slots of pictures and of sounds, whose segments are the numbers of their texts. A tower
reads slots, B N of them, whatever the row. What the towers return is mapped to the decoder's width and stands side by side in
its row, all positions of all slots; a text attends to those of its own number, as it does to its own tokens, so that nothing is
gathered, and nothing leaves its row. The decoder, its loss and its search are those of every encoder-decoder here
(models/parts/encoder_decoder.py).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer.config import ConformerConfig
from models.conformer.fronts import positions_of
from models.conformer.model import Conformer
from models.m2m100.model import StackInputs
from models.multimodal.config import MultimodalConfig
from models.parts.attention.config import Learned
from models.parts.decoder import Cache
from models.parts.encoder_decoder import SourceDecoder
from models.parts.layers import Embedding, Norm, add_bias, dropout, project
from models.parts.losses import Loss, Totals, zero_loss
from models.parts.transformer import Key
from models.protocol import Batch, Context, Represents
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros
from models.vit.model import Vit
from models.whisper.model import STRIDE, WhisperEncoder

VISION, AUDIO = "vision_tower", "audio_tower"


class Multimodal(SourceDecoder, Represents):
    """The whole model. A batch has `images` [B, N, height, width, channels] with `images_segments` int32 [B, N], and `frames`
    [B, N, T, F] with `frames_segments` int32 [B, N, T], as far as there are towers, each with an N of its own; and targets, int32
    [B, L] with segments. A segment is the number of a text in its row, from 1; 0 is an empty slot, or padding."""

    def __init__(self, c: MultimodalConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c: MultimodalConfig = c
        self.scope, towers, audio = scope, c.towers, c.towers.audio
        self.vision_tower = Vit(towers.vision, k1, scope / VISION) if towers.vision else None
        make = Conformer if isinstance(audio, ConformerConfig) else WhisperEncoder
        self.audio_tower = make(audio, k2, scope / AUDIO) if audio else None  # pyright: ignore[reportArgumentType]
        self.vision_seam = Seam(towers.vision.model_dim, c, k3, scope / "vision_seam") if towers.vision else None
        self.audio_seam = Seam(audio.model_dim, c, k3, scope / "audio_seam") if audio else None
        self.embedding = Embedding(c.vocab, c.model_dim, k4, scope / "embedding", std=0.02)
        self.inputs = StackInputs(c, c.inputs, jax.random.fold_in(k4, 1), scope / "inputs") if c.inputs else None
        rows = c.positions.rows if isinstance(c.positions, Learned) and not c.inputs else 0
        self.positions = param(k4, (rows, c.model_dim), ("positions", "embed"), normal(0.02), scope) if rows else None
        self.make_decoder(k5)

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns those of the audio tower; see `Model`."""
        return self.audio_tower.coupled if isinstance(self.audio_tower, Conformer) else ()

    def embed_tokens(self, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        if self.inputs is None:
            return super().embed_tokens(ids_BL, positions_BL, key)
        return dropout(self.inputs(self.embedding(ids_BL, self.scope.dtype), positions_BL), self.c.dropout, key)

    def start(self, batch: Batch, hypotheses: int, steps: int) -> Cache:
        self.c.check_length(steps)
        return super().start(batch, hypotheses, steps)

    # --- what the decoder attends to ---

    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns (the text of each position of the pictures and sounds of a row, 0 where there is none; its place), int32
        [B, N P + N S]."""
        vision, audio, parts = self.c.towers.vision, self.c.towers.audio, []
        if vision:
            parts.append(jnp.repeat(batch["images_segments"], vision.length, axis=1))
        if audio:
            segments = batch["frames_segments"]
            slots = _slots(segments)
            parts.append(
                _in_rows(positions_of(audio, slots) if isinstance(audio, ConformerConfig) else slots[:, ::STRIDE], segments)
            )
        segments = jnp.concatenate(parts, axis=1)
        return segments, jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape)

    def encode(self, batch: Batch, context: Context, totals: Totals | None = None) -> tuple[jax.Array, Loss]:
        """Returns (what both towers return [B, N P + N S, M], their losses); each tower counts its own totals."""
        vision, audio = context.split(2)
        parts, loss = [], zero_loss(self.scope.dtype)
        if self.vision_tower is not None and self.vision_seam is not None:
            x_XPM, more = self._encode_images(self.vision_tower, batch, vision)
            parts.append(_in_rows(self.vision_seam(x_XPM), batch["images_segments"]))
            loss += more
        if self.audio_tower is not None and self.audio_seam is not None:
            slots = {name: _slots(batch[name]) for name in ("frames", "frames_segments")}
            x_XSM, more = self.audio_tower.encode(slots, audio)
            parts.append(_in_rows(self.audio_seam(x_XSM), batch["frames_segments"]))
            loss += more
        return jnp.concatenate(parts, axis=1), loss

    def _encode_images(self, tower: Vit, batch: Batch, context: Context) -> tuple[jax.Array, Loss]:
        """Returns (what the image tower returns of each slot [B N, P, M], its loss)."""
        used_X1 = batch["images_segments"].reshape(-1, 1) > 0
        slots = {"images": _slots(batch["images"]), "label_weights": jnp.pad(used_X1.astype(jnp.float32), ((0, 0), (0, 1)))}
        return tower.encode(slots, context)

    def vectors(self, batch: Batch) -> jax.Array:
        """Returns the mean over its positions of what the image tower returns of each picture [B N, M]; see Represents."""
        assert self.vision_tower is not None
        return jnp.mean(self._encode_images(self.vision_tower, batch, Context.evaluation())[0], axis=1)

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens, and of pictures and frames as far as there are towers, padding left out."""
        segments = {"tokens": batch["targets_segments"]}
        if self.vision_tower is not None:
            segments["images"] = batch["images_segments"]
        if self.audio_tower is not None:
            segments["frames"] = batch["frames_segments"]
        return {unit: jnp.sum(segments_BX > 0) for unit, segments_BX in segments.items()}


def _slots(x_BN: jax.Array) -> jax.Array:
    """Returns the slots of all rows [B N, ...]. Rows stay whole, on the devices that have them, as they do below."""
    return x_BN.reshape(-1, *x_BN.shape[2:])


def _in_rows(x_X: jax.Array, like_BN: jax.Array) -> jax.Array:
    """Returns the positions of slots [B N, S, ...] side by side in their rows [B, N S, ...]."""
    return x_X.reshape(len(like_BN), -1, *x_X.shape[2:])


class Seam(nnx.Module):
    """Maps a tower's output to the decoder's width; where the two layouts meet, an array changes from one cut to the other."""

    def __init__(self, size: int, c: MultimodalConfig, key: jax.Array, scope: Component):
        self.scope, plain = scope, c.towers.seam == "plain"
        shape, names = (size, c.model_dim), ("in_channels", "embed")
        plain = plain or c.towers.seam == "none"
        maps = c.towers.seam != "none" and (size != c.model_dim or not plain)
        self.weight = param(key, shape, names, normal(size**-0.5), scope) if maps else None
        self.bias = param(key, shape[1:], ("embed",), zeros, scope) if maps and plain else None
        self.norm = None if plain else Norm(c.model_dim, scope, kind=c.norm.kind, bias=c.norm.bias, eps=c.norm.eps)

    def __call__(self, x_BSM: jax.Array) -> jax.Array:
        # Rows as the decoder has them, positions and width whole: it attends to all of them.
        x_BSM = self.scope.shard(x_BSM, "batch", None, None)
        if self.weight is not None:
            x_BSM = add_bias(project(x_BSM, self.weight[...], self.scope), self.bias)
        if self.norm is not None:
            x_BSM = self.norm(x_BSM)
        return self.scope.shard(x_BSM, "batch", None, None)
