"""ViT (arXiv 2010.11929) and V-MoE (arXiv 2106.05974): an encoder over the patches of a picture.

B pictures, P pixels of a patch times channels, L positions, M model, C classes. The layers are models/parts/transformer.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.parts import transformer
from models.parts.attention.config import GroupedQuery, Rotary, Sinusoidal
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention
from models.parts.attention.rotary import Rotation, rotation
from models.parts.layer_group import LayerGroup
from models.parts.layers import FeedForward, add_bias, dropout, project
from models.parts.losses import Loss, Ratio, Totals, cross_entropy, is_top_1, per
from models.parts.moe.layer import check_groups, routing_loss
from models.parts.transformer import AttentionInputs, Unnormed
from models.parts.transformer_config import BlockConfig
from models.protocol import Batch, ChecksRows, Classifies, Context, ShowsAttention, Staged
from models.sharding.component import Component
from models.sharding.params import constant, normal, param, stack_modules, zeros
from models.vit.config import DistilledPooling, MapPooling, NormedMeanPooling, TokenAndMeanPooling, TokenPooling, VitConfig


class Vit(Staged, Classifies, ShowsAttention, ChecksRows):
    """The whole model. Parameters only; every method is a pure function of them and its arguments."""

    stack_name: ClassVar[str] = "encoder"

    def __init__(self, c: VitConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c, self.scope = c, scope
        inner, m, pixels = scope / "embedding", c.model_dim, c.patches.size * c.patches.size * c.patches.channels
        self.patches = param(k1, (pixels, m), ("pixels", "embed"), normal(pixels**-0.5), inner)
        self.patch_bias = param(k1, (m,), ("embed",), zeros, inner) if c.patches.bias else None
        self.class_token = param(k2, (m,), ("embed",), zeros, inner) if c.tokens else None
        self.teacher_token = param(k2, (m,), ("embed",), zeros, inner) if c.tokens > 1 else None
        places = c.places, m
        self.position_table = param(k3, places, ("positions", "embed"), normal(m**-0.5), inner) if c.places else None
        self.embedding_norm = transformer.norm(c, inner) if c.patches.norm else None
        self.encoder = stack_modules(lambda k: LayerGroup(c, k, scope / "encoder"), k4, c.layer_groups)
        normed_later = isinstance(c.pooling, NormedMeanPooling)
        self.final_norm = Unnormed() if normed_later else transformer.norm(c, scope / "final_norm")
        self.head = (MapHead if isinstance(c.pooling, MapPooling) else Head)(c, k5, scope / "head")

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns logits [B, C] outside training, or pooled vectors [B, M] where there are no classes."""
        return self.head(self.features(batch))

    def features(self, batch: Batch) -> jax.Array:
        """Returns the last layer's vectors [B, L, M], normed, outside training."""
        return self.encode(batch, Context.evaluation())[0]

    def encode(self, batch: Batch, context: Context, totals: Totals | None = None) -> tuple[jax.Array, Loss]:
        """Returns (the last layer's vectors [B, L, M], normed; the routers' losses), for larger models too."""
        totals = self.totals(batch) if totals is None else totals
        first, layers = context.split(2)
        x_BLM = self.embed(batch, first)
        x_BLM, loss = self.apply_layers(self.encoder, x_BLM, batch, layers.for_layers(self.c.layer_groups), totals)
        return self.final_norm(x_BLM), loss

    def attention_maps(self, batch: Batch) -> jax.Array:
        """Returns how much of each patch the others take, by layer, mean over heads and queries: [layers, B, rows, columns]."""
        x_BLM = self.embed(batch, Context.evaluation())
        g, maps = self._attention_inputs(jnp.ones(len(x_BLM), bool)), []
        for unit in transformer.unstacked(self.encoder):
            for block in unit.layers:
                y_BLM = block.attention_norm(x_BLM)
                kv = block.attention.keys_values(y_BLM, g.rotation)
                p_BNLS = block.attention.probabilities(y_BLM, kv, g.mask, g.rotation)
                maps.append(jnp.mean(p_BNLS, axis=(1, 2)))
                x_BLM, _ = block(x_BLM, g, Context.evaluation())
        rows, columns = self.c.grid
        return jnp.stack(maps)[..., -rows * columns :].reshape(len(maps), len(x_BLM), rows, columns)

    # --- training ---

    # The loss (Staged.loss) is the cross-entropy of the labels, plus the routers' losses. Batches have float32 `images`
    # [B, height, width, channels], and two classes each: int32 `labels` [B, 2] with `label_weights` [B, 2], whose sum is 1, or 0
    # for a row that only fills the batch up.

    @property
    def classes(self) -> int:
        return self.c.head.classes

    def embed(self, batch: Batch, context: Context) -> jax.Array:
        """Returns the first layer's input [B, L, M]."""
        c, scope = self.c, self.scope / "embedding"
        x_BLP = patches(batch["images"].astype(scope.dtype), c.patches.size, scope)
        x_BLM = add_bias(project(x_BLP, self.patches[...], scope), self.patch_bias)
        x_BLM = scope.shard(x_BLM, "batch", "length", "act_embed")
        if isinstance(c.positions, Sinusoidal):
            rows, columns = c.grid
            x_BLM += jnp.asarray(sinusoids(rows, columns, c.model_dim), x_BLM.dtype)
        first = c.tokens if isinstance(c.pooling, TokenPooling) and c.pooling.positioned else 0
        table_LM = None if self.position_table is None else self.position_table[...].astype(x_BLM.dtype)
        if table_LM is not None:
            # Whole first: XLA has no way from the cut of a weight to that of positions, and would say so.
            x_BLM += scope.shard(scope.shard(table_LM, None, None)[first:], "length", "act_embed")
        if c.tokens:
            tokens_KM = jnp.stack([t[...].astype(x_BLM.dtype) for t in (self.class_token, self.teacher_token) if t is not None])
            if table_LM is not None and first:
                tokens_KM += table_LM[:first]
            x_BLM = jnp.concatenate([jnp.broadcast_to(tokens_KM, (len(x_BLM), *tokens_KM.shape)), x_BLM], axis=1)
        x_BLM = scope.shard(x_BLM, "batch", "res_length", "act_embed")
        if self.embedding_norm is not None:
            x_BLM = self.embedding_norm(x_BLM)
        return dropout(x_BLM, c.dropout, context.key)

    def apply_layers(
        self, blocks: LayerGroup, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals
    ) -> tuple[jax.Array, Loss]:
        real_B = jnp.sum(batch["label_weights"], axis=1) > 0
        # In evaluation every picture is one: outputs are wanted of pictures without a label too.
        g = self._attention_inputs(real_B if context.training else jnp.ones_like(real_B))
        x_BLM, statistics = transformer.run(blocks, x_BLM, g, context)
        return x_BLM, routing_loss(self.c.moe, statistics, totals["positions"], "encoder", x_BLM.dtype)

    def _attention_inputs(self, used_B: jax.Array) -> AttentionInputs:
        segments_BL = jnp.broadcast_to(used_B[:, None].astype(jnp.int32), (len(used_B), self.c.length))
        turned = plane_rotation(self.c) if isinstance(self.c.positions, Rotary) else None
        return AttentionInputs(AttentionMask.for_rows(segments_BL, segments_BL), turned, real_BL=segments_BL > 0)

    def head_loss(self, x_BLM: jax.Array, batch: Batch, context: Context, totals: Totals) -> Loss:
        logits_BC = self.head(self.final_norm(x_BLM))
        return label_loss(self.c, logits_BC, batch["labels"], batch["label_weights"], totals["images"])

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of labelled pictures and of their positions, over which losses are means."""
        images = jnp.sum(jnp.sum(batch["label_weights"], axis=1) > 0)
        return {"images": images, "positions": images * self.c.length}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of pictures, padding left out."""
        return {"images": self.totals(batch)["images"]}

    def check_rows(self, lengths: Mapping[str, int], microbatches: int, rows: int | None) -> None:
        if self.c.moe:
            check_groups(self.c.moe, self.scope, {self.stack_name: self.c.length}, microbatches, rows)


