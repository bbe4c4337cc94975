"""The mixture of experts as a layer. B rows, L positions, M model; G groups, S tokens of a group, E experts, H hidden."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.execution import Dispatch, Execution
from models.parts.layers import ACTIVATIONS, FeedForward, dropout, project, split_key
from models.parts.losses import Loss, Ratio, per
from models.parts.moe import routing as moe
from models.parts.moe.config import Gating, MoeConfig
from models.parts.moe.dispatch import Experts, exchangeable, mixture
from models.sharding.component import Component
from models.sharding.layout import LayoutError
from models.sharding.params import normal, param, zeros


class Moe(nnx.Module):
    """Every token through a few of E feed-forward networks (GShard, Figure 3 and Algorithm 1), act(x wi) wo or gated
    act(x wg) * (x wi) wo, and through a shared one where there is one; biases on request.

    `hidden`, `activation` and `gated` are those of dense layers, which the mixture's own settings replace.
    """

    def __init__(
        self,
        c: MoeConfig,
        size: int,
        hidden: int,
        key: jax.Array,
        scope: Component,
        *,
        causal: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = False,
        init_scale: float = 1.0,
    ):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        k_shared, k_gate = jax.random.split(jax.random.fold_in(key, 0))
        dense: dict[str, Any] = dict(activation=activation, gated=gated, bias=bias, init_scale=init_scale)
        hidden, gated = c.hidden_dim or hidden, gated if c.gated == "same" else c.gated == "yes"
        self.c, self.activation, self.scope = c, activation if c.activation == "same" else c.activation, scope
        if scope.num_shards("length") > 1:
            raise LayoutError(
                f"component {scope.path!r}, layout {scope.layout.name!r}: rule 'length' -> "
                f"{scope.layout.resolve(scope.path)['length']}, but routing groups span positions; cut 'res_length' instead"
            )
        self.gating: Gating = c.decoder_gating if causal else c.gating
        self.priority = c.batch_priority and not causal
        up, names = (c.experts, size, hidden), ("expert", "embed", "mlp")
        into, out = normal((init_scale / size) ** 0.5), normal((init_scale / hidden) ** 0.5)
        init_router = normal(c.router_std) if c.router_std else into
        self.router = param(k1, (size, c.experts), ("embed", "gate"), init_router, scope)
        self.router_bias = param(k1, (c.experts,), ("gate",), zeros, scope) if c.router_bias else None
        self.correction = (
            param(k1, (c.experts,), ("gate",), zeros, scope, sign_step=c.correction_rate) if c.correction_bias else None
        )
        self.wi = param(k2, up, names, into, scope)
        self.wg = param(k4, up, names, into, scope) if gated else None
        self.wo = param(k3, (c.experts, hidden, size), ("expert", "mlp", "embed"), out, scope)
        hidden_bias = (c.experts, hidden), ("expert", "mlp")
        self.wi_bias = param(k2, *hidden_bias, zeros, scope) if bias else None
        self.wg_bias = param(k4, *hidden_bias, zeros, scope) if bias and gated else None
        self.wo_bias = param(k3, (c.experts, size), ("expert", "embed"), zeros, scope) if bias else None
        self.shared = FeedForward(size, c.shared_dim, k_shared, scope / "shared", **dense) if c.shared_dim else None
        self.shared_gate = param(k_gate, (size, 1), ("embed", "gate"), into, scope) if c.shared_gate else None

    def __call__(self, x_BLM: jax.Array, mask_BL: jax.Array, key: jax.Array | None) -> tuple[jax.Array, dict[str, Ratio]]:
        """(y_BLM, statistics): padding (mask False) is routed nowhere; without a key nothing is random."""
        c, scope = self.c, self.scope
        k1, k2, k3, k4 = split_key(key, 4)
        noise_std = c.router_noise / c.experts if key is not None else 0.0
        size = self._group_size(mask_BL.size, training=key is not None)
        x_GSM = scope.shard(x_BLM.reshape(-1, size, x_BLM.shape[-1]), "group", None, "act_embed")
        mask_GS = mask_BL.reshape(-1, size)

        # Router in float32 at least: bfloat16 gates make routing unstable (Switch Transformer, section 2.4).
        wide = jnp.promote_types(x_GSM.dtype, jnp.float32) if c.router_dtype == "float32" else x_GSM.dtype
        noisy_GSM = moe.jitter(x_GSM.astype(wide), c.input_jitter, k1)
        logits_GSE = jnp.einsum("GSM,ME->GSE", noisy_GSM, self.router[...].astype(wide))
        if self.router_bias is not None:
            logits_GSE += self.router_bias[...].astype(wide)
        score = jax.nn.softmax if c.score == "softmax" else jax.nn.sigmoid
        probs_GSE = clean_GSE = scope.shard(score(logits_GSE), "group", None, None)
        noisy_GSE = logits_GSE
        if noise_std and k2 is not None:
            noisy_GSE += noise_std * moe.gaussian(k2, logits_GSE.shape).astype(wide)
            probs_GSE = scope.shard(score(noisy_GSE), "group", None, None)

        factor = c.factor(self.gating, training=key is not None)
        slots = moe.capacity(factor, size, c.experts, c.min_capacity, c.capacity_multiple)
        routing = moe.route(
            self.gating,
            probs_GSE,
            mask_GS,
            slots,
            k2,
            c.second_expert_threshold,
            c.second_expert_slot,
            self.priority,
            self._top_k,
        )
        how = self._dispatch(slots == size, training=key is not None)
        y_GSM = self._mask_tokens(mixture(x_GSM, routing, slots, self._experts(k3), scope, how), k4)

        tokens = jnp.sum(mask_GS)
        if c.balance == "pooled":
            stats = moe.pooled_load(probs_GSE, routing, mask_GS)
        else:
            stats = {"balance_loss": Ratio(moe.balance_loss(self._shares(probs_GSE), routing, mask_GS), tokens)}
        if c.z_weight:
            stats["z_loss"] = Ratio(moe.z_loss(logits_GSE, mask_GS), tokens)
        if c.importance_weight:
            stats["importance_loss"] = Ratio(moe.importance_loss(clean_GSE, mask_GS), tokens)
        if c.load_weight and noise_std:
            load = moe.load_loss(logits_GSE, noisy_GSE, noise_std, routing.choices, mask_GS)
            stats["load_loss"] = Ratio(load, tokens)
        if self.correction is not None and key is not None:
            stats["correction"] = Ratio(moe.correction(self.correction[...], routing), tokens)
        stats |= moe.counts(self._shares(probs_GSE), routing, mask_GS)
        y_BLM = scope.shard(y_GSM.reshape(x_BLM.shape), "batch", "res_length", "act_embed")
        y_BLM = y_BLM if self.shared is None else y_BLM + self._shared(x_BLM)
        return checkpoint_name(y_BLM, "mixture_out"), stats

    def _top_k(self, probs_GSE: jax.Array, mask_GS: jax.Array) -> moe.Choice:
        c = self.c
        return moe.top_k_gating(
            probs_GSE,
            mask_GS,
            c.choices,
            norm=c.norm_topk,
            scale=c.gate_scale,
            bias_E=None if self.correction is None else self.correction[...],
            groups=(c.expert_groups, c.chosen_groups),
        )

    def _shares(self, probs_GSE: jax.Array) -> jax.Array:
        """Returns scores that sum to one, as losses and statistics have them (DeepSeek-V3, eq. 18)."""
        if self.c.score == "softmax":
            return probs_GSE
        return probs_GSE / (jnp.sum(probs_GSE, axis=-1, keepdims=True) + 1e-20)

    def _shared(self, x_BLM: jax.Array) -> jax.Array:
        """Returns what the shared expert adds (DeepSeekMoE, arXiv 2401.06066, eq. 3), gated where there is a gate."""
        assert self.shared is not None
        y_BLM = self.shared(x_BLM)
        if self.shared_gate is None:
            return y_BLM
        return jax.nn.sigmoid(project(x_BLM, self.shared_gate[...], self.scope)) * y_BLM

    def _experts(self, key: jax.Array | None) -> Experts:
        rate, up, biases = self.c.dropout, [self.wi], [self.wi_bias]
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
        rate = self.c.token_dropout
        if not rate:
            return y_GSM
        if key is None:
            return y_GSM * (1 - rate)
        return jnp.where(moe.uniform(key, y_GSM.shape[:2])[..., None] >= rate, y_GSM, 0)

    def _dispatch(self, dropless: bool, training: bool) -> Dispatch:
        """The config's dispatch, but in dropless evaluation "ragged" where it has a kernel and its exchange is possible: buffers
        would multiply E / K times the rows that are wanted."""
        pays = dropless and not training and self.scope.on_tpu and exchangeable(self.scope)
        return "ragged" if pays else self.scope.execution.dispatch

    def _group_size(self, tokens: int, training: bool) -> int:
        """S. Exactly the config's in training; elsewhere batches have any size, so the largest that fits."""
        size = self.c.group_size
        if training:
            if tokens % size:
                raise LayoutError(f"group_size={size} does not divide the {tokens} tokens of a batch")
            return size
        layout = self.scope.layout
        shards = layout.num_shards(layout.resolve(self.scope.path).get("group", ()))
        return max(s for s in range(1, size + 1) if tokens % (s * shards) == 0 or s == 1)


