"""The mixture of experts as a layer. B rows, L positions, M model; G groups, S tokens of a group, E experts, H hidden."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.errors import multiples
from models.execution import Dispatch, Execution
from models.parts.layers import ACTIVATIONS, FeedForward, dropout, project, split_key
from models.parts.losses import Loss, Ratio, per, zero_loss
from models.parts.moe.config import AnyRouter, MoeConfig, TopK
from models.parts.moe.dispatch import Experts, exchangeable, mixture
from models.parts.moe.router import Router
from models.parts.moe.routing import capacity, correction, pooled_balance_loss, route, uniform
from models.parts.transformer_config import BlockConfig
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.layout import LayoutError
from models.sharding.params import Initializer, normal, param, zeros
from models.sharding.pipelines.gpipe import data_axes, stage_axes


class Moe(nnx.Module):
    """Every token through a few of E feed-forward networks (GShard, Figure 3 and Algorithm 1), act(x wi) wo or gated
    act(x wg) * (x wi) wo, and through a shared one where there is one.

    Args:
      block: the settings of the layer, whose feed-forward network the mixture's own settings replace.
      causal: whether the layer is a decoder's, where a token's experts may not depend on later tokens.
    """

    def __init__(self, c: MoeConfig, block: BlockConfig, key: jax.Array, scope: Component, *, causal: bool = False):
        _check_positions_whole(scope)
        experts, dense, self.c, self.scope = c.experts, block.feed_forward, c, scope
        self.router_config = c.decoder_router if causal else c.router
        self.priority = c.capacity.batch_priority and not causal
        size, hidden = block.model_dim, experts.hidden_dim or dense.hidden_dim
        self.activation = dense.activation if experts.activation == "same" else experts.activation
        gated = dense.gated if experts.gated == "same" else experts.gated == "yes"
        k1, k2, k3, k4 = jax.random.split(key, 4)
        k_shared, k_gate = jax.random.split(jax.random.fold_in(key, 0))
        into, out = normal((block.init_scale / size) ** 0.5), normal((block.init_scale / hidden) ** 0.5)
        self._make_router(k1, size, into)
        up, names = (experts.count, size, hidden), ("expert", "embed", "mlp")
        self.wi = param(k2, up, names, into, scope)
        self.wg = param(k4, up, names, into, scope) if gated else None
        self.wo = param(k3, (experts.count, hidden, size), ("expert", "mlp", "embed"), out, scope)
        hidden_bias = (experts.count, hidden), ("expert", "mlp")
        bias = dense.bias
        self.wi_bias = param(k2, *hidden_bias, zeros, scope) if bias else None
        self.wg_bias = param(k4, *hidden_bias, zeros, scope) if bias and gated else None
        self.wo_bias = param(k3, (experts.count, size), ("expert", "embed"), zeros, scope) if bias else None
        shared = experts.shared
        of_shared = shared and dataclasses.replace(dense, hidden_dim=shared.hidden_dim)
        self.shared = of_shared and FeedForward(size, of_shared, k_shared, scope / "shared", block.init_scale)
        self.shared_gate = param(k_gate, (size, 1), ("embed", "gate"), into, scope) if shared and shared.gated else None

    def _make_router(self, key: jax.Array, size: int, init: Initializer) -> None:
        c, experts, scope = self.router_config, (self.c.experts.count,), self.scope
        correction = c.correction if isinstance(c, TopK) else None
        self.router = param(key, (size, *experts), ("embed", "gate"), normal(c.init_std) if c.init_std else init, scope)
        self.router_bias = param(key, experts, ("gate",), zeros, scope) if c.bias else None
        self.correction = param(key, experts, ("gate",), zeros, scope, sign_step=correction.rate) if correction else None

    def __call__(self, x_BLM: jax.Array, mask_BL: jax.Array, context: Context) -> tuple[jax.Array, dict[str, Ratio]]:
        """Returns (y_BLM, statistics): padding (mask False) is routed nowhere."""
        training, scope = context.training, self.scope
        k_jitter, k_route, k_hidden, k_tokens = split_key(context.key, 4)
        size = self._group_size(mask_BL.size, training)
        x_GSM = scope.shard(x_BLM.reshape(-1, size, x_BLM.shape[-1]), "group", None, "act_embed")
        mask_GS = mask_BL.reshape(-1, size)

        router, experts = self._router(), self._experts(k_hidden)
        scores = router.scores(x_GSM, k_jitter, k_route)
        slots = slots_of(self.c, size, self.router_config, training)
        correction_E, priority = router.correction_E, self.priority
        routing = route(router.c, scores.scores_GSE, mask_GS, slots, k_route, correction_E=correction_E, priority=priority)
        y_GSM = mixture(x_GSM, routing, slots, experts, scope, self._dispatch(slots == size, training))
        y_GSM = self._mask_tokens(y_GSM, k_tokens)

        statistics = router.statistics(self.c.losses, scores, routing, mask_GS)
        if correction_E is not None and training:
            statistics["correction"] = Ratio(correction(correction_E, routing), jnp.sum(mask_GS))
        y_BLM = scope.shard(y_GSM.reshape(x_BLM.shape), "batch", "res_length", "act_embed")
        y_BLM = y_BLM if self.shared is None else y_BLM + self._of_shared(x_BLM)
        return checkpoint_name(y_BLM, "mixture_out"), statistics

    def _router(self) -> Router:
        bias, correction = (None if b is None else b[...] for b in (self.router_bias, self.correction))
        return Router(self.router_config, self.scope, self.router[...], bias, correction)

    def _of_shared(self, x_BLM: jax.Array) -> jax.Array:
        """Returns what the shared expert adds (DeepSeekMoE, arXiv 2401.06066, eq. 3), gated where there is a gate."""
        assert self.shared is not None
        y_BLM = self.shared(x_BLM)
        if self.shared_gate is None:
            return y_BLM
        return jax.nn.sigmoid(project(x_BLM, self.shared_gate[...], self.scope)) * y_BLM

    def _experts(self, key: jax.Array | None) -> Experts:
        rate, up, biases = self.c.experts.dropout, [self.wi], [self.wi_bias]
        if self.wg is not None:
            up, biases = [self.wg, self.wi], [self.wg_bias, self.wi_bias]
        hidden = functools.partial(dropout, rate=rate, key=key) if key is not None and rate else None
        return Experts(
            tuple(w[...] for w in up),
            self.wo[...],
            self._activation(),
            tuple(b[...] for b in biases if b is not None),
            None if self.wo_bias is None else self.wo_bias[...],
            hidden,
        )

    def _activation(self) -> Callable[..., jax.Array]:
        """Returns the function of as many arguments as experts have matrices into the hidden layer."""
        if self.activation == "clipped_swiglu":
            return clipped_swiglu
        act = ACTIVATIONS[self.activation]
        return act if self.wg is None else lambda g, x: act(g) * x

    def _mask_tokens(self, y_GSM: jax.Array, key: jax.Array | None) -> jax.Array:
        """Returns the experts' outputs: in training zero with probability `token_dropout`, otherwise scaled by one less that."""
        rate = self.c.experts.token_dropout
        if not rate:
            return y_GSM
        if key is None:
            return y_GSM * (1 - rate)
        return jnp.where(uniform(key, y_GSM.shape[:2])[..., None] >= rate, y_GSM, 0)

    def _dispatch(self, dropless: bool, training: bool) -> Dispatch:
        """Returns the execution's dispatch, but in dropless evaluation "ragged" where it has a kernel and its exchange is
        possible: buffers would multiply E / K times the rows that are routed."""
        pays = dropless and not training and self.scope.on_tpu and exchangeable(self.scope)
        return "ragged" if pays else self.scope.execution.dispatch

    def _group_size(self, tokens: int, training: bool) -> int:
        """Returns S: exactly the config's in training; elsewhere batches have any size, so the largest that fits."""
        size = self.c.group_size
        if training:
            if tokens % size:
                raise LayoutError(f"group_size={size} does not divide the {tokens} tokens of a batch")
            return size
        layout = self.scope.layout
        shards = layout.num_shards(layout.resolve(self.scope.path).get("group", ()))
        return max(s for s in range(1, size + 1) if tokens % (s * shards) == 0 or s == 1)


