"""CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343): an image tower and a text tower, whose vectors are compared.

B rows, N slots of a row, X of all rows, L tokens of a row, R tokens of a text, M model, D numbers of a vector. The image tower is
a ViT; the layers of the text tower are models/parts/transformer.py.

A row is a pack (data/multimodal/config.py): texts side by side, and slots of pictures, whose segments are the numbers of their
texts. Towers read slots, each with a picture and its text in a row of its own, so that a text's vector does not depend on what
it is packed with. A slot without either is padding, and is compared with nothing.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from models.clip.config import ClipConfig, EndPooling, FilledPooling, SigmoidLoss, SoftmaxLoss, TextTower
from models.errors import UserError
from models.parts import transformer
from models.parts.attention.mask import AttentionMask
from models.parts.layers import Embedding, add_bias, add_positions, dropout, project
from models.parts.losses import Loss, Totals
from models.parts.pairs import sigmoid_pairs, softmax_pairs
from models.parts.transformer import Block
from models.protocol import Batch, Context, Represents
from models.sharding.component import Component
from models.sharding.params import constant, normal, param, stack_modules, zeros
from models.vit.model import Vit

VISION, TEXT = "vision_tower", "text_tower"


class Clip(nnx.Module, Represents):
    """The whole model. A batch has float32 `images` [B, N, height, width, channels] with `images_segments` int32 [B, N], and
    `targets`, int32 [B, L], with segments. A segment is the number of a text in its row, from 1; 0 is an empty slot, or
    padding."""

    def __init__(self, c: ClipConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.c, self.scope, both = c, scope, c.projections == "both"
        width, names = c.vision.pooled_dim, ("in_channels", "embed")
        self.vision_tower = Vit(c.vision, k1, scope / VISION)
        self.text_tower = TextEncoder(c.text, k2, scope / TEXT)
        self.vision_projection = param(k3, (width, c.dim), names, normal(width**-0.5), scope) if both else None
        self.text_projection = param(k4, (c.text.model_dim, c.dim), names, normal(c.text.model_dim**-0.5), scope)
        self.text_bias = None if both else param(k4, (c.dim,), ("embed",), zeros, scope)
        self.logit_scale = param(key, (), (), constant(math.log(c.loss.scale)), scope)
        self.logit_bias = param(key, (), (), constant(c.loss.bias), scope) if isinstance(c.loss, SigmoidLoss) else None

    # --- vectors ---

    def picture_vectors(self, batch: Batch, context: Context) -> tuple[jax.Array, Loss]:
        """Returns (the unit vector of each slot's picture [X, D], in float32 at least; the image tower's losses)."""
        images_X = batch["images"].reshape(-1, *batch["images"].shape[2:])
        used_X1 = batch["images_segments"].reshape(-1, 1) > 0
        weights_X2 = jnp.pad(used_X1.astype(jnp.float32), ((0, 0), (0, 1)))
        x_XLM, loss = self.vision_tower.encode({"images": images_X, "label_weights": weights_X2}, context)
        x_XM = self.vision_tower.head(x_XLM)
        if self.vision_projection is not None:
            x_XM = project(x_XM, self.vision_projection[...], self.scope)
        return self._unit(x_XM), loss

    def text_vectors(self, batch: Batch, context: Context) -> jax.Array:
        """Returns the unit vector of the text of each slot [X, D], in float32 at least."""
        ids_XR, real_XR = texts_of_slots(batch, self.c.text.positions.rows)
        x_XM = self.text_tower(ids_XR, real_XR, context)
        return self._unit(add_bias(project(x_XM, self.text_projection[...], self.scope), self.text_bias))

    def _unit(self, x_XD: jax.Array) -> jax.Array:
        x_XD = self.scope.shard(x_XD, "batch", None)
        x_XD = x_XD.astype(jnp.promote_types(x_XD.dtype, jnp.float32))
        return x_XD * jax.lax.rsqrt(jnp.maximum(jnp.sum(x_XD * x_XD, axis=-1, keepdims=True), 1e-24))

    def similarities(self, pictures_XD: jax.Array, texts_YD: jax.Array) -> jax.Array:
        """Returns the logit of each picture and each text [X, Y], of unit vectors."""
        logits_XY = pictures_XD @ texts_YD.T * jnp.exp(self.logit_scale[...])
        return logits_XY if self.logit_bias is None else logits_XY + self.logit_bias[...]

    def vectors(self, batch: Batch) -> jax.Array:
        """Returns the unit vector of each slot's picture [X, D]; see Represents."""
        return self.picture_vectors(batch, Context.evaluation())[0]

    # --- training ---

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns the model itself, which compares the vectors of a whole batch; see `Model`."""
        return ("",)

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the loss of the batch's pictures and texts; see `Model`."""
        totals = self.totals(batch) if totals is None else totals
        vision, text = context.split(2)
        pictures_XD, loss = self.picture_vectors(batch, vision)
        texts_XD = self.text_vectors(batch, text)
        used_X, scale = _used(batch), self.logit_scale[...]
        if self.logit_bias is not None:
            pairs = sigmoid_pairs(
                pictures_XD, texts_XD, used_X, jnp.exp(scale), self.logit_bias[...], totals["pairs"], self.scope
            )
        else:
            scale = jnp.minimum(scale, math.log(self.c.loss.most)) if isinstance(self.c.loss, SoftmaxLoss) else scale
            pairs = softmax_pairs(pictures_XD, texts_XD, used_X, jnp.exp(scale), 2 * totals["pairs"])
        return loss + pairs

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of pictures with a text, over which the loss is a mean."""
        return {"pairs": jnp.sum(_used(batch))}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the numbers of pictures and of tokens, padding left out."""
        return {"images": jnp.sum(batch["images_segments"] > 0), "tokens": jnp.sum(batch["targets_segments"] > 0)}


