"""Scores of held-out conversations: perplexity, ratings of whole conversations, ranks of true responses among others.

B rows, K candidates, T tokens of a candidate, S tokens of a prompt.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.experiment import Experiment
from data.dialog import encoding, metrics
from data.dialog.format import ATTRIBUTES
from data.reading.caches import examples, read_manifest
from data.task import DataError
from data.vocabularies.tokenizers import Tokenizer
from models.parts.decoding import follow
from models.protocol import ContinuesText, Model
from models.sharding.params import merge
from trainers.evaluation.evaluator import Params
from trainers.evaluation.held_out import HeldOutEvaluator

_PAD = -1


class RateAndRankEvaluator:
    """See data.dialog.config.RateAndRank; conversations and others are the same every time."""

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        if not isinstance(model, ContinuesText):
            raise DataError(f"models of family {model.c.family!r} do not continue text")
        config: Any = e.eval
        self.held_out = HeldOutEvaluator(model, e, cache, vocabulary)
        self.rows, self.tokens, length = config.batch_size, config.tokens, read_manifest(cache)["length"]
        tokenizer = Tokenizer(vocabulary)
        conversations = list(examples(cache, config.split))
        rated = [c for c in conversations if c["ratings"]][: config.limit or None]
        pairs = [encoding.ratings(name, tokenizer) for name in ATTRIBUTES]
        room = max(len(ids) for pair in pairs for ids in pair)
        # Every rating is two candidates, which differ in the last token.
        self.suffixes = [ids for pair in pairs for ids in pair]
        self.judged = [encoding.judged(c["turns"], tokenizer, length - room) for c in rated]
        self.labels = {name: [c["ratings"][name] for c in rated] for name in ATTRIBUTES}
        self.prompts, self.candidates = self._to_rank(conversations, config, tokenizer, length)
        mesh = model.where.mesh

        @functools.partial(jax.jit, out_shardings=mesh and NamedSharding(mesh, P()))
        def likelihoods(params: Params, ids_BS: jax.Array, lengths_B: jax.Array, tokens_BKT: jax.Array) -> jax.Array:
            whole = merge(model, params)
            count, steps = tokens_BKT.shape[1:]
            state = whole.start(ids_BS, lengths_B, count, steps)
            return follow(whole, state, jnp.maximum(tokens_BKT, 0))

        self._likelihoods = likelihoods

    def _to_rank(
        self, conversations: Sequence[dict[str, Any]], config: Any, tokenizer: Tokenizer, length: int
    ) -> tuple[list[list[int]], list[list[list[int]]]]:
        """Returns prompts, and for each its candidates: the true response, then those of other conversations."""
        if len(conversations) <= config.others:
            raise DataError(f"{len(conversations)} conversations are too few for eval.others={config.others}")
        rng, prompts, candidates = np.random.default_rng(0), [], []
        for i, c in enumerate(conversations[: config.responses]):
            elsewhere = [j for j in range(len(conversations)) if j != i]
            chosen = [conversations[j] for j in rng.choice(elsewhere, config.others, replace=False)]
            turns = [c["turns"][-1], *(rng.choice(other["turns"]) for other in chosen)]
            candidates.append([encoding.response(turn, tokenizer, config.tokens) for turn in turns])
            prompts.append(encoding.fitting_prompt(c["turns"][:-1], tokenizer, length - config.tokens))
        return prompts, candidates

    @property
    def names(self) -> list[str]:
        """The scalars that a call returns."""
        own = [*(f"auc_{name}" for name in ATTRIBUTES), *metrics.ranks(np.zeros((1, 2)))]
        return [*self.held_out.names, *(f"eval/{name}" for name in own)]

    @property
    def samples(self) -> int:
        """How many held-out conversations a call scores."""
        return self.held_out.samples

    def __call__(self, params: Params) -> dict[str, float]:
        """Returns `eval/...` scalars."""
        scores: dict[str, float] = {}
        rated = [
            [float(logp[-1]) for logp in logps]
            for logps in self._follow(params, self.judged, [self.suffixes] * len(self.judged))
        ]
        for i, name in enumerate(ATTRIBUTES):
            scores[f"auc_{name}"] = metrics.auc(self.labels[name], [x[2 * i + 1] - x[2 * i] for x in rated])
        ranked = self._follow(params, self.prompts, self.candidates)
        scores |= metrics.ranks(np.array([[np.mean(logp) for logp in logps] for logps in ranked]))
        return self.held_out(params) | {f"eval/{name}": value for name, value in scores.items()}

    def report(self, params: Params, *, details: bool = False) -> tuple[dict[str, Any], str]:
        """Returns the scalars under "all", and a line for each."""
        del details
        scores = {name.removeprefix("eval/"): value for name, value in self(params).items()}
        return {"all": scores}, "\n".join(f"{name:28} {value:14.4f}" for name, value in scores.items())

    def _follow(
        self, params: Params, prompts: Sequence[list[int]], candidates: Sequence[Sequence[list[int]]]
    ) -> list[list[np.ndarray]]:
        """Returns the log-probabilities of each candidate's tokens behind its prompt."""
        found = []
        longest = max(map(len, prompts))
        for start in range(0, len(prompts), self.rows):
            some, theirs = prompts[start : start + self.rows], candidates[start : start + self.rows]
            size = max(len(ids) for ids in (ids for row in candidates for ids in row))
            ids_BS, lengths_B = np.zeros((self.rows, longest), np.int32), np.ones(self.rows, np.int32)
            tokens_BKT = np.full((self.rows, len(theirs[0]), size), _PAD, np.int32)
            for row, (prompt, tokens) in enumerate(zip(some, theirs, strict=True)):
                ids_BS[row, : len(prompt)], lengths_B[row] = prompt, len(prompt)
                for k, ids in enumerate(tokens):
                    tokens_BKT[row, k, : len(ids)] = ids
            logp_BKT = np.asarray(self._likelihoods(params, ids_BS, lengths_B, tokens_BKT))
            for row, tokens in enumerate(theirs):
                found.append([logp_BKT[row, k, : len(ids)] for k, ids in enumerate(tokens)])
        return found


EVALUATOR = RateAndRankEvaluator
