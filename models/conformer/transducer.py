"""The transducer (Graves 2012, arXiv 1211.3711): a loss over all alignments of sound and text, greedy and beam search.

U utterances, S positions, L tokens, V vocabulary, P predictor, J joint; id 0 is the blank.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer.config import Transducer as TransducerConfig
from models.parts.decoding import NEVER
from models.parts.layers import Embedding, add_bias, project
from models.parts.losses import Loss, Ratio, Totals, per
from models.sharding.component import Component
from models.sharding.params import normal, param, stack_modules, zeros

BLANK = 0
_MOST = 4  # tokens that a search writes at a position


class Lstm(nnx.Module):
    """A layer of long short-term memory [.., P]: the gates of input, forgetting, output and the new content in one product."""

    def __init__(self, size: int, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        axes = ("embed", "gates", "mlp")
        self.scope = scope
        self.input = param(k1, (size, 4, size), axes, normal(size**-0.5), scope)
        self.state = param(k2, (size, 4, size), axes, normal(size**-0.5), scope)
        self.bias = param(k1, (4, size), ("gates", "mlp"), zeros, scope)

    def __call__(self, x_UP: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Returns (output [U, P], the state (output, cell) after it)."""
        h_UP, cell_UP = state
        gates = add_bias(project(x_UP, self.input[...], self.scope) + project(h_UP, self.state[...], self.scope), self.bias)
        into, forget, out, new = (gates[..., i, :] for i in range(4))
        # As is usual, a fresh layer remembers.
        cell_UP = jax.nn.sigmoid(forget + 1) * cell_UP + jax.nn.sigmoid(into) * jnp.tanh(new)
        h_UP = jax.nn.sigmoid(out) * jnp.tanh(cell_UP)
        return h_UP, (h_UP, cell_UP)


