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

from models.conformer.fronts import positions_of
from models.conformer.model import Conformer
from models.multimodal.config import MultimodalConfig
from models.parts import transformer
from models.parts.encoder_decoder import EncoderDecoder, Side
from models.parts.layer_group import LayerGroup, run_groups
from models.parts.layers import Embedding, Norm, add_bias, dropout, project
from models.parts.losses import Loss, Totals, zero_loss
from models.parts.transformer import Key, Statistics
from models.protocol import Batch, Context
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules, zeros
from models.vit.model import Vit
from models.whisper.config import WhisperConfig
from models.whisper.model import STRIDE, Front

VISION, AUDIO = "vision_tower", "audio_tower"


class Multimodal(EncoderDecoder):
    """The whole model. A batch has `images` [B, N, height, width, channels] with `images_segments` int32 [B, N], and `frames`
    [B, N, T, F] with `frames_segments` int32 [B, N, T], as far as there are towers, each with an N of its own; and targets, int32
    [B, L] with segments. A segment is the number of a text in its row, from 1; 0 is an empty slot, or padding."""

    def __init__(self, c: MultimodalConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c: MultimodalConfig = c
        self.scope = scope
        self.vision_tower = Vit(c.vision, k1, scope / VISION) if c.vision else None
        self.audio_tower = self._audio(k2, scope / AUDIO)
        self.vision_seam = Seam(c.vision.model_dim, c, k3, scope / "vision_seam") if c.vision else None
        audio = c.conformer or c.whisper
        self.audio_seam = Seam(audio.model_dim, c, k3, scope / "audio_seam") if audio else None
        self.embedding = Embedding(c.vocab, c.model_dim, k4, scope / "embedding", std=0.02)
        self.positions = param(k4, (c.max_positions, c.model_dim), ("positions", "embed"), normal(0.02), scope)
        self.decoder = stack_modules(
            lambda k: LayerGroup(c, k, scope / "decoder", causal=True, attends_to_source=True), k5, c.decoder_groups
        )
        self.decoder_norm = transformer.norm(c, scope / "decoder") if c.order == "pre" else None
        self.decoder_bias = None

    def _audio(self, key: jax.Array, scope: Component) -> "Conformer | Listener | None":
        c = self.c
        if c.conformer:
            return Conformer(c.conformer, key, scope)
        return Listener(c.whisper, key, scope) if c.whisper else None

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns those of the audio tower; see `Model`."""
        return self.audio_tower.coupled if isinstance(self.audio_tower, Conformer) else ()

    @property
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""
        return self.c.vocab

    # --- what the decoder attends to ---

    def source_places(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns (the text of each position of the pictures and sounds of a row, 0 where there is none; its place), int32
        [B, N P + N S]."""
        c, parts = self.c, []
        if c.vision:
            parts.append(jnp.repeat(batch["images_segments"], c.vision.length, axis=1))
        if c.conformer:
            segments = batch["frames_segments"]
            parts.append(_in_rows(positions_of(c.conformer, _slots(segments)), segments))
        elif c.whisper:
            segments = batch["frames_segments"]
            parts.append(_in_rows(_slots(segments)[:, ::STRIDE], segments))
        segments = jnp.concatenate(parts, axis=1)
        return segments, jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape)

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns ({"source": what both towers return [B, N P + N S, M]}, their losses); see HasPrologue."""
        del totals
        source_BSM, loss = self._towers(batch, context)
        return {"source": source_BSM}, loss

    def encode(self, batch: Batch, context: Context) -> tuple[jax.Array, Statistics]:
        """Returns (what both towers return [B, N P + N S, M], no statistics)."""
        return self._towers(batch, context)[0], {}

    def _towers(self, batch: Batch, context: Context) -> tuple[jax.Array, Loss]:
        seeing, hearing = context.split(2)
        parts, loss = [], zero_loss(self.scope.dtype)
        if self.vision_tower is not None and self.vision_seam is not None:
            x_XPM, more = self._seen(self.vision_tower, batch, seeing)
            parts.append(_in_rows(self.vision_seam(x_XPM), batch["images_segments"]))
            loss += more
        if self.audio_tower is not None and self.audio_seam is not None:
            slots = {name: _slots(batch[name]) for name in ("frames", "frames_segments")}
            x_XSM, more = self.audio_tower.listened(slots, hearing)
            parts.append(_in_rows(self.audio_seam(x_XSM), batch["frames_segments"]))
            loss += more
        return jnp.concatenate(parts, axis=1), loss

    def _seen(self, tower: Vit, batch: Batch, context: Context) -> tuple[jax.Array, Loss]:
        """Returns (what the image tower returns of each slot [B N, P, M], its loss)."""
        used_X1 = batch["images_segments"].reshape(-1, 1) > 0
        slots = {"images": _slots(batch["images"]), "label_weights": jnp.pad(used_X1.astype(jnp.float32), ((0, 0), (0, 1)))}
        return tower.seen(slots, context, tower.totals(slots))

    def vectors(self, batch: Batch) -> jax.Array:
        """Returns the mean over its positions of what the image tower returns of each picture [B N, M]; see Represents."""
        assert self.vision_tower is not None
        return jnp.mean(self._seen(self.vision_tower, batch, Context.evaluation())[0], axis=1)

    def alone(self, batch: Batch) -> Batch:
        """Returns the batch: pictures and sounds say themselves whose they are."""
        return batch

    # --- text ---

    def embed_tokens(self, side: Side, ids_BL: jax.Array, positions_BL: jax.Array, key: Key) -> jax.Array:
        """Returns the decoder's input [B, L, M]; see EncoderDecoder."""
        del side
        table_PM = self.scope.shard(self.positions[...].astype(self.scope.dtype), None, None)
        x_BLM = self.embedding(ids_BL, self.scope.dtype) + table_PM[positions_BL]
        return dropout(self.scope.shard(x_BLM, "batch", "res_length", "act_embed"), self.c.dropout, key)

    def logits(self, x_BLM: jax.Array) -> jax.Array:
        """Returns the output logits [B, L, V]; see EncoderDecoder."""
        scope = self.embedding.scope
        return scope.shard(project(x_BLM, self.embedding.table[...].T, scope), "batch", "length", "act_vocab")

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of tokens, and of pictures and frames as far as there are towers, padding left out."""
        found = {"tokens": jnp.sum(batch["targets_segments"] > 0)}
        if self.c.vision:
            found["images"] = jnp.sum(batch["images_segments"] > 0)
        if self.audio_tower is not None:
            found["frames"] = jnp.sum(batch["frames_segments"] > 0)
        return found


def _slots(x_BN: jax.Array) -> jax.Array:
    """Returns the slots of all rows [B N, ...]. Rows stay whole, on the devices that have them, as they do below."""
    return x_BN.reshape(-1, *x_BN.shape[2:])


def _in_rows(x_X: jax.Array, like_BN: jax.Array) -> jax.Array:
    """Returns the positions of slots [B N, S, ...] side by side in their rows [B, N S, ...]."""
    return x_X.reshape(len(like_BN), -1, *x_X.shape[2:])


class Seam(nnx.Module):
    """Maps a tower's output to the decoder's width; where the two layouts meet, an array changes from one cut to the other."""

    def __init__(self, size: int, c: MultimodalConfig, key: jax.Array, scope: Component):
        self.scope, plain = scope, c.seam == "plain"
        shape, names = (size, c.model_dim), ("in_channels", "embed")
        maps = size != c.model_dim or not plain
        self.weight = param(key, shape, names, normal(size**-0.5), scope) if maps else None
        self.bias = param(key, shape[1:], ("embed",), zeros, scope) if maps and plain else None
        self.norm = None if plain else Norm(c.model_dim, scope, kind=c.norm, bias=c.norm_bias, eps=c.norm_eps)

    def __call__(self, x_BSM: jax.Array) -> jax.Array:
        # Rows as the decoder has them, positions and width whole: it attends to all of them.
        x_BSM = self.scope.shard(x_BSM, "batch", None, None)
        if self.weight is not None:
            x_BSM = add_bias(project(x_BSM, self.weight[...], self.scope), self.bias)
        if self.norm is not None:
            x_BSM = self.norm(x_BSM)
        return self.scope.shard(x_BSM, "batch", None, None)


class Listener(nnx.Module):
    """Whisper's encoder as a tower, with the names of its parameters there, so that it starts from released weights."""

    def __init__(self, c: WhisperConfig, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.c, self.scope = c, scope
        self.front = Front(c, k1, scope / "front")
        self.encoder = stack_modules(lambda k: LayerGroup(c, k, scope / "encoder"), k2, c.encoder_groups)
        self.encoder_norm = transformer.norm(c, scope / "encoder")

    def listened(self, batch: Batch, context: Context) -> tuple[jax.Array, Loss]:
        """Returns (the encoder's output [B, S, M], normed; no loss)."""
        first, layers = context.split(2)
        x_BSM = dropout(self.front(batch["frames"].astype(self.scope.dtype), batch["frames_segments"]), self.c.dropout, first.key)
        segments_BS = batch["frames_segments"][:, ::STRIDE]
        g = transformer.attention_inputs(self.c, segments_BS, transformer.AttentionMask.for_rows(segments_BS, segments_BS))
        keys = layers.for_layers(self.c.encoder_groups).key
        x_BSM, _ = run_groups(self.encoder, x_BSM, g, keys, self.scope / "encoder")
        return self.encoder_norm(x_BSM), zero_loss(x_BSM.dtype)
