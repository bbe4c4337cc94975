"""Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290): answers to a prompt, of which one is preferred.

B rows, L positions, P pairs of a row, S = 2 P segments, V vocabulary. A pair's chosen answer, with the prompt, is segment
2 i + 1 of its row, and the rejected one segment 2 i + 2: a row's loss is complete in the row, so that microbatches add up.
"""

import jax
import jax.numpy as jnp

from models.parts.losses import Loss, Ratio, per
from models.protocol import Batch

NEEDED = "reference"  # the input that rows of pairs have


def count(batch: Batch) -> jax.Array:
    """Returns how many pairs a batch has."""
    return jnp.sum(batch["betas"] > 0)


def preference_loss(
    logp_BL: jax.Array, used_BL: jax.Array, segments_BL: jax.Array, batch: Batch, total: jax.Array, smoothing: float = 0.0
) -> Loss:
    """Returns DPO's loss (equation 7), a mean over the whole batch's pairs, and how the model's margins stand.

    The reward of an answer is beta (log p(answer) - log p_reference(answer)), a pair's margin the chosen answer's reward less the
    rejected one's, and `win_rate` the share of pairs whose margin is above 0.

    Args:
      logp_BL: log-probability of the token that follows each position.
      used_BL: how much it counts: 0 in a prompt.
      segments_BL: of the positions, in the same order.
      batch: `reference` [B, P, 2], log p_reference of the chosen and the rejected answers; `betas` [B, P], 0 where is no pair.
      total: pairs of the whole batch.
      smoothing: how likely a preference is the wrong way round (arXiv 2305.18290, appendix; "conservative DPO").
    """
    reference_BP2, betas_BP = batch[NEEDED], batch["betas"]
    ids_S = jnp.arange(1, 2 * betas_BP.shape[1] + 1)
    here_BLS = (segments_BL[..., None] == ids_S).astype(logp_BL.dtype)
    sums_BS = jnp.einsum("BL,BLS->BS", logp_BL * used_BL.astype(logp_BL.dtype), here_BLS)
    rewards_BP2 = betas_BP[..., None] * (sums_BS.reshape(reference_BP2.shape) - reference_BP2)
    pairs_BP = betas_BP > 0
    margins_BP = rewards_BP2[..., 0] - rewards_BP2[..., 1]
    lost_BP = -(1 - smoothing) * jax.nn.log_sigmoid(margins_BP) - smoothing * jax.nn.log_sigmoid(-margins_BP)

    def mean(x_BP: jax.Array) -> Ratio:
        return Ratio(jnp.sum(jnp.where(pairs_BP, x_BP, 0)), jnp.sum(pairs_BP))

    metrics = {
        "preference_loss": mean(lost_BP),
        "win_rate": mean((margins_BP > 0).astype(margins_BP.dtype)),
        "margin": mean(margins_BP),
        "chosen_reward": mean(rewards_BP2[..., 0]),
        "rejected_reward": mean(rewards_BP2[..., 1]),
    }
    value = per(metrics["preference_loss"].sum, total)
    return Loss(value, jnp.zeros_like(value), metrics)
