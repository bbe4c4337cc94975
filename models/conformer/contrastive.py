"""The targets of pre-training: codes of hidden positions, told from others of the utterance (wav2vec 2.0, arXiv 2006.11477).

B rows, S positions, M model, D code, G codebooks, V entries of each, K negatives.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer.config import Contrastive
from models.conformer.config import Quantizer as QuantizerConfig
from models.parts.layers import add_bias, project
from models.parts.losses import Loss, Ratio, Totals, per
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros

_NEVER = -1e9


class Quantizer(nnx.Module):
    """A product quantizer: of each of G codebooks an entry is chosen, and they stand side by side (section 2).

    In training the choice is drawn, and its gradient is that of the softmax at the temperature of the step.
    """

    def __init__(self, c: QuantizerConfig, size: int, code_dim: int, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.c, self.scope, g, v = c, scope, c.codebooks, c.codes
        self.weight = param(k1, (size, g, v), ("embed", "code_groups", "codes"), normal(1.0), scope)
        self.bias = param(k1, (g, v), ("code_groups", "codes"), zeros, scope)
        self.entries = param(k2, (g, v, code_dim // g), ("code_groups", "codes", "code"), jax.random.uniform, scope)

    def __call__(self, x_BSM: jax.Array, step: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns (vectors [B, S, D], probabilities of the entries [B, S, G, V], chosen entries int32 [B, S, G])."""
        wide = jnp.promote_types(x_BSM.dtype, jnp.float32)
        logits_BSGV = add_bias(project(x_BSM, self.weight[...], self.scope), self.bias).astype(wide)
        logits_BSGV = self.scope.shard(logits_BSGV, "batch", "length", None, None)
        chosen_BSG = jnp.argmax(logits_BSGV, axis=-1)
        one_BSGV = jax.nn.one_hot(chosen_BSG, self.c.codes, dtype=wide)
        if key is not None:
            start, factor, least = self.c.gumbel
            temperature = jnp.maximum(start * factor ** step.astype(wide), least)
            soft_BSGV = jax.nn.softmax((logits_BSGV + jax.random.gumbel(key, logits_BSGV.shape, wide)) / temperature)
            chosen_BSG = jnp.argmax(soft_BSGV, axis=-1)
            hard_BSGV = jax.nn.one_hot(chosen_BSG, self.c.codes, dtype=wide)
            one_BSGV = hard_BSGV + soft_BSGV - jax.lax.stop_gradient(soft_BSGV)
        vectors = jnp.einsum("BSGV,GVD->BSGD", one_BSGV, self.entries[...].astype(wide))
        return vectors.reshape(*x_BSM.shape[:2], -1).astype(x_BSM.dtype), jax.nn.softmax(logits_BSGV), chosen_BSG


def perplexity(probabilities_BSGV: jax.Array, counted_BS: jax.Array) -> jax.Array:
    """Returns exp of the entropy of the mean over the counted positions of the whole batch, summed over the codebooks."""
    weight = counted_BS.astype(probabilities_BSGV.dtype)[..., None, None]
    mean_GV = jnp.sum(probabilities_BSGV * weight, axis=(0, 1)) / jnp.maximum(jnp.sum(weight), 1)
    return jnp.sum(jnp.exp(-jnp.sum(mean_GV * jnp.log(mean_GV + 1e-7), axis=-1)))


