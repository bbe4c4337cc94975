"""The router of a mixture of experts: scores of experts for each token, their routing, and its losses.

G groups, S tokens of a group, E experts, M model.
"""

import dataclasses

import jax
import jax.numpy as jnp

from models.parts.losses import Ratio
from models.parts.moe import routing as moe
from models.parts.moe.config import AnyRouter, MoeLosses, TopK
from models.sharding.component import Component


@dataclasses.dataclass(frozen=True)
class Scores:
    """A router's scores.

    Attributes:
      logits_GSE: without noise.
      noisy_GSE: the same with noise, where there is some.
      noise_std: standard deviation of the noise; 0 where there is none.
      clean_GSE: scores of the logits without noise.
      scores_GSE: those that choose.
    """

    logits_GSE: jax.Array
    noisy_GSE: jax.Array
    noise_std: float
    clean_GSE: jax.Array
    scores_GSE: jax.Array


@dataclasses.dataclass(frozen=True)
class Router:
    """A router with its parameters.

    Attributes:
      c: its settings; a decoder's where tokens must not see later ones.
      scope: the component.
      weight_ME: from a token's vector to a logit of each expert.
      bias_E: of the logits.
      correction_E: of the scores that choose.
    """

    c: AnyRouter
    scope: Component
    weight_ME: jax.Array
    bias_E: jax.Array | None = None
    correction_E: jax.Array | None = None

    def scores(self, x_GSM: jax.Array, jitter_key: jax.Array | None, noise_key: jax.Array | None) -> Scores:
        """Returns the scores of experts for each token; without keys nothing is random."""
        # In float32 at least: bfloat16 gates make routing unstable (Switch Transformer, section 2.4).
        wide = jnp.promote_types(x_GSM.dtype, jnp.float32) if self.c.dtype == "float32" else x_GSM.dtype
        inputs_GSM = moe.jitter(x_GSM.astype(wide), self.c.jitter, jitter_key)
        logits_GSE = jnp.einsum("GSM,ME->GSE", inputs_GSM, self.weight_ME.astype(wide))
        if self.bias_E is not None:
            logits_GSE += self.bias_E.astype(wide)
        clean_GSE = self._scores_of(logits_GSE)
        if self.c.noise is None or noise_key is None:
            return Scores(logits_GSE, logits_GSE, 0.0, clean_GSE, clean_GSE)
        std = self.c.noise.std / self.weight_ME.shape[1]
        noisy_GSE = logits_GSE + std * moe.gaussian(noise_key, logits_GSE.shape).astype(wide)
        return Scores(logits_GSE, noisy_GSE, std, clean_GSE, self._scores_of(noisy_GSE))

    def _scores_of(self, logits_GSE: jax.Array) -> jax.Array:
        score = jax.nn.sigmoid if self._sigmoid else jax.nn.softmax
        return self.scope.shard(score(logits_GSE), "group", None, None)

    @property
    def _sigmoid(self) -> bool:
        return isinstance(self.c, TopK) and self.c.score == "sigmoid"

    def _shares(self, scores_GSE: jax.Array) -> jax.Array:
        """Returns scores that sum to one, as losses and statistics have them (DeepSeek-V3, eq. 18)."""
        return scores_GSE / (jnp.sum(scores_GSE, axis=-1, keepdims=True) + 1e-20) if self._sigmoid else scores_GSE

    def statistics(self, losses: MoeLosses, scores: Scores, routing: moe.Routing, mask_GS: jax.Array) -> dict[str, Ratio]:
        """Returns the auxiliary losses of a routing, and counts."""
        tokens, shares_GSE = jnp.sum(mask_GS), self._shares(scores.scores_GSE)
        if losses.balance == "pooled":
            result = moe.pooled_load(scores.scores_GSE, routing, mask_GS)
        else:
            result = {"balance_loss": Ratio(moe.balance_loss(shares_GSE, routing, mask_GS), tokens)}
        if losses.z_weight:
            result["z_loss"] = Ratio(moe.z_loss(scores.logits_GSE, mask_GS), tokens)
        if losses.importance_weight:
            result["importance_loss"] = Ratio(moe.importance_loss(scores.clean_GSE, mask_GS), tokens)
        if scores.noise_std and self.c.noise and self.c.noise.load_weight:
            load = moe.load_loss(scores.logits_GSE, scores.noisy_GSE, scores.noise_std, routing.choices, mask_GS)
            result["load_loss"] = Ratio(load, tokens)
        return result | moe.counts(shares_GSE, routing, mask_GS)
