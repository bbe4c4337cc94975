"""Beam search and sampling over any model that decodes a position at a time.

B sentences, K hypotheses, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from models.protocol import Searchable

NEVER = -1e9  # a log-probability that no hypothesis has

# Returns logits [B, K, V] from those of the model, the tokens so far [B, K, T] and their number.
Rule = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class _Search(NamedTuple):
    at: jax.Array  # how many tokens live hypotheses have
    live_BK: jax.Array  # their log-probabilities
    tokens_BKT: jax.Array
    done_BK: jax.Array  # scores of finished hypotheses, best first; NEVER where there is none yet
    done_tokens_BKT: jax.Array
    state: Any


def penalty(length: jax.Array | int, alpha: float) -> jax.Array:
    """((5 + length) / 6)^alpha, which divides a log-probability (Wu et al. 2016, eq. 14); 0 does nothing."""
    return ((5.0 + length) / 6.0) ** alpha


def beam_search(
    model: Searchable,
    state: Any,
    real_B: jax.Array,
    *,
    beams: int,
    steps: int,
    vocab: int,
    alpha: float,
    eos: int,
    pad: int = 0,
    usable: int | None = None,
    ends: Sequence[int] = (),
    prefix_BP: jax.Array | None = None,
    rule: Rule | None = None,
) -> tuple[jax.Array, jax.Array, Any]:
    """The best hypotheses of each sentence.

    Args:
      state: the model's state before the first token, for B x K hypotheses.
      real_B: False for sentences that only fill the batch up; they are not waited for.
      beams: K. 1 is greedy search.
      steps: T, the longest translation, end of sentence included.
      usable: ids from here on are never produced (a model's table may be larger than its vocabulary); V by default.
      ends: ids that end a hypothesis as `eos` does.
      prefix_BP: int32, the tokens that all hypotheses of a sentence begin with, each of probability 1; 0 leaves the choice.
      rule: what may come next; of what the model makes likely.

    Returns:
      (tokens [B, K, T], scores [B, K], the model's state), best first. After its end a hypothesis is filled with `pad`; one
      that did not end in `steps` tokens is listed as it is, after all that did, with a score below NEVER / 4. The state is
      that of the hypotheses that were live in the end.
    """
    batch = real_B.shape[0]
    ending = jnp.array([eos, *ends])
    wide = (1 + len(ending)) * beams
    first = jnp.where(jnp.arange(beams) == 0, 0.0, NEVER)  # all hypotheses begin alike: one is enough
    start = _Search(
        at=jnp.zeros((), jnp.int32),
        live_BK=jnp.broadcast_to(first, (batch, beams)),
        tokens_BKT=jnp.full((batch, beams, steps), pad, jnp.int32),
        done_BK=jnp.full((batch, beams), NEVER),
        done_tokens_BKT=jnp.full((batch, beams, steps), pad, jnp.int32),
        state=state,
    )

    def unfinished(s: _Search) -> jax.Array:
        # The best that a live hypothesis can still become: its log-probability only falls, its length at most T.
        hope_B = s.live_BK[:, 0] / penalty(steps, alpha)
        open_B = real_B & (hope_B > s.done_BK[:, -1])
        return (s.at < steps) & jnp.any(open_B)

    def advance(s: _Search) -> _Search:
        last_BK = jnp.where(s.at == 0, pad, jnp.take(s.tokens_BKT, jnp.maximum(s.at - 1, 0), axis=2))
        logits_BKV, state = model.step(s.state, last_BK, s.at)
        logits_BKV = logits_BKV.astype(jnp.float32)
        if rule is not None:
            logits_BKV = rule(logits_BKV, s.tokens_BKT, s.at)
        ids_V = jnp.arange(vocab)
        if prefix_BP is not None:
            logits_BKV = _at_prefix(logits_BKV, prefix_BP, s.at)
        never_V = (ids_V == pad) | (ids_V >= (usable or vocab))

        # 2K candidates with one end: at most K of them end, so K go on. They are among the 2K of each hypothesis, found faster.
        best_BKJ, token_BKJ = jax.lax.top_k(jnp.where(never_V, NEVER, logits_BKV), min(wide, vocab))
        total_BKJ = best_BKJ + (s.live_BK - jax.nn.logsumexp(logits_BKV, axis=-1))[..., None]
        score_BJ, choice_BJ = jax.lax.top_k(total_BKJ.reshape(batch, -1), min(wide, beams * total_BKJ.shape[2]))
        parent_BJ = choice_BJ // total_BKJ.shape[2]
        token_BJ = jnp.take_along_axis(token_BKJ.reshape(batch, -1), choice_BJ, axis=1)
        tokens_BJT = jnp.take_along_axis(s.tokens_BKT, parent_BJ[..., None], axis=1)
        tokens_BJT = tokens_BJT.at[:, :, s.at].set(token_BJ)
        ends_BJ = jnp.isin(token_BJ, ending)

        # One that ends counts only among the best K, so that a beam of 1 is greedy (as in fairseq and transformers).
        counts_J = jnp.arange(score_BJ.shape[1]) < beams
        ended_BJ = jnp.where(ends_BJ & counts_J, score_BJ / penalty(s.at + 1, alpha), NEVER)
        all_scores = jnp.concatenate([s.done_BK, ended_BJ], axis=1)
        all_tokens = jnp.concatenate([s.done_tokens_BKT, tokens_BJT], axis=1)
        done_BK, kept_BK = jax.lax.top_k(all_scores, beams)
        done_tokens_BKT = jnp.take_along_axis(all_tokens, kept_BK[..., None], axis=1)

        live_BK, going_BK = jax.lax.top_k(jnp.where(ends_BJ, NEVER, score_BJ), beams)
        tokens_BKT = jnp.take_along_axis(tokens_BJT, going_BK[..., None], axis=1)
        parent_BK = jnp.take_along_axis(parent_BJ, going_BK, axis=1)
        return _Search(s.at + 1, live_BK, tokens_BKT, done_BK, done_tokens_BKT, model.reorder(state, parent_BK))

    end = jax.lax.while_loop(unfinished, advance, start)
    # Unfinished hypotheses come after finished ones, however likely.
    cut_BK = NEVER / 2 + end.live_BK / penalty(steps, alpha)
    scores = jnp.concatenate([end.done_BK, cut_BK], axis=1)
    tokens = jnp.concatenate([end.done_tokens_BKT, end.tokens_BKT], axis=1)
    best_BK, index_BK = jax.lax.top_k(scores, beams)
    return jnp.take_along_axis(tokens, index_BK[..., None], axis=1), best_BK, end.state


def forced(logits_BKV: jax.Array, token_B: jax.Array) -> jax.Array:
    """Returns logits that leave a row's token alone, where it has one; 0 leaves the choice."""
    token_B11 = token_B[:, None, None]
    given_BKV = jnp.where(jnp.arange(logits_BKV.shape[-1]) == token_B11, 0.0, NEVER)
    return jnp.where(token_B11 > 0, given_BKV, logits_BKV)


def _at_prefix(logits_BKV: jax.Array, prefix_BP: jax.Array, at: jax.Array) -> jax.Array:
    """Returns logits that leave the token of the prefix at this position alone, where there is one."""
    return forced(logits_BKV, jnp.take(prefix_BP, at, axis=1, mode="fill", fill_value=0))


class Samples(NamedTuple):
    """Continuations that are drawn token by token.

    Attributes:
      at: how many tokens they have.
      tokens_BKT: the tokens, filled with padding.
      done_BK: which have ended.
      logp_BK: their log-probabilities under the model itself.
      state: the model's, which has read all tokens but the last.
    """

    at: jax.Array
    tokens_BKT: jax.Array
    done_BK: jax.Array
    logp_BK: jax.Array
    state: Any

    @classmethod
    def empty(cls, state: Any, real_B: jax.Array, samples: int, steps: int, pad: int = 0) -> "Samples":
        """Returns continuations of up to so many steps without a token; see `sample`."""
        batch = real_B.shape[0]
        return cls(
            jnp.zeros((), jnp.int32),
            jnp.full((batch, samples, steps), pad, jnp.int32),
            jnp.broadcast_to(~real_B[:, None], (batch, samples)),
            jnp.zeros((batch, samples)),
            state,
        )


def sample(
    model: Searchable, state: Any, real_B: jax.Array, key: jax.Array, *, samples: int, steps: int, pad: int = 0, **settings: Any
) -> tuple[jax.Array, jax.Array, Any]:
    """Continuations drawn token by token.

    Args:
      state: the model's state before the first token, for B x K hypotheses.
      real_B: False for sentences that only fill the batch up; they are not waited for.
      key: of the draws; or a key for each sentence [B], whose draws are then the same in any batch.
      samples: K.
      steps: T, the longest continuation, end included.
      settings: of `draw`.

    Returns:
      (tokens [B, K, T], filled with `pad` after the end; their log-probabilities [B, K] under the model itself; the model's
      state, which has read all tokens but the last).
    """

    def unfinished(drawn: Samples) -> jax.Array:
        return (drawn.at < steps) & ~jnp.all(drawn.done_BK)

    def advance(drawn: Samples) -> Samples:
        return draw(model, drawn, key, pad=pad, **settings)

    drawn = jax.lax.while_loop(unfinished, advance, Samples.empty(state, real_B, samples, steps, pad))
    return drawn.tokens_BKT, drawn.logp_BK, drawn.state


def draw(
    model: Searchable,
    drawn: Samples,
    key: jax.Array,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    eos: int,
    pad: int = 0,
    usable: int | None = None,
    ends: Sequence[int] = (),
    prefix_BP: jax.Array | None = None,
    rule: Rule | None = None,
) -> Samples:
    """Returns continuations with one token more, those that had ended with padding.

    Args:
      temperature: divides the logits; 0 takes the likeliest token.
      top_k: draws among so many likeliest tokens; 0 among all.
      top_p: draws among the fewest tokens whose probabilities sum to this (Holtzman et al. 2020, nucleus sampling).
      usable: ids from here on are never produced; V by default.
      ends: ids that end a continuation as `eos` does.
      prefix_BP, rule: as in `beam_search`.
    """
    at, tokens_BKT, done_BK, logp_BK, state = drawn
    last_BK = jnp.where(at == 0, pad, jnp.take(tokens_BKT, jnp.maximum(at - 1, 0), axis=2))
    logits_BKV, state = model.step(state, last_BK, at)
    logits_BKV = logits_BKV.astype(jnp.float32)
    if rule is not None:
        logits_BKV = rule(logits_BKV, tokens_BKT, at)
    if prefix_BP is not None:
        logits_BKV = _at_prefix(logits_BKV, prefix_BP, at)
    ids_V = jnp.arange(logits_BKV.shape[-1])
    logits_BKV = jnp.where((ids_V == pad) | (ids_V >= (usable or len(ids_V))), NEVER, logits_BKV)
    if temperature:
        kept_BKV = truncate(logits_BKV / temperature, top_k, top_p)
        new_BK = _drawn(key, at, kept_BKV)
    else:
        new_BK = jnp.argmax(logits_BKV, axis=-1)
    chosen_BK = jnp.take_along_axis(jax.nn.log_softmax(logits_BKV), new_BK[..., None], axis=-1)[..., 0]
    new_BK = jnp.where(done_BK, pad, new_BK).astype(jnp.int32)
    logp_BK = logp_BK + jnp.where(done_BK, 0.0, chosen_BK)
    done_BK = done_BK | jnp.isin(new_BK, jnp.array([eos, *ends]))
    return Samples(at + 1, tokens_BKT.at[:, :, at].set(new_BK), done_BK, logp_BK, state)


def _drawn(key: jax.Array, at: jax.Array, logits: jax.Array) -> jax.Array:
    """Returns what is drawn at a step, with one key or with one for each sentence."""
    if key.ndim:
        return jax.vmap(_drawn, (0, None, 0))(key, at, logits)
    return jax.random.categorical(jax.random.fold_in(key, at), logits)


def follow(
    model: Searchable, state: Any, tokens_BKT: jax.Array, last_BK: jax.Array | int = 0, at_BK: jax.Array | int = 0
) -> jax.Array:
    """Returns the log-probability [B, K, T] of each of these tokens after those before it; the state is read as far as it goes.

    Args:
      state: the model's, for B x K hypotheses, with room for T more steps.
      tokens_BKT: given continuations.
      last_BK: the token before them that the state has not read yet, the `at`-th of the continuation; at 0 there is none.
      at_BK: how many tokens of a continuation stand before these.
    """
    shape = tokens_BKT.shape[:2]

    def advance(carry, token_BK):
        state, last_BK, at_BK = carry
        logits_BKV, state = model.step(state, last_BK, at_BK)
        logp_BKV = jax.nn.log_softmax(logits_BKV.astype(jnp.promote_types(logits_BKV.dtype, jnp.float32)))
        logp_BK = jnp.take_along_axis(logp_BKV, token_BK[..., None], axis=-1)[..., 0]
        return (state, token_BK, at_BK + 1), logp_BK

    start = state, *(jnp.broadcast_to(jnp.asarray(x, jnp.int32), shape) for x in (last_BK, at_BK))
    return jnp.moveaxis(jax.lax.scan(advance, start, jnp.moveaxis(tokens_BKT, 2, 0))[1], 0, 2)


def truncate(logits_BKV: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """The logits with all but the likeliest tokens at NEVER: `top_k` of them, then as many as make up `top_p`, one at least."""
    if top_k:
        least_BK1 = jax.lax.top_k(logits_BKV, min(top_k, logits_BKV.shape[-1]))[0][..., -1:]
        logits_BKV = jnp.where(logits_BKV < least_BK1, NEVER, logits_BKV)
    if top_p < 1:
        sorted_BKV = -jnp.sort(-logits_BKV, axis=-1)
        probs_BKV = jax.nn.softmax(sorted_BKV)
        before_BKV = jnp.cumsum(probs_BKV, axis=-1) - probs_BKV  # a token stays if those before it don't suffice
        kept_BKV = jnp.where(before_BKV < top_p, sorted_BKV, sorted_BKV[..., :1])
        least_BK1 = jnp.min(kept_BKV, axis=-1, keepdims=True)
        logits_BKV = jnp.where(logits_BKV < least_BK1, NEVER, logits_BKV)
    return logits_BKV
