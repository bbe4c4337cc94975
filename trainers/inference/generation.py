"""Continuing text with a causal language model: greedy, by sampling, or by beam search."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data import progress
from data.features import Feature, slots
from data.task import DataError
from data.vocabularies.chat_templates import ChatEncoder
from data.vocabularies.tokenizers import Tokenizer
from models.parts.decoding import beam_search, follow, sample
from models.protocol import Batch, ContinuesText, Model
from models.sharding.params import Params
from trainers.inference.runner import Runner

_PAD = -1  # no token's id: id 0 is text in most vocabularies


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
      length: the most tokens of a prompt, for which one program is compiled; 0 compiles one for every 32 tokens of prompt.
      line: whether a sample ends at a line break.
      chat: whether a prompt is a turn of the user, in the chat template beside the vocabulary; a turn's end ends a sample too.
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
    length: int = 0
    line: bool = False
    chat: bool = False


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
      emit: called with the text so far of the first prompt's first sample whenever a token was drawn; on one device only.
      suffixes: ids that are scored after each sample, from the cache that the sample leaves (see Continuation).

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
    ):
        if not isinstance(model, ContinuesText):
            raise DataError(f"models of family {model.c.family!r} do not continue text")
        known = model.vocab
        self.config, self.tokenizer = config, Tokenizer(vocabulary)
        if self.tokenizer.size > known:
            raise DataError(f"{vocabulary}: its {self.tokenizer.size} tokens are more than model.vocab={known}")
        self._chat = ChatEncoder(vocabulary) if config.chat else None
        turn = [self._chat.end] if self._chat else []
        self.ends = tuple(dict.fromkeys([*turn, *self.tokenizer.ends])) or (self.tokenizer.end,)
        self._hidden = {_PAD, *self.ends}
        self.longest = model.longest
        hypotheses = config.beams or config.samples
        room = config.tokens + max(map(len, suffixes), default=0)
        lines = [i for i in range(self.tokenizer.size) if "\n" in self.tokenizer.decode([i])] if config.line else []
        drawn: list[int] = []  # of the sample that is emitted

        def grow(at: np.ndarray, new_BK: np.ndarray) -> None:
            del drawn[int(at) :]  # tokens of an earlier sample
            drawn.append(int(new_BK[0, 0]))
            assert emit is not None
            emit(self._text([id_ for id_ in drawn if id_ not in self._hidden]))

        eos, *others = self.ends
        common: dict[str, Any] = dict(steps=config.tokens, eos=eos, pad=_PAD, usable=self.tokenizer.size)

        def search(model: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
            lengths_B = batch["lengths"]
            state = model.start(batch | {"lengths": jnp.maximum(lengths_B, 1)}, hypotheses, room)
            if config.beams:
                return *beam_search(
                    model,
                    state,
                    lengths_B > 0,
                    beams=config.beams,
                    vocab=known,
                    alpha=config.length_penalty,
                    ends=others,
                    **common,
                ), []
            tokens_BKT, scores_BK, state = sample(
                model,
                state,
                lengths_B > 0,
                key,
                samples=config.samples,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                ends=[*others, *lines],
                emit=emit and grow,
                **common,
            )
            size_BK = jnp.sum(tokens_BKT != _PAD, axis=-1)
            last_BK = jnp.take_along_axis(tokens_BKT, jnp.maximum(size_BK - 1, 0)[..., None], axis=-1)[..., 0]
            scored = [
                follow(model, state, jnp.broadcast_to(jnp.array(ids), (*last_BK.shape, len(ids))), last_BK, size_BK)[..., -1]
                for ids in suffixes
            ]
            return tokens_BKT, scores_BK, scored

        self._runner = Runner(model, {"tokens": slots(-1), "lengths": Feature((), ())}, config.batch_size, search)

    def __call__(self, params: Params, prompts: Sequence[str], seed: int | None = None) -> list[list[Continuation]]:
        """Returns the continuations of each prompt, in their order: `samples` of them, or `beams`, the best first.

        Args:
          seed: of the draws; the configuration's by default.
        """
        continuations = []
        key = jax.random.key(self.config.seed if seed is None else seed)
        rows = self.config.batch_size
        for i, start in enumerate(progress.track(range(0, len(prompts), rows), "generating", "batches of prompts")):
            encoded = [self._encode(text) for text in prompts[start : start + rows]]
            # Lengths go up in steps of 32, so that few programs are compiled.
            ids_BS = np.zeros((rows, self.config.length or -(-max(map(len, encoded)) // 32) * 32), np.int32)
            lengths_B = np.zeros(rows, np.int32)
            for row, ids in enumerate(encoded):
                ids_BS[row, : len(ids)], lengths_B[row] = ids, len(ids)
            batch = {"tokens": ids_BS, "lengths": lengths_B}
            tokens_BKT, scores_BK, suffixes = self._runner(params, batch, jax.random.fold_in(key, i))
            for row in range(len(encoded)):
                continuations.append(self._continuations(tokens_BKT[row], scores_BK[row], [x_BK[row] for x_BK in suffixes]))
        return continuations

    def _encode(self, text: str) -> list[int]:
        plain = self.tokenizer.whole(text) or [self.tokenizer.end]  # nothing to begin with: a new document
        ids = self._chat.prompt([{"role": "user", "content": text}]) if self._chat else plain
        if self.longest and len(ids) + self.config.tokens > self.longest:
            raise DataError(
                f"a prompt of {len(ids)} tokens and a continuation of {self.config.tokens} are more than the model's "
                f"positions.rows={self.longest}"
            )
        if self.config.length and len(ids) > self.config.length:
            raise DataError(f"a prompt of {len(ids)} tokens is longer than {self.config.length}")
        return ids

    def _text(self, ids: list[int]) -> str:
        text = self.tokenizer.decode(ids)
        return text.partition("\n")[0] if self.config.line else text

    def _continuations(self, tokens_KT: np.ndarray, scores_K: np.ndarray, suffixes: Sequence[np.ndarray]) -> list[Continuation]:
        ids_by_sample = [[int(t) for t in row if t not in self._hidden] for row in tokens_KT]
        return [
            Continuation(self._text(ids), ids, float(scores_K[k]), [float(x_K[k]) for x_K in suffixes])
            for k, ids in enumerate(ids_by_sample)
        ]