def _check_positions_whole(scope: Component) -> None:
    """Raises LayoutError for a layout that cuts the positions of a mixture's inputs."""
    if scope.num_shards("length") > 1:
        raise LayoutError(
            f"component {scope.path!r}, layout {scope.layout.name!r}: rule 'length' -> "
            f"{scope.layout.resolve(scope.path)['length']}, but routing groups span positions; cut 'res_length' instead"
        )


def slots_of(c: MoeConfig, group_size: int, router: AnyRouter, training: bool) -> int:
    """Returns the slots of an expert for a group of this size."""
    factor = c.capacity.factor_of(router, training)
    return capacity(factor, group_size, c.experts.count, c.capacity.least, c.capacity.multiple)


def clipped_swiglu(g: jax.Array, u: jax.Array) -> jax.Array:
    """Returns gpt-oss's (u + 1) g sigmoid(1.702 g), with g up to 7 and u from -7 to 7."""
    g, u = jnp.minimum(g, 7.0), jnp.clip(u, -7.0, 7.0)
    return (u + 1) * g * jax.nn.sigmoid(1.702 * g)


def routing_loss(
    c: MoeConfig | None, statistics: dict[str, Ratio], total: jax.Array, tower: str, dtype: Any = jnp.float32
) -> Loss:
    """Returns what the MoE layers of a stack add to the loss: each its own balance loss and z-loss (k layers, k terms), or one
    balance loss of them all (MoeLosses.balance); zero where there are none.

    Args:
      statistics: as the layers return them, stacked.
      total: tokens of the whole batch.
      tower: names the stack in the metrics.
      dtype: of the stack's activations.
    """
    if c is None:
        return zero_loss(dtype)
    pooled = jax.tree.map(lambda x: jnp.sum(x, axis=0), statistics)  # over layers
    if c.losses.balance == "pooled":
        loss = pooled_balance_loss(pooled.pop("requested"), pooled.pop("score"))
        tokens = jnp.sum(statistics["score"].over[0])
        pooled["balance_loss"] = Ratio(loss * tokens, tokens)
    extra = jnp.zeros((), pooled["balance_loss"].sum.dtype)
    weights = {"balance": c.losses.balance_weight, "z": c.losses.z_weight, "importance": c.losses.importance_weight}
    weights["load"] = c.router.noise.load_weight if c.router.noise else 0.0
    for name, weight in weights.items():
        if f"{name}_loss" in pooled:
            extra += weight * per(pooled[f"{name}_loss"].sum, total)
    if "correction" in pooled:
        extra += pooled.pop("correction").sum.astype(extra.dtype)
    metrics = {f"moe/{k}": v for k, v in pooled.items() if k != "load"}
    return Loss(extra, extra, metrics | {f"moe/load_{tower}": pooled["load"]})


