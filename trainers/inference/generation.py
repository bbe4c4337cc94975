"""Continuing text with a causal language model: greedy, by sampling, or by beam search."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data import progress
from data.features import Example, Feature, slots
from data.task import DataError
from data.vocabularies.tokenizers import Tokenizer
from models.parts.decoding import Samples, beam_search, draw, follow, sample
from models.protocol import Batch, ContinuesText, Model
from models.sharding.params import Params
from trainers.inference.forms import Form
from trainers.inference.runner import Runner, of_params

_PAD = -1  # no token's id: id 0 is text in most vocabularies
_SHORTEST = 32  # places of a program's prompts
_ALONE = 20  # tokens that are read together in the time of one that is read alone: by SmolLM2-135M on a CPU, 256 of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
    """Settings of a continuation of text.

    Attributes:
      tokens: longest continuation.
      temperature: of sampling; 0 takes the likeliest token each time.
      top_k, top_p: truncate the distribution that is sampled, see models.parts.decoding.sample.
      beams: hypotheses of a beam search; 0 samples instead.
      length_penalty: of the beam search, see models.parts.decoding.penalty.
      samples: continuations of each prompt.
      seed: of the draws.
      batch_size: prompts continued together.
      length: prompts of up to so many tokens share a program; longer ones get one of twice as many, and so on.
      kept: the places that a streamed sample's cache has for what comes after the sample, a prompt that begins with both and the
        sample behind it: they are read on instead of anew if that takes less time.
    """

    tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    beams: int = 0
    length_penalty: float = 0.0
    samples: int = 1
    seed: int = 0
    batch_size: int = 8
    length: int = _SHORTEST
    kept: int = 0


class Continuation(NamedTuple):
    """A continuation: its text, its ids without the end, and its log-probability (of beams, the score).

    Attributes:
      suffixes: for each suffix of the generator, the log-probability of its last token after the continuation and its others.
    """

    text: str
    ids: list[int]
    score: float
    suffixes: list[float]


class Generator:
    """Generation with a model's parameters, compiled once for each length of prompts.

    Args:
      model: with shapes for parameters, on its mesh.
      vocabulary: the folder of its tokenizer.json, which says how a text begins and ends (data.vocabularies.boundaries).
      emit: called with the text so far of the first prompt's first sample whenever a token was drawn; there are no beams then.
      suffixes: ids that are scored after each sample, from the cache that the sample leaves (see Continuation).
      form: of the conversations that the prompts are (trainers.inference.forms), where they are no texts: it may end a sample.

    Raises:
      DataError: the model reads no text from left to right, or its vocabulary does not fit.
      VocabularyError: the vocabulary has no end of text.
    """

    def __init__(
        self,
        model: Model,
        config: Generate,
        vocabulary: Path,
        emit: Callable[[str], object] | None = None,
        suffixes: Sequence[Sequence[int]] = (),
        form: Form | None = None,
    ):
        if not isinstance(model, ContinuesText):
            raise DataError(f"models of family {model.c.family!r} do not continue text")
        known = model.vocab
        self.model, self.config, self.tokenizer = model, config, Tokenizer(vocabulary)
        if self.tokenizer.size > known:
            raise DataError(f"{vocabulary}: its {self.tokenizer.size} tokens are more than model.vocab={known}")
        self.ends = tuple(dict.fromkeys([*(form.ends if form else ()), *self.tokenizer.ends])) or (self.tokenizer.end,)
        self._line = form is not None and form.line
        self._hidden = {_PAD, *self.ends}
        self.longest = model.longest
        hypotheses = config.beams or config.samples
        room = config.tokens + max(map(len, suffixes), default=0)
        lines = [i for i in range(self.tokenizer.size) if "\n" in self.tokenizer.decode([i])] if self._line else []
        eos, *others = self.ends
        common: dict[str, Any] = dict(eos=eos, pad=_PAD, usable=self.tokenizer.size)
        draws: dict[str, Any] = dict(
            temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, ends=[*others, *lines], **common
        )

        def start(model: Any, batch: Batch) -> Any:
            return model.start(batch | {"lengths": jnp.maximum(batch["lengths"], 1)}, hypotheses, room)

        def key_of(seed_2: jax.Array) -> jax.Array:  # made in a program: outside it would be programs of its own to compile
            return jax.random.fold_in(jax.random.key(seed_2[0]), seed_2[1])

        def search(model: Any, batch: Batch, seed_2: jax.Array) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
            real_B, steps = batch["lengths"] > 0, config.tokens
            if config.beams:
                settings: dict[str, Any] = dict(
                    beams=config.beams, vocab=known, alpha=config.length_penalty, ends=others, **common
                )
                return *beam_search(model, start(model, batch), real_B, steps=steps, **settings)[:2], []
            key, samples = key_of(seed_2), config.samples
            return scored(model, *sample(model, start(model, batch), real_B, key, samples=samples, steps=steps, **draws))

        def scored(
            model: Any, tokens_BKT: jax.Array, scores_BK: jax.Array, state: Any
        ) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
            size_BK = jnp.sum(tokens_BKT != _PAD, axis=-1)
            last_BK = jnp.take_along_axis(tokens_BKT, jnp.maximum(size_BK - 1, 0)[..., None], axis=-1)[..., 0]
            each = (jnp.broadcast_to(jnp.array(ids), (*last_BK.shape, len(ids))) for ids in suffixes)
            return tokens_BKT, scores_BK, [follow(model, state, ids_BKT, last_BK, size_BK)[..., -1] for ids_BKT in each]

        def begin(model: Any, batch: Batch) -> Samples:
            state = model.start(batch, hypotheses, room + config.kept)
            return Samples.empty(state, batch["lengths"] > 0, config.samples, config.tokens + config.kept, _PAD)

        def advance(model: Any, drawn: Samples, seed_2: jax.Array, given: int) -> Samples:
            new, is_given = draw(model, drawn, key_of(seed_2), **draws), given != _PAD
            return new._replace(
                tokens_BKT=jnp.where(is_given, drawn.tokens_BKT.at[:, :, drawn.at].set(given), new.tokens_BKT),
                done_BK=new.done_BK & ~is_given,
                logp_BK=jnp.where(is_given, drawn.logp_BK, new.logp_BK),
            )

        self._emit = emit
        self._kept: tuple[list[int], Samples] | None = None  # a streamed prompt with its sample, and the cache of both
        self._begin, self._scored = of_params(model, begin), of_params(model, scored)
        self._advance = of_params(model, advance, donate_argnums=1)
        self._runner = Runner(model, {"tokens": slots(-1), "lengths": Feature((), ())}, config.batch_size, search)

    def _streamed(self, params: Params, batch: Example, seed_2: np.ndarray, emit: Callable[[str], object]) -> Any:
        """Returns what the runner returns. A token is the call of a program: one that calls back is in no cache of programs.

        Args:
          seed_2: the seed of the draws, and the number of the batch.
        """
        prompt = batch["tokens"][0, : batch["lengths"][0]].tolist()
        drawn = self._resumed(params, prompt, seed_2) or self._begin(params, batch)
        first, before_BK, new = int(drawn.at), np.asarray(drawn.logp_BK), list[int]()
        while len(new) < self.config.tokens and not np.all(drawn.done_BK):
            drawn = self._advance(params, drawn, seed_2, _PAD)
            new.append(int(drawn.tokens_BKT[0, 0, first + len(new)]))
            emit(self._text([id_ for id_ in new if id_ not in self._hidden]))
        tokens_BKT, scores_BK, suffixes = jax.device_get(self._scored(params, drawn.tokens_BKT, drawn.logp_BK, drawn.state))
        if self.config.samples == 1:
            self._kept = [*prompt, *new], drawn
        return tokens_BKT[..., first : first + self.config.tokens], scores_BK - before_BK, suffixes

    def _resumed(self, params: Params, prompt: list[int], seed_2: np.ndarray) -> Samples | None:
        """Returns the last streamed sample with the prompt that begins with it, read a token at a time; None where reading the
        prompt anew is faster, or there is no such sample, or no room behind it."""
        kept, self._kept = self._kept, None  # whose arrays a program takes over
        if not kept:
            return None
        known, drawn = kept
        given = prompt[len(known) :]
        room = self.config.kept + self.config.tokens - int(drawn.at)
        if prompt[: len(known)] != known or len(given) + self.config.tokens > room:
            return None
        if not 0 < _ALONE * len(given) <= self._places(len(prompt)):
            return None
        for id_ in given:
            drawn = self._advance(params, drawn, seed_2, id_)
        return drawn

    def __call__(
        self, params: Params, prompts: Sequence[str | Sequence[int]], seed: int | None = None
    ) -> list[list[Continuation]]:
        """Returns the continuations of each prompt, in their order: `samples` of them, or `beams`, the best first.

        Args:
          prompts: texts, or the ids of a form's.
          seed: of the draws; the configuration's by default.

        Raises:
          DataError: a prompt leaves no room for its continuation.
        """
        continuations = []
        seed = self.config.seed if seed is None else seed
        rows = self.config.batch_size
        for i, start in enumerate(progress.track(range(0, len(prompts), rows), "generating", "batches of prompts")):
            encoded = [self._encode(prompt) for prompt in prompts[start : start + rows]]
            ids_BS = np.zeros((rows, self._places(max(map(len, encoded)))), np.int32)
            lengths_B = np.zeros(rows, np.int32)
            for row, ids in enumerate(encoded):
                ids_BS[row, : len(ids)], lengths_B[row] = ids, len(ids)
            batch = {"tokens": ids_BS, "lengths": lengths_B}
            of_batch = params, batch, np.array([seed, i])
            tokens_BKT, scores_BK, suffixes = self._streamed(*of_batch, self._emit) if self._emit else self._runner(*of_batch)
            for row in range(len(encoded)):
                continuations.append(self._continuations(tokens_BKT[row], scores_BK[row], [x_BK[row] for x_BK in suffixes]))
        return continuations

    @property
    def room(self) -> int:
        """Returns the most tokens that a prompt may have, beside its continuation."""
        return self.longest - self.config.tokens if self.longest else sys.maxsize

    def _places(self, tokens: int) -> int:
        """Returns how many places a program has for prompts of up to so many tokens: lengths double, so that it is one of few."""
        places = self.config.length
        while places < tokens:
            places *= 2
        return min(places, max(self.room, tokens))

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        ids = self.tokenizer.whole(prompt) if isinstance(prompt, str) else list(prompt)
        ids = ids or [self.tokenizer.end]  # nothing to begin with: a new document
        if len(ids) > self.room:
            raise DataError(
                f"a prompt of {len(ids)} tokens and a continuation of {self.config.tokens} are more than the model's "
                f"positions.rows={self.longest}"
            )
        return ids

    def _text(self, ids: list[int]) -> str:
        text = self.tokenizer.decode(ids)
        return text.partition("\n")[0] if self._line else text

    def _continuations(self, tokens_KT: np.ndarray, scores_K: np.ndarray, suffixes: Sequence[np.ndarray]) -> list[Continuation]:
        ids_by_sample = [[int(t) for t in row if t not in self._hidden] for row in tokens_KT]
        return [
            Continuation(self._text(ids), ids, float(scores_K[k]), [float(x_K[k]) for x_K in suffixes])
            for k, ids in enumerate(ids_by_sample)
        ]