def clipped_swiglu(g: jax.Array, u: jax.Array) -> jax.Array:
    """Returns gpt-oss's (u + 1) g sigmoid(1.702 g), with g up to 7 and u from -7 to 7."""
    g, u = jnp.minimum(g, 7.0), jnp.clip(u, -7.0, 7.0)
    return (u + 1) * g * jax.nn.sigmoid(1.702 * g)


def routing_loss(c: MoeConfig, statistics: dict[str, Ratio], total: jax.Array, tower: str) -> Loss:
    """Returns what the MoE layers of a stack add to the loss: each its own balance loss and z-loss (k layers, k terms), or one
    balance loss of them all (MoeConfig.balance).

    Args:
      statistics: as the layers return them, stacked.
      total: tokens of the whole batch.
      tower: names the stack in the metrics.
    """
    pooled = jax.tree.map(lambda x: jnp.sum(x, axis=0), statistics)  # over layers
    if c.balance == "pooled":
        loss = moe.pooled_balance_loss(pooled.pop("asked"), pooled.pop("score"))
        tokens = jnp.sum(statistics["score"].over[0])
        pooled["balance_loss"] = Ratio(loss * tokens, tokens)
    extra = jnp.zeros((), pooled["balance_loss"].sum.dtype)
    for name in ("balance", "z", "importance", "load"):
        if f"{name}_loss" in pooled:
            extra += getattr(c, f"{name}_weight") * per(pooled[f"{name}_loss"].sum, total)
    if "correction" in pooled:
        extra += pooled.pop("correction").sum.astype(extra.dtype)
    metrics = {f"moe/{k}": v for k, v in pooled.items() if k != "load"}
    return Loss(extra, extra, metrics | {f"moe/load_{tower}": pooled["load"]})