def check_groups(c: MoeConfig, scope: Component, lengths: Mapping[str, int], microbatches: int, rows: int | None) -> None:
    """Checks that the rows of a batch can be cut into routing groups (models.protocol.ChecksRows).

    Args:
      scope: of the model.
      lengths: positions of a row, by the stack of layers whose mixtures route them.

    Raises:
      LayoutError: groups that span rows that are dealt out to microbatches: they would have other rows in them. Or groups that do
        not come out even in a batch, or over the shards that its groups are cut into. It names the nearest choice that fits.
    """
    pipelines = {path: scope.layout.pipeline(path) for path in lengths}
    parts = {path: microbatches * (p.microbatches if p else 1) for path, p in pipelines.items()}
    _check_groups_within_rows(c, [lengths[path] for path, n in parts.items() if n > 1], max(parts.values()))
    if rows is None:
        return
    shards = {path: _shards_of_groups(scope.at(f"{path}.moe"), scope.at(path)) for path in lengths}
    together = {path: c.group_size * n for path, n in shards.items()}  # tokens that all shards have in a group each
    fits = {path: parts[path] * (n // math.gcd(n, lengths[path])) for path, n in together.items()}
    for path, multiple in fits.items():
        if rows % multiple:
            every = math.lcm(*fits.values(), microbatches * scope.num_shards("batch"))
            raise LayoutError(
                f"data.batch_size={rows}: component '{path}.moe' cannot cut {rows} rows of {lengths[path]} positions into "
                f"routing groups of model.moe.group_size={c.group_size} tokens for {parts[path]} microbatches x {shards[path]} "
                f"shards; the nearest that fits is {multiples(rows, every)} rows"
            )


def _shards_of_groups(mixture: Component, stack: Component) -> int:
    """Returns how many shards have groups of their own: of a stage where the stack is pipelined, whose data shards do."""
    axes = set(mixture.layout.resolve(mixture.path).get("group", ()))
    if mixture.layout.pipeline(stack.path):
        axes = axes - {*stage_axes(stack)} | {*data_axes(stack)}
    return mixture.layout.num_shards(tuple(axes))


def _check_groups_within_rows(c: MoeConfig, lengths: Sequence[int], microbatches: int) -> None:
    if any(length % c.group_size for length in lengths):
        common = math.gcd(*lengths)
        nearest = min((n for n in range(1, common + 1) if common % n == 0), key=lambda n: abs(n - c.group_size))
        raise LayoutError(
            f"group_size={c.group_size}: routing groups span rows of {' and '.join(map(str, lengths))} positions, which are "
            f"dealt out to {microbatches} microbatches one by one, so that groups would change; the nearest size that fits is "
            f"{nearest}"
        )


def hyperparameters(c: MoeConfig) -> dict[str, Any]:
    """Returns the settings of the mixture by the names that logs of runs have for them (models.family.Family)."""
    return {
        "moe_num_experts": c.experts.count,
        "moe_gating": c.router.gating,
        "moe_capacity_factor": c.capacity.factor,
        "moe_eval_capacity_factor": c.capacity.eval_factor,
        "moe_group_size": c.group_size,
        "moe_aux_loss_coeff": c.losses.balance_weight,
        "moe_z_loss_coeff": c.losses.z_weight,
    }


def notes(c: MoeConfig, hidden: int, execution: Execution) -> list[str]:
    """Lines about the mixture that a run prints when it starts; `hidden` is the experts' H."""
    hidden, experts, decoders = c.experts.hidden_dim or hidden, c.experts.count, c.decoder_router
    slots = slots_of(c, c.group_size, c.router, training=True)
    decoder = f" ({decoders.gating} in a decoder)" if decoders != c.router else ""
    lines = [
        f"{experts} experts, {c.router.gating} gating{decoder}, groups of {c.group_size} tokens, {slots} slots per expert and "
        f"group; dispatch by {execution.dispatch} (by einsum it would cost {c.group_size / hidden:.2f} of the experts' FLOPs)"
    ]
    if not c.capacity.factor and execution.dispatch != "ragged":
        wasted = experts / decoders.choices
        lines.append(
            f"dropless by {execution.dispatch} multiplies {wasted:g} times as many rows as are wanted; 'ragged' does not"
        )
    return lines
