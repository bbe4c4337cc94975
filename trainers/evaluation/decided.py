"""The model's metrics on a held-out split, scored with decisions that were made on another one."""

from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from data.task import DataError, Decides
from models.protocol import Model
from trainers.evaluation.evaluator import Params
from trainers.evaluation.held_out import HeldOutEvaluator


class DecidedEvaluator(HeldOutEvaluator):
    """The scalars of HeldOutEvaluator, where the task decides something first (data.task.Decides), such as a probability from
    which on an event counts as forecast: on the split `eval.decided_on`, so that what is scored did not choose."""

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        super().__init__(model, e, cache, vocabulary)
        config: Any = e.eval
        if not isinstance(self.task, Decides):
            raise DataError(f"data of kind {e.data.kind!r} decides nothing")
        self._decides: Decides = self.task
        same = config.decided_on == config.split
        self._others = None if same else self.task.held_out(cache, vocabulary, config.decided_on, config.limit)

    def __call__(self, params: Params) -> dict[str, float]:
        """Returns `eval/...` scalars."""
        totals, _ = self.measure(params, self.examples.rows)
        of = totals if self._others is None else self.measure(params, self._others.rows)[0]
        scores = self._means(totals) | self._decides.decided(totals, self._decides.decide(of))
        return {f"eval/{name}": score for name, score in (scores | {"examples": float(self.examples.count)}).items()}


EVALUATOR = DecidedEvaluator