class Head(nnx.Module):
    """Pools the encoder's output to its first vector or to the mean, and classifies it where there are classes."""

    def __init__(self, c: VitConfig, key: jax.Array, scope: Component):
        k_pooler, k_classes = jax.random.split(key, 5)[3:]
        self.c, self.scope, m = c, scope, c.model_dim
        self.pooler = param(k_pooler, (m, m), ("embed", "mlp"), normal(m**-0.5), scope) if c.head.pooler else None
        self.pooler_bias = param(k_pooler, (m,), ("mlp",), zeros, scope) if c.head.pooler else None
        self.pooled_norm = transformer.norm(c, scope) if isinstance(c.pooling, NormedMeanPooling) else None
        self.weight, self.bias = self._classes(k_classes) if c.head.classes else (None, None)
        taught = isinstance(c.pooling, DistilledPooling) and c.pooling.head and c.head.classes
        self.teacher_weight, self.teacher_bias = self._classes(k_classes) if taught else (None, None)

    def _classes(self, key: jax.Array) -> tuple[nnx.Param, nnx.Param]:
        """Makes the matrix and the biases of classes."""
        outputs, c = self.c.head.classes, self.c
        weight = param(key, (c.pooled_dim, outputs), ("embed", "labels"), zeros, self.scope)
        return weight, param(key, (outputs,), ("labels",), constant(c.head.bias), self.scope)

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        """Returns logits [B, C] of the normed output, or without classes pooled vectors [B, M]."""
        x_BM = self.scope.shard(self.pooled(x_BLM), "batch", "act_embed")
        if self.pooler is not None:
            x_BM = jnp.tanh(add_bias(project(x_BM, self.pooler[...], self.scope), self.pooler_bias))
        if self.weight is None:
            return x_BM
        logits_BC = add_bias(project(x_BM, self.weight[...], self.scope), self.bias)
        if self.teacher_weight is None:
            return logits_BC
        return (logits_BC + add_bias(project(x_BLM[:, 1], self.teacher_weight[...], self.scope), self.teacher_bias)) / 2

    def pooled(self, x_BLM: jax.Array) -> jax.Array:
        """Returns a vector of each picture [B, M], of two with `TokenAndMeanPooling`."""
        match self.c.pooling:
            case TokenAndMeanPooling():
                return jnp.concatenate([x_BLM[:, 0], jnp.mean(x_BLM[:, 1:], axis=1)], axis=-1)
            case NormedMeanPooling():
                assert self.pooled_norm is not None
                return self.pooled_norm(jnp.mean(x_BLM[:, 1:], axis=1))
            case TokenPooling():
                return x_BLM[:, 0]
        return jnp.mean(x_BLM, axis=1)


