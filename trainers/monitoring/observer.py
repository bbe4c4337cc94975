"""Observers of a run: whatever watches the training loop without taking part in it (trainers/loop.py calls them)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

READING, STEPPING, EVALUATING, SAVING = "reading data", "stepping", "evaluating", "saving"
"""The phases of a step, in order."""


@dataclasses.dataclass(frozen=True)
class Logged:
    """The steps since the last log.

    Attributes:
      step: the newest of them.
      values: its metrics, as Python numbers (lists for vectors).
      work: units of work in a step, by unit: the mean of the steps. Throughput is reported in the first unit.
      seconds: what a step took, without the time of evaluations.
    """

    step: int
    values: dict[str, Any]
    work: dict[str, float]
    seconds: float


class Observer:
    """Base class of observers, whose methods do nothing; each is called at the event that it is named after.

    Attributes:
      target_met: whether the run may end, which is asked after each evaluation.
    """

    target_met = False

    def started(self) -> None:
        """All is compiled, and no batch is read."""

    def entered(self, step: int, phase: str) -> None:
        """A phase begins; `step` counts the steps done."""

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is dispatched; devices may still compute it and its metrics."""

    def fetched(self, step: int) -> None:
        """Every process has the metrics of the steps up to this one, which has not been judged yet: it may be rewound."""

    def interrupted(self) -> None:
        """Something else is about to be printed, or the run ends."""

    def logged(self, log: Logged) -> None:
        """Steps are logged."""

    def evaluated(self, step: int, scores: Mapping[str, float], more: bool) -> None:
        """The model is scored.

        Args:
          more: whether training continues if no observer's target is met.
        """

    def rewound(self, step: int) -> None:
        """The run has gone back to this step."""