class Transducer(nnx.Module):
    """The prediction network, an LSTM over the tokens so far, and the joint network over both sides."""

    def __init__(self, c: TransducerConfig, size: int, key: jax.Array, scope: Component):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.c, self.scope, p, j = c, scope, c.predictor_dim, c.joint_dim
        self.embedding = Embedding(c.vocab, p, k1, scope / "embedding")
        self.layers = stack_modules(lambda k: Lstm(p, k, scope / "predictor"), k2, c.predictor_layers)
        self.heard = param(k3, (size, j), ("embed", "code"), normal(size**-0.5), scope)
        self.said = param(k4, (p, j), ("embed", "code"), normal(p**-0.5), scope)
        self.joint_bias = param(k4, (j,), ("code",), zeros, scope)
        self.output = param(k5, (j, c.vocab), ("code", "vocab"), normal(j**-0.5), scope)
        self.output_bias = param(k5, (c.vocab,), ("vocab",), zeros, scope)

    def start(self, rows: int, dtype: jnp.dtype) -> Any:
        """Returns the state of the prediction network before the first token, [layers, U, P] twice."""
        blank = jnp.zeros((self.c.predictor_layers, rows, self.c.predictor_dim), dtype)
        return blank, blank

    def predict(self, ids_U: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Returns (what the network makes of one more token [U, P], its state); the blank stands before the first."""
        x_UP = self.embedding(ids_U[:, None], self.scope.dtype)[:, 0]

        def layer(x_UP, inputs):
            module, state = inputs
            return module(x_UP, state)

        return jax.lax.scan(layer, x_UP, (self.layers, state))

    def joint(self, sound_X: jax.Array, text_X: jax.Array) -> jax.Array:
        """Returns logits [.., V] of projected positions and tokens."""
        joined = jnp.tanh(sound_X + add_bias(text_X, self.joint_bias))
        return add_bias(project(joined, self.output[...], self.scope), self.output_bias)

    def loss(self, x_USM: jax.Array, real_US: jax.Array, targets_UL: jax.Array, given_UL: jax.Array, totals: Totals) -> Loss:
        """Returns the negative log-likelihood of texts a token, over the whole batch's; those that cannot be said count nothing.

        Logits [U, S, L + 1, V] are cut as the layout cuts rows, positions and vocabulary; of them the likelihoods of the blank
        and of the next token are kept.
        """
        before_UX = jnp.pad(targets_UL, ((0, 0), (1, 0)), constant_values=BLANK)  # X = L + 1

        def read(state, ids_U):
            text_UP, state = self.predict(ids_U, state)
            return state, text_UP

        _, text_XUP = jax.lax.scan(read, self.start(len(x_USM), x_USM.dtype), before_UX.T)
        text_UXJ = project(text_XUP.swapaxes(0, 1), self.said[...], self.scope)
        sound_USJ = project(x_USM, self.heard[...], self.scope)
        logits_USXV = self.joint(sound_USJ[:, :, None], text_UXJ[:, None])
        logits_USXV = self.scope.shard(logits_USXV, "batch", "length", None, "act_vocab")
        logits_USXV = logits_USXV.astype(jnp.promote_types(logits_USXV.dtype, jnp.float32))
        total_USX = jax.nn.logsumexp(logits_USXV, axis=-1)
        next_UX = jnp.pad(targets_UL, ((0, 0), (0, 1)))
        # A product with one-hot ids: a choice along a dimension that is cut.
        next_UXV = jax.nn.one_hot(next_UX, self.c.vocab, dtype=logits_USXV.dtype)
        token_USX = jnp.einsum("USXV,UXV->USX", logits_USXV, next_UXV) - total_USX
        blank_USX = logits_USXV[..., BLANK] - total_USX
        length_U, spoken_U = jnp.sum(real_US, axis=1), jnp.sum(given_UL, axis=1)
        possible_U = length_U > 0
        used_U = possible_U & (spoken_U > 0)
        loss_U = jnp.where(used_U, -likelihood(blank_USX, token_USX, length_U, spoken_U), 0)
        metrics = {
            "transducer": Ratio(jnp.sum(loss_U), jnp.sum(jnp.where(used_U, spoken_U, 0))),
            "impossible": Ratio(jnp.sum(~possible_U & (spoken_U > 0)).astype(loss_U.dtype), jnp.sum(spoken_U > 0)),
        }
        value = per(jnp.sum(loss_U), totals["tokens"])
        return Loss(value, jnp.zeros_like(value), metrics)

    def greedy(self, x_USM: jax.Array, real_US: jax.Array, steps: int) -> jax.Array:
        """Returns the likeliest token or blank at each step along the sound, int32 [U, steps] with 0 behind the text."""
        rows, length = real_US.shape
        sound_USJ = project(x_USM, self.heard[...], self.scope)
        count_U = jnp.sum(real_US, axis=1)

        def going(carry) -> jax.Array:
            return jnp.any(carry[0] < count_U)

        def advance(carry):
            at_U, here_U, size_U, ids_UL, text_UP, state = carry
            sound_UJ = jnp.take_along_axis(sound_USJ, jnp.minimum(at_U, length - 1)[:, None, None], axis=1)[:, 0]
            logits_UV = self.joint(sound_UJ, project(text_UP, self.said[...], self.scope))
            best_U = jnp.argmax(logits_UV, axis=-1).astype(jnp.int32)
            writes_U = (best_U != BLANK) & (at_U < count_U) & (here_U < _MOST) & (size_U < steps)
            new_UP, new_state = self.predict(best_U, state)
            text_UP = jnp.where(writes_U[:, None], new_UP, text_UP)
            state = jax.tree.map(lambda new, old: jnp.where(writes_U[None, :, None], new, old), new_state, state)
            place_UL = (jnp.arange(steps) == size_U[:, None]) & writes_U[:, None]
            ids_UL = jnp.where(place_UL, best_U[:, None], ids_UL)
            return (
                jnp.where(writes_U, at_U, at_U + 1),
                jnp.where(writes_U, here_U + 1, 0),
                size_U + writes_U,
                ids_UL,
                text_UP,
                state,
            )

        zero_U = jnp.zeros(rows, jnp.int32)
        text_UP, state = self.predict(zero_U, self.start(rows, x_USM.dtype))
        carry = zero_U, zero_U, zero_U, jnp.zeros((rows, steps), jnp.int32), text_UP, state
        return jax.lax.while_loop(going, advance, carry)[3]

    def beam_search(self, x_USM: jax.Array, real_US: jax.Array, beams: int, steps: int) -> jax.Array:
        """Returns the likeliest text of each utterance that K hypotheses find, int32 [U, steps] with 0 behind it.

        At each position hypotheses are grown by up to `_MOST` tokens, of which the K best are kept a token at a time; all of
        them, however much they were grown, compete for the next position behind a blank, and alignments of one text are added
        up (time-synchronous decoding: Saon et al. 2020, section 2.2).
        """
        sound_USJ = project(x_USM, self.heard[...], self.scope)
        return jax.vmap(lambda sound_SJ, real_S: self._search(sound_SJ, real_S, beams, steps))(sound_USJ, real_US)

    def _search(self, sound_SJ: jax.Array, real_S: jax.Array, k: int, steps: int) -> jax.Array:
        wide = jnp.promote_types(sound_SJ.dtype, jnp.float32)

        def grown(hypotheses: "_Hypotheses", logp_KV: jax.Array) -> "_Hypotheses":
            """Returns the K likeliest of all hypotheses with one more token."""
            score_KV = (hypotheses.score_K[:, None] + logp_KV).at[:, BLANK].set(NEVER)
            score_KV = jnp.where(hypotheses.size_K[:, None] < steps, score_KV, NEVER)
            score_K, chosen_K = jax.lax.top_k(score_KV.reshape(-1), k)
            parent_K, token_K = chosen_K // self.c.vocab, chosen_K % self.c.vocab
            ids_KL, size_K, _, _, state = hypotheses.taken(parent_K)
            ids_KL = jnp.where(jnp.arange(steps) == size_K[:, None], token_K[:, None], ids_KL)
            return _Hypotheses(ids_KL, size_K + 1, score_K, *self.predict(token_K, state))

        def advance(hypotheses: "_Hypotheses", inputs: tuple[jax.Array, jax.Array]):
            sound_J, real = inputs
            begun, ended = hypotheses, []
            for written in range(_MOST + 1):
                text_KJ = project(hypotheses.text_KP, self.said[...], self.scope)
                logp_KV = jax.nn.log_softmax(self.joint(sound_J, text_KJ).astype(wide))
                ended.append(hypotheses._replace(score_K=hypotheses.score_K + logp_KV[:, BLANK]))
                if written < _MOST:
                    hypotheses = grown(hypotheses, logp_KV)
            kept = _best(ended, k)
            return jax.tree.map(lambda new, old: jnp.where(real, new, old), kept, begun), None

        blank_K = jnp.zeros(k, jnp.int32)
        score_K = jnp.where(blank_K.at[0].set(1) > 0, 0.0, NEVER).astype(wide)
        text = self.predict(blank_K, self.start(k, sound_SJ.dtype))
        first = _Hypotheses(jnp.zeros((k, steps), jnp.int32), blank_K, score_K, *text)
        last, _ = jax.lax.scan(advance, first, (sound_SJ, real_S))
        return last.ids_KL[jnp.argmax(last.score_K)]


class _Hypotheses(NamedTuple):
    """K texts: their ids with 0 behind them, sizes, log-likelihoods, and what the prediction network makes of them."""

    ids_KL: jax.Array
    size_K: jax.Array
    score_K: jax.Array
    text_KP: jax.Array
    state: Any  # [layers, K, P] twice

    def taken(self, index_K: jax.Array) -> "_Hypotheses":
        """Returns some of them."""
        ids_KL, size_K, score_K, text_KP = (x[index_K] for x in self[:-1])
        return _Hypotheses(ids_KL, size_K, score_K, text_KP, jax.tree.map(lambda x: x[:, index_K], self.state))


def _best(parts: list[_Hypotheses], k: int) -> _Hypotheses:
    """Returns the K likeliest of several groups, equal texts as one whose likelihood is their sum."""
    *texts, states = zip(*parts, strict=True)
    ids_XL, size_X, score_X, text_XP = map(jnp.concatenate, texts)
    state = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *states)
    every = _Hypotheses(ids_XL, size_X, score_X, text_XP, state)
    same_XX = jnp.all(every.ids_KL[:, None] == every.ids_KL, axis=-1)  # no text has a 0, so sizes are equal too
    summed_X = jax.nn.logsumexp(jnp.where(same_XX, every.score_K, NEVER), axis=1)
    first_X = jnp.argmax(same_XX, axis=1) == jnp.arange(len(summed_X))
    score_K, chosen_K = jax.lax.top_k(jnp.where(first_X, summed_X, NEVER), k)
    return every.taken(chosen_K)._replace(score_K=score_K)


def likelihood(blank_USX: jax.Array, token_USX: jax.Array, length_U: jax.Array, spoken_U: jax.Array) -> jax.Array:
    """Returns the log of the sum over alignments of their likelihoods, [U] (equation 16 of the paper, position by position).

    Within a position tokens are said one after the other: with E[x] the sum of the tokens' log-likelihoods before x, what
    reaches x is E[x] + log of the sum over y <= x of exp(arrived[y] - E[y]).

    Args:
      blank_USX, token_USX: log-likelihoods of a blank, and of the next token, after x tokens at a position.
      length_U, spoken_U: real positions, which are at least 1, and tokens.
    """
    rows, length, size = blank_USX.shape
    x = jnp.arange(size)
    token_USX = jnp.where(x < spoken_U[:, None, None], token_USX, NEVER)

    def within(arrived_UX: jax.Array, token_UX: jax.Array) -> jax.Array:
        # NEVER in the sums would drown what comes before it: nothing is said behind the last token anyway.
        sums_UX = jnp.cumsum(jnp.pad(jnp.where(token_UX > NEVER / 2, token_UX, 0), ((0, 0), (1, 0)))[:, :-1], axis=1)
        reached_UX = sums_UX + jax.lax.cumlogsumexp(arrived_UX - sums_UX, axis=1)
        return jnp.where(x <= spoken_U[:, None], reached_UX, NEVER)

    def advance(alpha_UX, inputs):
        blank_before_UX, token_UX, number = inputs
        new_UX = within(alpha_UX + blank_before_UX, token_UX)
        return jnp.where((number < length_U)[:, None], new_UX, alpha_UX), None

    first_UX = jnp.where(x == 0, 0.0, NEVER).astype(blank_USX.dtype)
    alpha_UX = within(jnp.broadcast_to(first_UX, (rows, size)), token_USX[:, 0])
    inputs = blank_USX[:, :-1].swapaxes(0, 1), token_USX[:, 1:].swapaxes(0, 1), jnp.arange(1, length)
    alpha_UX, _ = jax.lax.scan(advance, alpha_UX, inputs)
    last_UX = jnp.take_along_axis(blank_USX, (length_U - 1)[:, None, None], axis=1)[:, 0]
    return jnp.take_along_axis(alpha_UX + last_UX, spoken_U[:, None], axis=1)[:, 0]