class MapHead(Head):
    """Pools the encoder's output by attention from a learned probe (arXiv 2106.04560, section 2.2)."""

    def __init__(self, c: VitConfig, key: jax.Array, scope: Component):
        super().__init__(c, key, scope)
        k_probe, k_attention, k_ffn, *_ = jax.random.split(key, 5)
        m = c.model_dim
        self.probe = param(k_probe, (m,), ("embed",), normal(m**-0.5), scope)
        heads = GroupedQuery(heads=c.attention.heads, head_dim=c.attention.head_dim, biases="qkvo")
        dense = dataclasses.replace(c.feed_forward, gated=False, bias=True)
        self.attention = Attention(
            BlockConfig(model_dim=m, attention=heads, positions=None, feed_forward=dense), k_attention, scope
        )
        self.norm = transformer.norm(c, scope)
        self.ffn = FeedForward(m, dense, k_ffn, scope)

    def pooled(self, x_BLM: jax.Array) -> jax.Array:
        """Returns what the probe attends to [B, M]; see Head."""
        probe_B1M = jnp.broadcast_to(self.probe[...].astype(x_BLM.dtype), (len(x_BLM), 1, self.c.model_dim))
        ones_B1, ones_BL = jnp.ones((len(x_BLM), 1), jnp.int32), jnp.ones(x_BLM.shape[:2], jnp.int32)
        mask = AttentionMask.for_rows(ones_B1, ones_BL)
        x_B1M = self.attention(probe_B1M, self.attention.keys_values(x_BLM), mask)
        return (x_B1M + self.ffn(self.norm(x_B1M)))[:, 0]