class TextEncoder(nnx.Module):
    """A Transformer over the tokens of texts, a text a row."""

    def __init__(self, c: TextTower, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.c, self.scope = c, scope
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding", std=0.02)
        places = c.positions.rows, c.model_dim
        self.positions = param(k2, places, ("positions", "embed"), normal(0.01), scope / "embedding")
        self.encoder = stack_modules(lambda k: Block(c, k, scope / "encoder"), k3, c.layers)
        self.final_norm = transformer.norm(c, scope / "final_norm")

    def __call__(self, ids_XR: jax.Array, real_XR: jax.Array, context: Context) -> jax.Array:
        """Returns the vector of each text [X, M].

        Args:
          ids_XR: int32 tokens; a text begins at the first position.
          real_XR: bool, False behind a text's end.
        """
        c, (first, layers) = self.c, context.split(2)
        if isinstance(c.pooling, FilledPooling):
            more = ((0, 0), (0, c.positions.rows - ids_XR.shape[1]))
            ids_XR = jnp.pad(jnp.where(real_XR, ids_XR, c.pooling.pad_id), more, constant_values=c.pooling.pad_id)
            real_XR = jnp.ones_like(ids_XR, bool)
        places_1R = jnp.arange(ids_XR.shape[1], dtype=jnp.int32)[None]
        x_XRM = self.embedding(ids_XR, self.scope.dtype)
        x_XRM = add_positions(x_XRM, self.positions, jnp.broadcast_to(places_1R, ids_XR.shape), self.scope / "embedding")
        x_XRM = dropout(x_XRM, c.dropout, first.key)
        segments_XR = real_XR.astype(jnp.int32)
        g = transformer.attention_inputs(c, places_1R, AttentionMask.for_rows(segments_XR, segments_XR, causal=c.causal))
        x_XRM, _ = transformer.run(self.encoder, x_XRM, g, layers.for_layers(c.layers))
        at_X = jnp.max(jnp.where(real_XR, places_1R, 0), axis=1)
        if isinstance(c.pooling, EndPooling):
            ends_XR = real_XR & (ids_XR == c.pooling.end_id)
            at_X = jnp.where(jnp.any(ends_XR, axis=1), jnp.argmax(ends_XR, axis=1), at_X)
        x_XRM = self.scope.shard(self.final_norm(x_XRM), "batch", None, "act_embed")
        return jnp.take_along_axis(x_XRM, at_X[:, None, None], axis=1)[:, 0]


def texts_of_slots(batch: Batch, longest: int) -> tuple[jax.Array, jax.Array]:
    """Returns (the tokens of the text of each slot int32 [X, R], from the first position on; where they are real).

    Raises:
      UserError: rows of one text each that have more tokens than the text tower has positions.
    """
    ids_BL, segments_BL, slots_BN = batch["targets"], batch["targets_segments"], batch["images_segments"]
    length = ids_BL.shape[1]
    if length > longest and slots_BN.shape[1] == 1:
        raise UserError(f"a row of {length} tokens: the text tower's table of positions, text.positions.rows, has {longest}")
    own_BNL = (segments_BL[:, None] == slots_BN[:, :, None]) & (slots_BN[:, :, None] > 0)
    from_BNR = jnp.argmax(own_BNL, axis=-1)[..., None] + jnp.arange(min(length, longest))
    within_BNR = jnp.minimum(from_BNR, length - 1)
    real_BNR = jnp.take_along_axis(own_BNL, within_BNR, axis=-1) & (from_BNR < length)
    ids_BNR = jnp.take_along_axis(jnp.broadcast_to(ids_BL[:, None], own_BNL.shape), within_BNR, axis=-1)
    rows = (-1, from_BNR.shape[-1])
    return jnp.where(real_BNR, ids_BNR, 0).reshape(rows), real_BNR.reshape(rows)


def _used(batch: Batch) -> jax.Array:
    """Returns which slots [X] have a picture and a text."""
    slots_BN = batch["images_segments"]
    has_BN = jnp.any(batch["targets_segments"][:, None] == slots_BN[:, :, None], axis=-1)
    return ((slots_BN > 0) & has_BN).reshape(-1)
