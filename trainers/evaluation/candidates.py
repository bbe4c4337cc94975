"""The model's own loss on held-out rows, and the likelihoods of the candidates after held-out prompts.

B rows, K candidates, T tokens of a candidate, S tokens of a prompt.
"""

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

        features = {"tokens": slots(-1), "lengths": Feature((), ()), "candidates": slots(-1, -1)}
        self._likelihoods = Runner(model, features, self.runner.rows, likelihoods)

    @property
    def names(self) -> list[str]:
        """The scalars that a call returns."""
        nothing = ([[np.zeros(len(ids)) for ids in group] for group in s.candidates] for s in self.sets)
        own = [name for s, logps in zip(self.sets, nothing, strict=True) for name in s.scores(logps)]
        return [*super().names, *(f"eval/{name}" for name in own)]

    def __call__(self, params: Params) -> dict[str, float]:
        """Returns `eval/...` scalars."""
        scores = {name: value for s in self.sets for name, value in s.scores(self.log_probabilities(params, s)).items()}
        return super().__call__(params) | {f"eval/{name}": value for name, value in scores.items()}

    def log_probabilities(self, params: Params, s: CandidateSet) -> list[list[np.ndarray]]:
        """Returns the log-probability of each token of the candidates after their prompts."""
        longest, size = max(map(len, s.prompts)), max(len(ids) for group in s.candidates for ids in group)
        rows, log_probabilities = self.runner.rows, []
        for start in range(0, len(s.prompts), rows):
            prompts, groups = s.prompts[start : start + rows], s.candidates[start : start + rows]
            ids_BS, lengths_B = np.zeros((rows, longest), np.int32), np.ones(rows, np.int32)
            tokens_BKT = np.zeros((rows, len(groups[0]), size), np.int32)
            for row, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
                ids_BS[row, : len(prompt)], lengths_B[row] = prompt, len(prompt)
                for k, ids in enumerate(group):
                    tokens_BKT[row, k, : len(ids)] = ids
            batch = {"tokens": ids_BS, "lengths": lengths_B, "candidates": tokens_BKT}
            logp_BKT = self._likelihoods(params, batch)
            log_probabilities += [[logp_BKT[row, k, : len(ids)] for k, ids in enumerate(g)] for row, g in enumerate(groups)]
        return log_probabilities


EVALUATOR = CandidatesEvaluator