def check_groups(c: MoeConfig, lengths: Iterable[int], microbatches: int) -> None:
    """Checks that routing groups lie within rows that are dealt out to microbatches, one by one.

    Args:
      lengths: positions of the rows.

    Raises:
      LayoutError: groups that span rows: they would have other rows in them. It names the nearest size that fits.
    """
    lengths = list(lengths)
    if any(length % c.group_size for length in lengths):
        common = math.gcd(*lengths)
        nearest = min((n for n in range(1, common + 1) if common % n == 0), key=lambda n: abs(n - c.group_size))
        raise LayoutError(
            f"group_size={c.group_size}: routing groups span rows of {' and '.join(map(str, lengths))} positions, which are "
            f"dealt out to {microbatches} microbatches one by one, so that groups would change; the nearest size that fits is "
            f"{nearest}"
        )


def hyperparameters(c: MoeConfig | None) -> dict[str, Any]:
    """Returns the settings of the mixture by the names that logs of runs have for them (models.family.Family)."""
    if c is None:
        return {}
    return {
        "moe_num_experts": c.experts,
        "moe_gating": c.gating,
        "moe_capacity_factor": c.capacity_factor,
        "moe_eval_capacity_factor": c.eval_capacity_factor,
        "moe_group_size": c.group_size,
        "moe_aux_loss_coeff": c.balance_weight,
        "moe_z_loss_coeff": c.z_weight,
    }


def notes(c: MoeConfig | None, hidden: int, execution: Execution) -> list[str]:
    """Lines about the mixture that a run prints when it starts; `hidden` is the experts' H."""
    if c is None:
        return []
    hidden = c.hidden_dim or hidden
    slots = moe.capacity(c.capacity_factor, c.group_size, c.experts, c.min_capacity, c.capacity_multiple)
    decoder = f" ({c.decoder_gating} in a decoder)" if c.gating != c.decoder_gating else ""
    lines = [
        f"{c.experts} experts, {c.gating} gating{decoder}, groups of {c.group_size} tokens, {slots} slots per expert and group; "
        f"dispatch by {execution.dispatch} (by einsum it would cost {c.group_size / hidden:.2f} of the experts' FLOPs)"
    ]
    if not c.capacity_factor and execution.dispatch != "ragged":
        wasted = c.experts / c.wanted
        lines.append(
            f"dropless by {execution.dispatch} multiplies {wasted:g} times as many rows as are wanted; 'ragged' does not"
        )
    return lines
