"""Predicted minutes to an MLPerf target: the samples that the reference's runs took, times the seconds of a step.

The reference convergence points (RCPs) are those of the package mlperf-logging: for some sizes of a batch, the rows after which
each of its runs met the target. A step's time is measured or modelled (scripts.plan), with a relative error. Nothing is known of
whether a model trained here needs as many rows as the reference: the interval is that of the reference's runs and of the step.
"""

import dataclasses
import statistics

from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from models.errors import UserError
from trainers.measure.mlperf_benchmarks import Benchmark


@dataclasses.dataclass(frozen=True)
class Point:
    """A reference convergence point.

    Attributes:
      batch: rows of a batch.
      samples: rows to the target, of each run, in order.
    """

    batch: int
    samples: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean number of rows without the fewest and the most, as the score is made."""
        return statistics.fmean(self.samples[1:-1])


@dataclasses.dataclass(frozen=True)
class Minutes:
    """Predicted minutes from the start of a run to its target.

    Attributes:
      expected: of the reference's mean.
      low, high: of its fewest and most rows, with a step as much shorter and longer as its error says.
      steps: training steps to the target, on average.
      evaluations: how many there are, on average.
    """

    expected: float
    low: float
    high: float
    steps: float
    evaluations: float


def points(benchmark: Benchmark, ruleset: str) -> list[Point]:
    """Returns a benchmark's reference convergence points, smallest batch first; raises UserError where there are none."""
    try:
        records = RCP_Checker("training", ruleset, benchmark.name, False).rcp_data.values()
    except (KeyError, FileNotFoundError):
        raise UserError(f"MLPerf {ruleset} has no reference convergence points of {benchmark.name}") from None
    return [Point(record["BS"], tuple(sorted(map(int, record["Epochs to converge"])))) for record in records]


def at(benchmark: Benchmark, ruleset: str, batch: int) -> Point:
    """Returns the point of a batch; raises UserError with the nearest batch that has one."""
    known = {point.batch: point for point in points(benchmark, ruleset)}
    if batch not in known:
        nearest = min(known, key=lambda other: abs(other - batch))
        raise UserError(
            f"batch {batch}: {benchmark.name} of MLPerf {ruleset} has reference points of {', '.join(map(str, known))}; "
            f"the nearest is {nearest}"
        )
    return known[batch]


def predict(
    benchmark: Benchmark, ruleset: str, point: Point, seconds: float, *, error: float, evaluation: float = 0.0
) -> Minutes:
    """Returns the minutes to the target at a batch that has a reference point.

    Args:
      seconds: of a training step.
      error: its relative error, 0 to 1.
      evaluation: seconds of one evaluation; how often there is one say the rules.
    """
    every, first = benchmark.evaluations(point.batch, ruleset)

    def evaluations(samples: float) -> float:
        return max(1.0, (samples / point.batch - first) / every + 1)

    def minutes(samples: float, factor: float) -> float:
        return (samples / point.batch * seconds + evaluations(samples) * evaluation) * factor / 60

    return Minutes(
        expected=minutes(point.mean, 1.0),
        low=minutes(point.samples[0], 1 - error),
        high=minutes(point.samples[-1], 1 + error),
        steps=point.mean / point.batch,
        evaluations=evaluations(point.mean),
    )