def label_loss(c: VitConfig, logits_BC: jax.Array, labels_B2: jax.Array, weights_B2: jax.Array, total: jax.Array) -> Loss:
    """Returns the loss of pictures with two weighted labels each, as a mean over the whole batch's, and accuracies.

    A prediction is right where it is the label of greater weight.
    """
    logits_BC = logits_BC.astype(jnp.promote_types(logits_BC.dtype, jnp.float32))
    weights_B2 = weights_B2.astype(logits_BC.dtype)
    sides = [cross_entropy(logits_BC[:, None], labels_B2[:, i : i + 1], c.head.label_smoothing) for i in (0, 1)]
    smooth_B, plain_B = (sum(side[j][:, 0] * weights_B2[:, i] for i, side in enumerate(sides)) for j in (0, 1))
    real_B = jnp.sum(weights_B2, axis=1) > 0
    if c.head.loss == "sigmoid":
        # The sum over classes of log(1 + exp x), less x where the class is the label.
        chosen_B2 = jnp.take_along_axis(logits_BC, labels_B2, axis=1)
        smooth_B = (jnp.sum(jax.nn.softplus(logits_BC), axis=1) - jnp.sum(chosen_B2 * weights_B2, axis=1)) * real_B
    main_B = jnp.where(weights_B2[:, 0] >= weights_B2[:, 1], labels_B2[:, 0], labels_B2[:, 1])
    hit_B = is_top_1(logits_BC[:, None], main_B[:, None])[:, 0] * real_B
    n = jnp.sum(real_B)
    value = per(jnp.sum(smooth_B), total)
    metrics = {"cross_entropy": Ratio(jnp.sum(plain_B), n), "accuracy": Ratio(jnp.sum(hit_B), n)}
    return Loss(value, jnp.zeros_like(value), metrics)


def patches(images_BHWC: jax.Array, size: int, scope: Component) -> jax.Array:
    """Returns the whole patches [B, L, P] of pictures, row by row; the pixels of a patch by row, column and channel.

    Where the layout cuts "height", a device has whole rows of patches, so that nothing is exchanged as "length" takes its place.
    """
    b, channels = len(images_BHWC), images_BHWC.shape[-1]
    height, width = (pixels // size * size for pixels in images_BHWC.shape[1:3])
    x = scope.shard(images_BHWC, "batch", "height", "width", None)[:, :height, :width]
    x = x.reshape(b, height // size, size, width // size, size, channels).swapaxes(2, 3)
    x_BLP = x.reshape(b, (height // size) * (width // size), size * size * channels)
    return scope.shard(x_BLP, "batch", "length", None)


def sinusoids(rows: int, columns: int, size: int) -> np.ndarray:
    """Returns the encodings [rows * columns, size] of places in a grid: sines and cosines of the column, then of the row, at
    rates from 1 to 1/10,000 (MoCo v3, arXiv 2104.02057, section 5)."""
    quarter = size // 4
    rates = 10_000.0 ** (-np.arange(quarter) / max(quarter - 1, 1))
    row_L, column_L = (axis.reshape(-1, 1) for axis in np.mgrid[:rows, :columns])
    angles = [column_L * rates, row_L * rates]
    return np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)], axis=1)


def plane_rotation(c: VitConfig) -> Rotation:
    """Returns the rotation of places in the plane: a quarter of each head's dimensions turns by the row against another by the
    column (as in EVA-02, arXiv 2303.11331). A class token is not turned."""
    rows, columns = np.mgrid[: c.grid[0], : c.grid[1]].reshape(2, 1, -1)
    assert isinstance(c.positions, Rotary)
    parts = [rotation(jnp.asarray(axis), c.attention.rotary_dim // 2, c.positions) for axis in (rows, columns)]
    cos, sin = (jnp.concatenate(pair, axis=-1) for pair in zip(*parts, strict=True))
    extra = c.length - rows.shape[1]
    return (jnp.pad(cos, ((0, 0), (extra, 0), (0, 0)), constant_values=1), jnp.pad(sin, ((0, 0), (extra, 0), (0, 0))))


def resized(table_LM: np.ndarray, old: tuple[int, int], new: tuple[int, int], first: int) -> np.ndarray:
    """Returns a table of positions for another grid, interpolated linearly; the first rows, those of class tokens, as they are.

    Args:
      table_LM: [first + rows * columns, M].
      old, new: rows and columns of patches.
    """
    table_LM = np.asarray(table_LM, np.float32)
    grid = jax.image.resize(table_LM[first:].reshape(*old, -1), (*new, table_LM.shape[1]), "linear")
    return np.concatenate([table_LM[:first], np.asarray(grid).reshape(-1, table_LM.shape[1])])
