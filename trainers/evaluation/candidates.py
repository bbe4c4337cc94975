"""The model's own loss on held-out rows, and how likely it finds the candidates behind held-out prompts.

B rows, K candidates, T tokens of a candidate, S tokens of a prompt.
"""

import functools
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.experiment import Experiment
from data.candidates import CandidateSet, HasCandidates
from data.task import DataError
from models.parts.decoding import follow
from models.protocol import ContinuesText, Model
from models.sharding.params import with_params
from trainers.evaluation.evaluator import Params
from trainers.evaluation.held_out import HeldOutEvaluator


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
        mesh = model.scope.mesh

        @functools.partial(jax.jit, out_shardings=mesh and NamedSharding(mesh, P()))
        def likelihoods(params: Params, ids_BS: jax.Array, lengths_B: jax.Array, tokens_BKT: jax.Array) -> jax.Array:
            whole = with_params(model, params)
            state = whole.start({"tokens": ids_BS, "lengths": lengths_B}, *tokens_BKT.shape[1:])
            return follow(whole, state, tokens_BKT)

        self._likelihoods = likelihoods

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
        """Returns the log-probability of each token of the candidates behind their prompts."""
        longest, size = max(map(len, s.prompts)), max(len(ids) for group in s.candidates for ids in group)
        found = []
        for start in range(0, len(s.prompts), self.rows):
            prompts, groups = s.prompts[start : start + self.rows], s.candidates[start : start + self.rows]
            ids_BS, lengths_B = np.zeros((self.rows, longest), np.int32), np.ones(self.rows, np.int32)
            tokens_BKT = np.zeros((self.rows, len(groups[0]), size), np.int32)
            for row, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
                ids_BS[row, : len(prompt)], lengths_B[row] = prompt, len(prompt)
                for k, ids in enumerate(group):
                    tokens_BKT[row, k, : len(ids)] = ids
            logp_BKT = np.asarray(self._likelihoods(params, ids_BS, lengths_B, tokens_BKT))
            found += [[logp_BKT[row, k, : len(ids)] for k, ids in enumerate(g)] for row, g in enumerate(groups)]
        return found


EVALUATOR = CandidatesEvaluator
