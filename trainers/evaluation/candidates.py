"""The model's own loss on held-out rows, and the likelihoods of the candidates after held-out prompts.

B rows, K candidates, T tokens of a candidate, S tokens of a prompt.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from data.candidates import CandidateSet, HasCandidates
from data.features import Feature, slots
from data.task import DataError
from models.parts.decoding import follow
from models.protocol import Batch, ContinuesText, Model
from models.sharding.params import Params
from trainers.evaluation.held_out import HeldOutEvaluator
from trainers.inference.runner import Runner


class CandidatesEvaluator(HeldOutEvaluator):
    """The scalars of HeldOutEvaluator, and the scores of a task's candidates (data/candidates.py).

    A prompt is read once for all its candidates, from a cache.
    """

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        super().__init__(model, e, cache, vocabulary)
        task = self.task
        if not isinstance(model, ContinuesText):
            raise DataError(f"models of family {model.c.family!r} do not continue text")
        if not isinstance(task, HasCandidates):
            raise DataError(f"data of kind {e.data.kind!r} has no candidates to tell apart")
        self.sets = task.candidate_sets(cache, vocabulary, e.eval)

        def likelihoods(model: Any, batch: Batch) -> jax.Array:
            tokens_BKT = batch["candidates"]
            return follow(model, model.start(batch, *tokens_BKT.shape[1:]), tokens_BKT)

        features = {"tokens": slots(-1), "lengths": Feature((), (), fill=1), "candidates": slots(-1, -1)}
        self._likelihoods = Runner(model, features, self.runner.rows, likelihoods)
        for s in self.sets:
            self.names += [f"eval/{name}" for name in s.scores([[np.zeros(len(ids)) for ids in group] for group in s.candidates])]

    def __call__(self, params: Params) -> dict[str, float]:
        scores = {name: value for s in self.sets for name, value in s.scores(self.log_probabilities(params, s)).items()}
        return super().__call__(params) | {f"eval/{name}": value for name, value in scores.items()}

    def log_probabilities(self, params: Params, s: CandidateSet) -> list[list[np.ndarray]]:
        """Returns the log-probability of each token of the candidates after their prompts."""
        longest, size = max(map(len, s.prompts)), max(len(ids) for group in s.candidates for ids in group)

        def padded(ids: Sequence[int], length: int) -> np.ndarray:
            return np.array([*ids, *[0] * (length - len(ids))], np.int32)

        rows = [
            {
                "tokens": padded(prompt, longest),
                "lengths": np.array(len(prompt), np.int32),
                "candidates": np.stack([padded(ids, size) for ids in group]),
            }
            for prompt, group in zip(s.prompts, s.candidates, strict=True)
        ]
        logp_NKT = self._likelihoods.map(params, rows)
        return [[logp_NKT[n, k, : len(ids)] for k, ids in enumerate(group)] for n, group in enumerate(s.candidates)]


EVALUATOR = CandidatesEvaluator
