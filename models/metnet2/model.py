"""MetNet-2 (arXiv 2111.07470). B examples, T frames, H rows, W columns, C channels, E lead embedding, K classes, L lead times,
Q thresholds, P probabilities.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.metnet2.config import MetNet2Config
from models.parts import convolution
from models.parts.convolution import Conv, Pointwise
from models.parts.losses import Loss, Ratio, Totals, cross_entropy, per
from models.protocol import Batch, Context, HasOutputs
from models.sharding.component import Component
from models.sharding.params import normal, param, scan, stack_modules, zeros

IMAGE = ("batch", "height", "width")
RESIDUAL = ("act_embed", "in_channels")  # of what blocks add to: as activation, as weight
CUTS = 20  # probabilities at which decisions are counted: 0, 1/20, ...


class LeadTime(nnx.Module):
    """The embedding of a lead time: a row of a table, which begins smooth in time, so that neighbours are alike."""

    def __init__(self, c: MetNet2Config, key: jax.Array, scope: Component):
        self.scope = scope

        def waves(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
            k1, k2 = jax.random.split(key)
            rates, phases = (2 * jax.random.normal(k1, shape[1:], dtype), 6.283 * jax.random.uniform(k2, shape[1:], dtype))
            return jnp.sin(3.1416 * jnp.linspace(0, 1, shape[0])[:, None] * rates + phases)

        self.table = param(key, (c.leads, c.lead_dim), ("positions", "embed"), waves, scope)

    def __call__(self, lead_B: jax.Array) -> jax.Array:
        """Returns [B, E] of lead times from 1 on."""
        table_LE = self.scope.shard(self.table[...].astype(self.scope.dtype), None, None)
        return jax.nn.relu(self.scope.shard(table_LE[jnp.maximum(lead_B - 1, 0)], "batch", None))


class Conditioned(nnx.Module):
    """Norm over the channels of each position, then a scale and a bias that the lead time gives, then ReLU.

    Statistics are of one position alone: what lies beyond an image, or in another shard, is in none.
    """

    def __init__(self, c: MetNet2Config, size: int, key: jax.Array, scope: Component, names: tuple[str, str]):
        k1, k2 = jax.random.split(key)
        self.scope, (self.act, name) = scope, names
        project = normal(0.1 * c.lead_dim**-0.5)
        self.scale = param(k1, (c.lead_dim, size), ("embed", name), project, scope)
        self.shift = param(k2, (c.lead_dim, size), ("embed", name), project, scope)
        self.bias = param(key, (size,), (name,), zeros, scope)

    def __call__(self, x_BHWC: jax.Array, lead_BE: jax.Array) -> jax.Array:
        x = x_BHWC.astype(jnp.promote_types(x_BHWC.dtype, jnp.float32))
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = (x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)).astype(x_BHWC.dtype)
        scale_BC, shift_BC = (lead_BE @ w[...].astype(lead_BE.dtype) for w in (self.scale, self.shift))
        x = x * (1 + scale_BC[:, None, None]) + (shift_BC + self.bias[...].astype(x.dtype))[:, None, None]
        return self.scope.shard(jax.nn.relu(x), *IMAGE, self.act)


class Block(nnx.Module):
    """x + conv(act(conv(act(x)))), where `act` is conditioned on the lead time."""

    def __init__(self, c: MetNet2Config, size: int, dilation: int, depth: int, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        inner = ("act_channels", "channels")
        last = normal((9 * size * depth) ** -0.5)  # a stack's sum of blocks has the scale of its input
        self.before = Conditioned(c, size, k1, scope / "before", RESIDUAL)
        self.into = Conv(size, size, k2, scope / "into", dilation=dilation, names=("in_channels", "channels"))
        self.between = Conditioned(c, size, k3, scope / "between", inner)
        self.out = Conv(
            size, size, k4, scope / "out", dilation=dilation, names=("channels", "in_channels"), act="act_embed", init=last
        )

    def __call__(self, x_BHWC: jax.Array, lead_BE: jax.Array) -> jax.Array:
        h_BHWC = self.into(self.before(x_BHWC, lead_BE))
        return x_BHWC + self.out(self.between(h_BHWC, lead_BE))


class ContextStack(nnx.Module):
    """A residual block for each dilation."""

    def __init__(self, c: MetNet2Config, key: jax.Array, scope: Component):
        self.dilations = c.context.dilations
        for dilation, k in zip(c.context.dilations, jax.random.split(key, len(c.context.dilations)), strict=True):
            name = f"dilation_{dilation}"
            depth = c.context.stacks * len(c.context.dilations)
            setattr(self, name, Block(c, c.context.dim, dilation, depth, k, scope / name))

    def __call__(self, x_BHWC: jax.Array, lead_BE: jax.Array) -> jax.Array:
        for dilation in self.dilations:
            x_BHWC = getattr(self, f"dilation_{dilation}")(x_BHWC, lead_BE)
        return x_BHWC


class Frames(nnx.Module):
    """A convolutional LSTM (Shi et al. 2015, arXiv 1506.04214, without peepholes), whose last state is what it returns."""

    def __init__(self, c: MetNet2Config, key: jax.Array, scope: Component):
        self.scope, self.size = scope, c.frame_dim
        inputs, names = c.channels + c.masks + c.frame_dim, ("frame_channels", "channels")
        self.gates = Conv(inputs, 4 * c.frame_dim, key, scope / "gates", names=names)

    def __call__(self, frames_BTHWC: jax.Array) -> jax.Array:
        b, _, h, w, _ = frames_BTHWC.shape

        def shard(x_BHWD: jax.Array) -> jax.Array:
            return self.scope.shard(x_BHWD, *IMAGE, "act_channels")

        def step(carry: tuple[jax.Array, jax.Array], frame_BHWC: jax.Array, _: None):
            cell_BHWD, state_BHWD = carry
            gates_BHWG = self.gates(jnp.concatenate([frame_BHWC, state_BHWD], axis=-1))
            # The four gates of a channel stand together, so that a cut of channels keeps them together.
            put, keep, show, new = jnp.moveaxis(gates_BHWG.reshape(b, h, w, self.size, 4), -1, 0)
            cell_BHWD = shard(jax.nn.sigmoid(keep + 1) * cell_BHWD + jax.nn.sigmoid(put) * jnp.tanh(new))
            return (cell_BHWD, shard(jax.nn.sigmoid(show) * jnp.tanh(cell_BHWD))), None

        empty_BHWD = shard(jnp.zeros((b, h, w, self.size), frames_BTHWC.dtype))
        frames_TBHWC = jnp.moveaxis(frames_BTHWC, 1, 0)
        (_, state_BHWD), _ = scan(step, (empty_BHWD, empty_BHWD), frames_TBHWC, scope=self.scope, staged=False)
        return state_BHWD


class MetNet2(nnx.Module, HasOutputs):
    """Frames, context, the inner part of it at the target's resolution, and a distribution over classes at each point."""

    coupled = ()

    def __init__(self, c: MetNet2Config, key: jax.Array, scope: Component):
        keys = jax.random.split(key, 9)
        self.c, self.scope = c, scope
        points = c.detail.upsample**2 if c.detail.upsampling == "subpixel" else 1
        back: Any = {"names": ("channels", "in_channels"), "act": "act_embed"}  # from inner channels to a residual stream
        detail, head = scope / "detail", scope / "head"
        self.lead = LeadTime(c, keys[0], scope / "lead")
        self.frames = Frames(c, keys[1], scope / "frames")
        self.widen = Pointwise(c.frame_dim, c.context.dim, keys[2], scope / "widen", **back)
        given: Any = back | {"names": ("frame_channels", "in_channels")}
        in_channels = c.channels + c.masks
        self.ahead = Pointwise(in_channels, c.context.dim, keys[7], scope / "ahead", **given) if c.ahead else None
        self.sharp = Pointwise(c.fine, c.detail.dim, keys[8], scope / "sharp", **given) if c.fine else None
        self.context = stack_modules(lambda k: ContextStack(c, k, scope / "context"), keys[3], c.context.stacks)
        self.refine = Pointwise(c.context.dim, c.detail.dim * points, keys[4], scope / "refine", **back)
        self.detail = stack_modules(lambda k: Block(c, c.detail.dim, 1, c.detail.blocks, k, detail), keys[5], c.detail.blocks)
        self.head = Head(c, keys[6], head)

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns logits [B, H, W, K] of the classes at each point of the target."""
        c, scope = self.c, self.scope
        lead_BE = self.lead(batch["lead_time"])
        frames_BTHWC = jnp.concatenate([batch["inputs"], batch["seen"]], axis=-1).astype(scope.dtype)
        x_BHWC = self.widen(self.frames(frames_BTHWC))
        if self.ahead is not None:
            x_BHWC = x_BHWC + self.ahead(batch["ahead"].astype(scope.dtype))

        def apply(x_BHWC: jax.Array, block: Any, lead_BE: jax.Array):
            return block(x_BHWC, lead_BE), None

        x_BHWC, _ = scan(apply, x_BHWC, self.context, lead_BE, scope=scope / "context", staged=False)
        x_BHWC = self.refine(convolution.centre(x_BHWC, *c.crop, scope / "detail"))
        grow = convolution.depth_to_space if c.detail.upsampling == "subpixel" else convolution.upsampled
        x_BHWC = grow(x_BHWC, c.detail.upsample, scope / "detail")
        if self.sharp is not None:  # the points of the positions as they were given, past the context
            told_BHWC = convolution.centre(batch["ahead"][..., : c.channels].astype(scope.dtype), *c.crop, scope / "detail")
            x_BHWC = x_BHWC + self.sharp(convolution.depth_to_space(told_BHWC, c.detail.upsample, scope / "detail"))
        x_BHWC, _ = scan(apply, x_BHWC, self.detail, lead_BE, scope=scope / "detail", staged=False)
        return self.head(x_BHWC, lead_BE)

    def totals(self, batch: Batch) -> Totals:
        return {"points": jnp.sum(batch["weights"])}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        weights_BHW = batch["weights"]
        return {"grids": jnp.sum(jnp.any(weights_BHW > 0, axis=(1, 2))), "points": jnp.sum(weights_BHW > 0)}

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the cross-entropy of the classes of all points that were seen, weighted; in evaluation, counts by lead time."""
        totals = self.totals(batch) if totals is None else totals
        logits_BHWK, weights_BHW = self(batch), batch["weights"]
        edges_K = jnp.asarray(self.c.bins.lower_edges, batch["targets"].dtype)
        classes_BHW = jnp.sum(batch["targets"][..., None] >= edges_K, axis=-1)
        entropy_BHW, _ = cross_entropy(logits_BHWK, classes_BHW)
        total = jnp.sum(entropy_BHW * weights_BHW)
        metrics = {"cross_entropy": Ratio(total, jnp.sum(weights_BHW))}
        if not context.training:
            metrics |= self.counts(logits_BHWK, batch)
        value = per(total, totals["points"])
        return Loss(value, jnp.zeros_like(value), metrics)

    def counts(self, logits_BHWK: jax.Array, batch: Batch) -> dict[str, Ratio]:
        """Returns what the scores of forecasts are made of, for each lead time, with points weighted.

        exceeded [L, Q, P]: of the points whose probability of threshold q is at least p / P, those where it was reached, over all
        of them. brier [L, Q]: the squared error of that probability. crps [L]: the integral over rates of the squared error of
        the distribution function, which is taken as constant between the edges of classes, up to the last one.
        """
        c, scope = self.c, self.scope
        weights_BHW, targets_BHW = batch["weights"], batch["targets"]
        edges = list(c.bins.lower_edges)
        probs_BHWK = jax.nn.softmax(logits_BHWK.astype(jnp.promote_types(logits_BHWK.dtype, jnp.float32)), axis=-1)
        below_BHWK = jnp.cumsum(probs_BHWK, axis=-1)[..., :-1]  # of each edge
        of_lead_BL = (batch["lead_time"][:, None] == jnp.arange(1, c.leads + 1)).astype(weights_BHW.dtype)

        def by_lead(x_BHW: jax.Array) -> jax.Array:
            return of_lead_BL.T @ jnp.sum(scope.shard(x_BHW * weights_BHW, *IMAGE), axis=(1, 2))

        def exceeded(threshold: float) -> tuple[jax.Array, jax.Array, jax.Array]:
            at = min(range(len(edges)), key=lambda i: abs(edges[i] - threshold))
            prob_BHW = 1 - below_BHWK[..., at]
            reached_BHW = (targets_BHW >= threshold).astype(prob_BHW.dtype)
            sure = [(prob_BHW >= p / CUTS).astype(prob_BHW.dtype) for p in range(CUTS)]
            hits_LP = jnp.stack([by_lead(x * reached_BHW) for x in sure], axis=-1)
            all_LP = jnp.stack([by_lead(x) for x in sure], axis=-1)
            return hits_LP, all_LP, by_lead((prob_BHW - reached_BHW) ** 2)

        hits_LQP, all_LQP, brier_LQ = (jnp.stack(parts, axis=1) for parts in zip(*map(exceeded, c.thresholds), strict=True))
        widths_K = jnp.diff(jnp.asarray([0.0, *edges], below_BHWK.dtype))
        missed_BHWK = below_BHWK - (targets_BHW[..., None] < jnp.asarray(edges, targets_BHW.dtype))
        crps_L, count_L = by_lead(jnp.sum(missed_BHWK**2 * widths_K, axis=-1)), by_lead(jnp.ones_like(weights_BHW))
        counts_LQ = jnp.broadcast_to(count_L[:, None], brier_LQ.shape)
        return {"exceeded": Ratio(hits_LQP, all_LQP), "brier": Ratio(brier_LQ, counts_LQ), "crps": Ratio(crps_L, count_L)}


class Head(nnx.Module):
    """Logits of the classes at each point, by way of a wide layer if there is one."""

    def __init__(self, c: MetNet2Config, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        wide = c.detail.hidden_dim > 0
        self.before = Conditioned(c, c.detail.dim, k1, scope / "before", RESIDUAL)
        into: Any = {"names": ("in_channels", "mlp"), "act": "act_mlp"}
        self.hidden = Pointwise(c.detail.dim, c.detail.hidden_dim, k2, scope / "hidden", **into) if wide else None
        inputs, name = (c.detail.hidden_dim, "mlp") if wide else (c.detail.dim, "in_channels")
        self.classes = Pointwise(inputs, c.bins.count, k3, scope / "classes", names=(name, "labels"), act=None)

    def __call__(self, x_BHWC: jax.Array, lead_BE: jax.Array) -> jax.Array:
        x_BHWC = self.before(x_BHWC, lead_BE)
        if self.hidden is not None:
            x_BHWC = jax.nn.relu(self.hidden(x_BHWC))
        return self.classes(x_BHWC)
