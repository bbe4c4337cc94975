"""Losses that compare each first member of a pair with the second members of a whole batch. N pairs, D numbers of a vector; P
shards of a batch, of A and of B pairs.
"""

import jax
import jax.numpy as jnp

from models.parts.losses import Loss, Ratio, cross_entropy, per
from models.sharding.component import Component

NEVER = -1e9  # logit of what is no candidate


def softmax_pairs(
    first_ND: jax.Array, second_ND: jax.Array, used_N: jax.Array, scale: jax.Array | float, total: jax.Array
) -> Loss:
    """Returns the cross-entropy of each member's partner among all members of the batch's other side, both ways.

    Args:
      first_ND, second_ND: unit vectors; partners have the same place.
      used_N: bool, False for pairs that do not count and are no candidates.
      scale: of the products of vectors.
      total: members of the whole batch, two a pair, over which the loss is a mean.
    """
    scores_NN = first_ND @ second_ND.T * scale
    value, hits = jnp.zeros((), scores_NN.dtype), jnp.zeros((), scores_NN.dtype)
    weight_N = used_N.astype(scores_NN.dtype)
    partner_N = jnp.arange(len(used_N))
    for side_NN in (scores_NN, scores_NN.T):
        side_NN = jnp.where(used_N[None, :], side_NN, NEVER)
        value += jnp.sum(cross_entropy(side_NN, partner_N)[1] * weight_N)
        hits += jnp.sum((jnp.argmax(side_NN, axis=-1) == partner_N) * weight_N)
    n = 2 * jnp.sum(used_N)
    loss = per(value, total)
    return Loss(loss, jnp.zeros_like(loss), {"cross_entropy": Ratio(value, n), "accuracy": Ratio(hits, n)})


def sigmoid_pairs(
    first_ND: jax.Array,
    second_ND: jax.Array,
    used_N: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    total: jax.Array,
    scope: Component,
) -> Loss:
    """Returns the loss of all N x N pairs: -log sigmoid(z) of partners, -log sigmoid(-z) of all others, z = scale x y + bias
    (SigLIP, arXiv 2303.15343, section 3.3).

    No device has all vectors, nor their products: first members stay where the layout has them, and second members go round the
    P shards of a batch, one shard further each step. All shards are one array with a dimension of P, so that rolling it by one is
    a collective-permute. Their products are computed anew in the backward pass.

    Args:
      first_ND, second_ND: unit vectors; partners have the same place.
      used_N: bool, False for pairs that do not count and are compared with none.
      total: pairs of the whole batch, over which the loss is a mean.
      scope: the component whose rule for "batch" cuts the pairs.
    """
    p = scope.num_shards("batch") if scope.mesh else 1
    own_PAD, start_PBD = (scope.shard(x.reshape(p, -1, x.shape[-1]), "batch", None, None) for x in (first_ND, second_ND))
    weight_PA = scope.shard(used_N.astype(first_ND.dtype).reshape(p, -1), "batch", None)
    partner_AB = jnp.eye(weight_PA.shape[1], dtype=bool)

    @jax.checkpoint
    def meet(second_PBD: jax.Array, weight_PB: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns (the loss of each first member with these second ones, the greatest logit of them, the partner's) [P, A]."""
        z_PAB = jnp.einsum("PAD,PBD->PAB", own_PAD, second_PBD) * scale + bias
        together_AB = partner_AB & (step == 0)
        loss_PAB = jax.nn.softplus(jnp.where(together_AB, -z_PAB, z_PAB)) * weight_PA[:, :, None] * weight_PB[:, None]
        best_PA = jnp.max(jnp.where(weight_PB[:, None] > 0, z_PAB, NEVER), axis=-1)
        return jnp.sum(loss_PAB, axis=-1), best_PA, jnp.sum(jnp.where(partner_AB, z_PAB, 0), axis=-1)

    def turn(carry, step: jax.Array):
        second_PBD, weight_PB, sum_PA, best_PA, partner_PA = carry
        loss_PA, new_PA, diagonal_PA = meet(second_PBD, weight_PB, step)
        partner_PA = jnp.where(step == 0, diagonal_PA, partner_PA)
        second_PBD = scope.shard(jnp.roll(second_PBD, 1, axis=0), "batch", None, None)
        weight_PB = scope.shard(jnp.roll(weight_PB, 1, axis=0), "batch", None)
        return (second_PBD, weight_PB, sum_PA + loss_PA, jnp.maximum(best_PA, new_PA), partner_PA), None

    zeros_PA = jnp.zeros_like(weight_PA)
    carry = (start_PBD, weight_PA, zeros_PA, zeros_PA + NEVER, zeros_PA)
    (_, _, sum_PA, best_PA, partner_PA), _ = jax.lax.scan(turn, carry, jnp.arange(p))
    n, value = jnp.sum(used_N), jnp.sum(sum_PA)
    hits = jnp.sum((partner_PA >= best_PA) * weight_PA)
    loss = per(value, total)
    return Loss(loss, jnp.zeros_like(loss), {"sigmoid": Ratio(value, n), "accuracy": Ratio(hits, n)})
