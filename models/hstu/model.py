"""HSTU (arXiv 2402.17152). B rows, L interactions, T tokens as queries and S as keys, H heads, K elements of a head, D model,
E elements of an item's vector, N negatives, V items.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from models.dlrm.lookup import look_up
from models.dlrm.model import glorot
from models.hstu.config import HstuConfig, Ranking, Retrieval
from models.parts.layers import add_bias, add_positions, dropout, project
from models.parts.losses import Loss, Ratio, Totals, cross_entropy, per
from models.protocol import Batch, Context, HasOutputs
from models.sharding.component import Component
from models.sharding.params import normal, ones, param, scan, stack_modules, zeros

EPS = 1e-6
NEVER = -1e9  # the logit of an item that is not there to be chosen
TOP = 10  # places of a ranking that count
SECONDS = 0.301  # floor(log(seconds) / SECONDS) is the bucket of a difference in time
_BLOCK, _LONG = 512, 1024  # queries that attend together in rows of more tokens than _LONG


class Items(nnx.Module):
    """The table of items, [1, rows, E], of Gaussian vectors."""

    def __init__(self, c: HstuConfig, key: jax.Array, scope: Component):
        self.scope, self.placement, self.items = scope, c.placement, c.items
        self.table = param(key, (1, c.placement.rows, c.embedding_dim), ("bins", "vocab", "embed"), normal(0.02), scope)

    def __call__(self, ids: jax.Array, used: jax.Array | None = None) -> jax.Array:
        """Returns the vectors [B, ..., E] of ids [B, ...]; zero where a place is not used, which nothing is asked for."""
        weights = jnp.ones(ids.shape) if used is None else used
        with jax.named_scope(self.scope.path):
            x = look_up(self.table[...], ids.reshape(-1, 1), weights.reshape(-1, 1), self.placement, self.scope)
        return x.reshape(*ids.shape, x.shape[-1])

    def all(self) -> jax.Array:
        """Returns the vectors [V, E] of all items."""
        return self.table[...][0, : self.items].astype(self.scope.dtype)


class Layer(nnx.Module):
    """A block of the tower: projections, pointwise attention, and a gate in place of a feed-forward network (section 3)."""

    def __init__(self, c: HstuConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.c, self.scope = c, scope
        self.learned = c.form == "dlrm_v3"
        inner = 2 * c.linear_dim + 2 * c.attention_dim
        outer = c.linear_dim * (3 if self.learned else 1)
        into = glorot(c.model_dim, c.heads * inner) if self.learned else normal(0.02)
        self.uvqk = param(k1, (c.model_dim, c.heads, inner), ("embed", "heads", "kv"), into, scope)
        out = glorot(c.heads * outer, c.model_dim)
        self.out = param(k2, (c.heads, outer, c.model_dim), ("heads", "kv", "embed"), out, scope)
        self.positions = param(k3, (c.tokens,), ("buckets",), normal(0.02), scope)
        self.times = param(k4, (c.time_buckets + 1,), ("buckets",), normal(0.02), scope)
        self.out_bias = None if self.learned else param(key, (c.model_dim,), ("embed",), zeros, scope)
        self.uvqk_bias = param(key, (c.heads, inner), ("heads", "kv"), zeros, scope) if self.learned else None
        self.norm_scale = param(key, (c.model_dim,), ("embed",), ones, scope) if self.learned else None
        self.norm_bias = param(key, (c.model_dim,), ("embed",), zeros, scope) if self.learned else None
        self.head_scale = param(key, (c.heads,), ("heads",), ones, scope) if self.learned else None
        self.head_bias = param(key, (c.heads,), ("heads",), zeros, scope) if self.learned else None

    def __call__(self, x_BTD: jax.Array, used_BT: jax.Array, times_BT: jax.Array, key: jax.Array | None) -> jax.Array:
        c = self.c
        h_BTD = _scaled(standardized(x_BTD, (-1,)), self.norm_scale, self.norm_bias)
        uvqk_BTHK = jax.nn.silu(add_bias(project(h_BTD, self.uvqk[...], self.scope, dense=True), self.uvqk_bias))
        uvqk_BTHK = self.scope.shard(uvqk_BTHK, "batch", "length", "act_heads", None)
        ends = (c.linear_dim, 2 * c.linear_dim, 2 * c.linear_dim + c.attention_dim)
        u_BTHK, v_BTHK, q_BTHK, k_BTHK = jnp.split(uvqk_BTHK, ends, axis=-1)
        a_BTHK = self._mixed(q_BTHK, k_BTHK, v_BTHK, used_BT, times_BT)
        a_BTHK = _scaled(standardized(a_BTHK, (-1,) if self.learned else (-2, -1)), self.head_scale, self.head_bias, 1)
        y_BTHK = u_BTHK * a_BTHK
        if self.learned:
            y_BTHK = jnp.concatenate([u_BTHK, a_BTHK, y_BTHK], axis=-1)
        y_BTHK = dropout(self.scope.shard(y_BTHK, "batch", "length", "act_heads", None), c.dropout, key)
        y_BTD = add_bias(project(y_BTHK, self.out[...], self.scope, contract=2, dense=True), self.out_bias)
        return self.scope.shard(x_BTD + y_BTD, "batch", "res_length", "act_embed")

    def _mixed(self, q_BTHK, k_BSHK, v_BSHK, used_BS, times_BS) -> jax.Array:
        """Returns silu(q k + bias) v / tokens [B, T, H, K]: the sum over earlier places, no softmax (equation 2)."""
        tokens = q_BTHK.shape[1]
        place_T = jnp.arange(tokens)
        # A place predicts what comes next, and knows when: the difference is to the next place's time, of the last to its own.
        follows_BT = jnp.pad(used_BS[:, 1:], ((0, 0), (0, 1)))
        now_BT = jnp.where(follows_BT, jnp.pad(times_BS[:, 1:], ((0, 0), (0, 1))), times_BS)

        def attend(q_BTHK: jax.Array, now_BT: jax.Array, place_T: jax.Array) -> jax.Array:
            scores_BHTS = jnp.einsum("BTHK,BSHK->BHTS", q_BTHK, k_BSHK) * (q_BTHK.shape[-1] ** -0.5 if self.learned else 1)
            behind_TS = place_T[:, None] - jnp.arange(tokens)
            buckets_BTS = time_buckets(now_BT[:, :, None] - times_BS[:, None], self.c.time_buckets)
            bias_BTS = self.positions[...][jnp.maximum(behind_TS, 0)] + self.times[...][buckets_BTS]
            mix_BHTS = jax.nn.silu(scores_BHTS + bias_BTS[:, None].astype(scores_BHTS.dtype)) / self.c.tokens
            mix_BHTS = jnp.where((behind_TS >= 0) & used_BS[:, None, None], mix_BHTS, 0)
            return jnp.einsum("BHTS,BSHK->BTHK", mix_BHTS, v_BSHK)

        if tokens <= _LONG or tokens % _BLOCK:
            return attend(q_BTHK, now_BT, place_T)

        def blocks(x: jax.Array, axis: int) -> jax.Array:
            return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, _BLOCK, *x.shape[axis + 1 :]), axis, 0)

        parts = (blocks(q_BTHK, 1), blocks(now_BT, 1), blocks(place_T, 0))
        mixed = jax.lax.map(lambda part: jax.checkpoint(attend)(*part), parts)
        return jnp.moveaxis(mixed, 0, 1).reshape(*q_BTHK.shape[:3], -1)


def time_buckets(seconds: jax.Array, most: int) -> jax.Array:
    """Returns the buckets of differences in time, int32 from 0 to `most`: floor(log(max(|seconds|, 1)) / 0.301)."""
    logs = jnp.log(jnp.maximum(jnp.abs(seconds), 1).astype(jnp.float32))
    return jnp.clip((logs / SECONDS).astype(jnp.int32), 0, most)


def standardized(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Returns (x - mean) / sqrt(variance + 1e-6) over these axes, in x's dtype."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide - jnp.mean(wide, axis=axes, keepdims=True)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=axes, keepdims=True) + EPS)).astype(x.dtype)


def _scaled(x: jax.Array, scale: nnx.Param | None, bias: nnx.Param | None, inner: int = 0) -> jax.Array:
    """Returns x * scale + bias, which are along the dimension of x that has so many behind it; x where there are none."""
    if scale is None or bias is None:
        return x
    by, more = (p[...].astype(x.dtype).reshape(-1, *[1] * inner) for p in (scale, bias))
    return x * by + more


def unit(x: jax.Array) -> jax.Array:
    """Returns vectors of length 1, in float32 at least; those of length 0 stay."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), EPS**2))