def drawn_negatives(hidden_BS: jax.Array, segments_BS: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Returns (for each position K others that are hidden and of its utterance, int32 [B, S, K]; True where there are any).

    They are drawn evenly, with replacement, and never the position itself. The draw is a function of what is hidden of a row,
    which differs at each visit: so it does not depend on how a batch is dealt out.
    """
    length = hidden_BS.shape[1]
    # Hidden positions in the order of the row, which is that of its utterances.
    order_BS = jnp.argsort(~hidden_BS, axis=1, stable=True)
    rank_BS = jnp.cumsum(hidden_BS, axis=1) - 1
    mine_BSS = (segments_BS[:, :, None] == segments_BS[:, None]) & hidden_BS[:, None]
    many_BS = jnp.sum(mine_BSS, axis=-1)
    first_BS = jnp.min(jnp.where(mine_BSS, rank_BS[:, None], length), axis=-1)
    number_S = (jnp.arange(length, dtype=jnp.uint32) + 1) * jnp.uint32(2_654_435_761)  # Knuth's multiplicative hash
    keys_B = jax.vmap(jax.random.key)(jnp.sum(hidden_BS * number_S, axis=1, dtype=jnp.uint32))
    drawn_BSK = jax.vmap(lambda key: jax.random.uniform(key, (length, count)))(keys_B)
    drawn_BSK = jnp.floor(drawn_BSK * jnp.maximum(many_BS - 1, 1)[..., None])
    place_BSK = first_BS[..., None] + drawn_BSK.astype(jnp.int32)
    place_BSK += place_BSK >= rank_BS[..., None]
    chosen_BSK = jnp.take_along_axis(order_BS[:, None], jnp.clip(place_BSK, 0, length - 1), axis=2)
    return chosen_BSK, hidden_BS & (many_BS > 1)


def contrastive_loss(
    c: Contrastive,
    predicted_BSD: jax.Array,
    target_BSD: jax.Array,
    chosen_BSG: jax.Array | None,
    hidden_BS: jax.Array,
    segments_BS: jax.Array,
    totals: Totals,
) -> Loss:
    """Returns InfoNCE: how unlikely a hidden position's target is among those of K others, by cosine (equation 3).

    Args:
      chosen_BSG: the targets' codes, where they are codes: another position with the same is no negative.
    """
    wide = jnp.promote_types(predicted_BSD.dtype, jnp.float32)
    unit = [_unit(x.astype(wide)) for x in (predicted_BSD, target_BSD)]
    cosine_BSS = jnp.einsum("BSD,BTD->BST", *unit) / c.temperature
    other_BSK, counted_BS = drawn_negatives(hidden_BS, segments_BS, c.negatives)
    negative_BSK = jnp.take_along_axis(cosine_BSS, other_BSK, axis=2)
    if chosen_BSG is not None:
        same_BSS = jnp.all(chosen_BSG[:, :, None] == chosen_BSG[:, None], axis=-1)
        negative_BSK = jnp.where(jnp.take_along_axis(same_BSS, other_BSK, axis=2), _NEVER, negative_BSK)
    positive_BS = jnp.diagonal(cosine_BSS, axis1=1, axis2=2)
    loss_BS = jnp.logaddexp(jax.nn.logsumexp(negative_BSK, axis=-1), positive_BS) - positive_BS
    hit_BS = positive_BS > jnp.max(negative_BSK, axis=-1)
    counted = counted_BS.astype(wide)
    n = jnp.sum(counted_BS)
    metrics = {"contrastive": Ratio(jnp.sum(loss_BS * counted), n), "told_apart": Ratio(jnp.sum(hit_BS * counted), n)}
    value = per(jnp.sum(loss_BS * counted), totals["hidden"])
    return Loss(value, jnp.zeros_like(value), metrics)


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-12)


class Targets(nnx.Module):
    """The targets of a hidden position, made of what the front heard there: codes, or a linear map of it."""

    def __init__(self, c: Contrastive, size: int, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.c, self.scope = c, scope
        self.quantizer = Quantizer(c.quantizer, size, c.code_dim, k1, scope / "quantizer") if c.quantizer else None
        shape = (c.code_dim if c.quantizer else size, c.code_dim)
        self.target = param(k2, shape, ("code" if c.quantizer else "embed", "code"), normal(shape[0] ** -0.5), scope)
        self.prediction = param(k3, (size, c.code_dim), ("embed", "code"), normal(size**-0.5), scope)

    def __call__(
        self,
        features_BSM: jax.Array,
        output_BSM: jax.Array,
        hidden_BS: jax.Array,
        segments_BS: jax.Array,
        totals: Totals,
        context: Context,
    ) -> tuple[Loss, jax.Array | None]:
        """Returns (the contrastive and the diversity loss, the codes chosen int32 [B, S, G]); the context draws them."""
        c = self.c
        target_BSD, chosen, extra = features_BSM, None, None
        if self.quantizer is not None:
            target_BSD, probabilities, chosen = self.quantizer(features_BSM, context.step, context.key)
            quantizer = self.quantizer.c
            entries, weight = quantizer.codebooks * quantizer.codes, quantizer.diversity_weight
            used = perplexity(probabilities, hidden_BS)
            count, chosen_BSGV = jnp.ones((), used.dtype), jax.nn.one_hot(chosen, quantizer.codes, dtype=used.dtype)
            extra = Loss(
                weight * (entries - used) / entries,
                weight * (entries - used) / entries,
                {"perplexity": Ratio(used, count), "code_perplexity": Ratio(perplexity(chosen_BSGV, hidden_BS), count)},
            )
        loss = contrastive_loss(
            c,
            project(output_BSM, self.prediction[...], self.scope),
            project(target_BSD, self.target[...], self.scope),
            chosen,
            hidden_BS,
            segments_BS,
            totals,
        )
        weighted = Loss(c.contrast_weight * loss.value, loss.extra, loss.metrics)
        return (weighted if extra is None else weighted + extra), chosen