class Hstu(nnx.Module, HasOutputs):
    """The vectors of a row's interactions, the tower, and what its objective makes of the outputs.

    A batch has, of each row, `items`, `actions` (0 where a place is empty, 1 not positive, 2 positive) and `times` (seconds)
    [B, L], the empty places last, and `start` [B], the first place that is predicted. Retrieval has `negatives` [B, N] in
    training; without them all items are compared. `barred` [B, L] are items that a held-out row's ranking leaves out; 0 is none.
    """

    coupled = ()

    def __init__(self, c: HstuConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5, k6 = jax.random.split(key, 6)
        self.c, self.scope = c, scope
        self.tables = Items(c, k1, scope / "tables")
        tower = scope / "layers"
        widens = c.embedding_dim != c.model_dim
        widen = glorot(c.embedding_dim, c.model_dim)
        self.widen = param(k2, (c.embedding_dim, c.model_dim), ("code", "embed"), widen, scope) if widens else None
        vectors = normal(c.model_dim**-0.5)
        self.positions = param(k3, (c.length, c.model_dim), ("positions", "embed"), vectors, scope)
        ranking = c.objective if isinstance(c.objective, Ranking) else None
        self.actions = param(k4, (2, c.model_dim), ("positions", "embed"), vectors, scope) if ranking else None
        self.layers = stack_modules(lambda key: Layer(c, key, tower), k5, c.layers)
        self.head = Head(c.model_dim, ranking.hidden, k6, scope / "head") if ranking else None

    # --- the tower ---

    def outputs(self, batch: Batch, context: Context) -> tuple[jax.Array, jax.Array]:
        """Returns the tower's outputs [B, T, D] and the vectors of the row's items [B, L, E]."""
        of_input, of_layers = context.split(2)
        used_BL, dtype = batch["actions"] > 0, self.scope.dtype
        vectors_BLE = self.tables(batch["items"], used_BL)
        x_BLD = vectors_BLE if self.widen is None else project(vectors_BLE, self.widen[...], self.scope)
        place_BL = jnp.broadcast_to(jnp.arange(self.c.length), used_BL.shape)
        x_BTD = add_positions(x_BLD * math.sqrt(self.c.model_dim), self.positions, place_BL, self.scope)
        used_BT, times_BT = used_BL, batch["times"]
        if self.actions is not None:
            # Looked up whole, as positions are: else the gradient's cut spreads to the activations.
            action_AD = self.scope.shard(self.actions[...].astype(dtype), None, None)
            action_BLD = action_AD[jnp.maximum(batch["actions"] - 1, 0)] * math.sqrt(self.c.model_dim)
            action_BLD = add_positions(action_BLD, self.positions, place_BL, self.scope)
            x_BTD = jnp.stack([x_BTD, action_BLD], axis=2).reshape(len(x_BTD), -1, self.c.model_dim)
            used_BT, times_BT = (jnp.repeat(x, 2, axis=1) for x in (used_BL, times_BT))
        x_BTD = dropout(jnp.where(used_BT[..., None], x_BTD, 0), self.c.dropout, of_input.key)
        x_BTD = self.scope.shard(x_BTD, "batch", "res_length", "act_embed")

        def block(x_BTD: jax.Array, of_layer: tuple[Layer, jax.Array | None], rows: tuple[jax.Array, jax.Array]):
            layer, key = of_layer
            return layer(x_BTD, *rows, key), None

        keys = of_layers.for_layers(self.c.layers).key
        x_BTD, _ = scan(block, x_BTD, (self.layers, keys), (used_BT, times_BT), scope=self.scope / "layers", staged=False)
        return x_BTD, vectors_BLE

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns, of the place `start` of each row, the logits [B, V] of the item there, or [B] of a positive action on it."""
        x_BTD, _ = self.outputs(batch, Context.evaluation())
        rows_B = jnp.arange(len(x_BTD))
        if self.head is not None:
            return self.head(x_BTD[rows_B, 2 * batch["start"]])
        user_BD = unit(x_BTD[rows_B, jnp.maximum(batch["start"] - 1, 0)])
        logits_BV = self._cosines(user_BD, unit(self.tables.all()))
        barred_BL = batch["barred"] if "barred" in batch else jnp.zeros((len(rows_B), 1), jnp.int32)
        return logits_BV.at[rows_B[:, None], barred_BL].set(NEVER).at[:, 0].set(NEVER)

    def _cosines(self, x: jax.Array, items_VD: jax.Array) -> jax.Array:
        objective = self.c.objective
        assert isinstance(objective, Retrieval)
        return jnp.einsum("...D,VD->...V", x, items_VD) / objective.temperature

    # --- losses ---

    def predicted(self, batch: Batch) -> jax.Array:
        """Returns the places [B, L] that are predicted: used ones from `start` on, but no item without one before it."""
        place_L = jnp.arange(self.c.length)
        first_B = jnp.maximum(batch["start"], int(self.head is None))
        return (batch["actions"] > 0) & (place_L >= first_B[:, None])

    def totals(self, batch: Batch) -> Totals:
        return {"predicted": jnp.sum(self.predicted(batch))}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns interactions, and rows."""
        used_BL = batch["actions"] > 0
        return {"interactions": jnp.sum(used_BL), "rows": jnp.sum(used_BL[:, 0])}

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the cross-entropy of the places that are predicted.

        Metrics of retrieval are "accuracy", how often no other item that is compared has a higher logit, and of held-out rows,
        which have `barred`, "ndcg" and "hit_rate" of the first ten of all items; of ranking "accuracy" and "calibration", the sum
        of probabilities over that of positive actions.
        """
        totals = self.totals(batch) if totals is None else totals
        if "barred" in batch:
            total, metrics = self._held_out(batch)
        elif self.head is None:
            total, metrics = self._next_items(batch, context)
        else:
            total, metrics = self._next_actions(batch, context, self.head)
        value = per(total, totals["predicted"])
        return Loss(value, jnp.zeros_like(value), metrics)

    def _next_items(self, batch: Batch, context: Context) -> tuple[jax.Array, dict[str, Ratio]]:
        x_BLD, vectors_BLD = self.outputs(batch, context)
        x_BLD, target_BL, is_BL = unit(x_BLD[:, :-1]), batch["items"][:, 1:], self.predicted(batch)[:, 1:]
        if "negatives" in batch:
            ids_BN = batch["negatives"]
            negative_BND, own_BL = unit(self.tables(ids_BN)), jnp.sum(x_BLD * unit(vectors_BLD[:, 1:]), axis=-1)
            logits_BLN = jnp.einsum("BLD,BND->BLN", x_BLD, negative_BND)
            objective = self.c.objective
            assert isinstance(objective, Retrieval)
            own_BL, logits_BLN = own_BL / objective.temperature, logits_BLN / objective.temperature
            logits_BLN = jnp.where(ids_BN[:, None] == target_BL[..., None], NEVER, logits_BLN)
            loss_BL = jax.nn.logsumexp(jnp.concatenate([own_BL[..., None], logits_BLN], axis=-1), axis=-1) - own_BL
        else:
            logits_BLN = self._cosines(x_BLD, unit(self.tables.all())).at[..., 0].set(NEVER)
            own_BL = jnp.take_along_axis(logits_BLN, target_BL[..., None], axis=-1)[..., 0]
            _, loss_BL = cross_entropy(logits_BLN, target_BL)
        best_BL = (own_BL >= jnp.max(logits_BLN, axis=-1)).astype(own_BL.dtype)
        total, best, count = jnp.sum(loss_BL, where=is_BL), jnp.sum(best_BL, where=is_BL), jnp.sum(is_BL)
        return total, {"cross_entropy": Ratio(total, count), "accuracy": Ratio(best, count)}

    def _held_out(self, batch: Batch) -> tuple[jax.Array, dict[str, Ratio]]:
        """Returns the loss of the item at the place `start` among all, and scores of its rank; it loses all ties."""
        rows_B = jnp.arange(len(batch["start"]))
        target_B, is_B = batch["items"][rows_B, batch["start"]], self.predicted(batch)[rows_B, batch["start"]]
        logits_BV = self(batch)
        own_B = logits_BV[rows_B, target_B]
        rank_B = jnp.sum(logits_BV >= own_B[:, None], axis=-1)
        hit_B = (rank_B <= TOP) & is_B
        total = jnp.sum(jnp.where(is_B, jax.nn.logsumexp(logits_BV, axis=-1) - own_B, 0))
        sums = {
            "cross_entropy": total,
            "accuracy": jnp.sum((rank_B == 1) & is_B),
            "ndcg": jnp.sum(jnp.where(hit_B, 1 / jnp.log2(1.0 + rank_B), 0)),
            "hit_rate": jnp.sum(hit_B),
        }
        return total, {name: Ratio(x.astype(total.dtype), jnp.sum(is_B)) for name, x in sums.items()}

    def _next_actions(self, batch: Batch, context: Context, head: "Head") -> tuple[jax.Array, dict[str, Ratio]]:
        x_BTD, _ = self.outputs(batch, context)
        logits_BL, is_BL = head(x_BTD[:, ::2]), self.predicted(batch)
        label_BL = (batch["actions"] > 1).astype(logits_BL.dtype)
        summed = functools.partial(jnp.sum, where=is_BL)
        total = summed(jax.nn.softplus(logits_BL) - label_BL * logits_BL)
        count = jnp.sum(is_BL).astype(logits_BL.dtype)
        return total, {
            "cross_entropy": Ratio(total, count),
            "accuracy": Ratio(summed(((logits_BL > 0) == (label_BL > 0)).astype(logits_BL.dtype)), count),
            "calibration": Ratio(summed(jax.nn.sigmoid(logits_BL)), summed(label_BL)),
        }


class Head(nnx.Module):
    """The logit of a positive action, from an item's output: a norm, a hidden layer with silu, and one number."""

    def __init__(self, size: int, hidden: int, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.scope = scope
        self.into = param(k1, (size, hidden), ("embed", "mlp"), glorot(size, hidden), scope)
        self.into_bias = param(key, (hidden,), ("mlp",), zeros, scope)
        self.out = param(k2, (hidden, 1), ("mlp", "labels"), glorot(hidden, 1), scope)
        self.out_bias = param(key, (1,), ("labels",), zeros, scope)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits [...] of outputs [..., D], float32 at least."""
        h = jax.nn.silu(add_bias(project(standardized(x, (-1,)), self.into[...], self.scope), self.into_bias))
        logits = add_bias(project(h, self.out[...], self.scope), self.out_bias)[..., 0]
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
