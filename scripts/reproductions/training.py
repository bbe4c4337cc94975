"""Trained reproductions: arms, which are experiments of configs/ with overrides, each trained over a few seeds.

A run is the trainer's own, in FOLDER/ARM-seedN: a run that was stopped goes on from its checkpoint, and a finished one is not
trained again. All results are read from what runs logged (metrics.jsonl, run.jsonl) or computed from their checkpoints.
"""

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from configs.overrides import override
from data.paths import write_whole
from scripts import cli
from scripts.reproductions import at_once
from scripts.reproductions.entry import ReproductionError, Row

SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One side of a comparison: what is trained, under a name that its folders and rows have."""

    name: str
    experiment: Experiment


def arm(name: str, base: Experiment, *overrides: str) -> Arm:
    """Returns an experiment as an arm, with fields changed as on a command line: `--train.steps=100`."""
    return Arm(name, override(base, overrides))


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
      diverged: whether it gave up after too many steps without a finite loss.
      lines: what it logged, a mapping for each step or evaluation.
    """

    workdir: Path
    diverged: bool
    lines: Sequence[Mapping[str, Any]]

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Returns (step, value) of a metric wherever it was logged and finite."""
        return [(line["step"], float(line[metric])) for line in self.lines if line.get(metric) is not None]

    def last(self, metric: str) -> float:
        """Returns the last value of a metric; raises ReproductionError where none was logged."""
        if not (values := self.curve(metric)):
            raise ReproductionError(f"{self.workdir} has logged no {metric}; delete the folder to train it again")
        return values[-1][1]


def shortened(e: Experiment, steps: int, *overrides: str, evaluations: int = 0, warm: bool = True) -> Experiment:
    """Returns an experiment of so many steps, at the end of which its schedule has ended, with a checkpoint at half of them.

    Args:
      overrides: further fields, as on a command line.
      evaluations: how often it is evaluated; 0 is once, at the end.
      warm: whether a tenth of the steps warm up, instead of as many as the experiment has.
    """
    fields = [
        f"--train.steps={steps}",
        f"--optimizer.schedule.steps={steps}",
        f"--train.checkpoint.every={steps // 2}",
        "--train.checkpoint.keep=1",
        f"--train.eval_every={steps // evaluations if evaluations else 0}",
    ]
    if warm:
        fields.append(f"--optimizer.schedule.warmup={steps // 10}")
    return override(e, [*fields, *overrides])


Runs = dict[str, list[Run]]  # by the arm's name, in the order of seeds


def train(folder: Path, arms: Sequence[Arm], seeds: Sequence[int] = SEEDS) -> Runs:
    """Trains every arm with every seed, which initialises weights and orders data, so that arms can be compared seed by seed.

    Raises:
      ReproductionError: a run was stopped by a signal, or its folder holds a run with other settings.
    """
    _set_up(arms)
    every = {folder / f"{arm.name}-seed{seed}": _seeded(arm.experiment, seed) for seed in seeds for arm in arms}
    at_once.call(_run, [(workdir, e) for workdir, e in every.items() if _ended(workdir, e) is None])
    runs: Runs = {arm.name: [] for arm in arms}
    for seed in seeds:
        for arm in arms:
            workdir = folder / f"{arm.name}-seed{seed}"
            runs[arm.name].append(_run(workdir, every[workdir]))
    return runs


def _set_up(arms: Sequence[Arm]) -> None:
    """Prepares the data of all arms, and simulated devices where JAX has not looked for any."""
    from scripts.train import prepare

    cli.use_devices(cli.SIMULATED)
    caches = {arm.experiment.data.cache: arm.experiment for arm in arms}
    for e in caches.values():
        prepare(e)


def _seeded(e: Experiment, seed: int) -> Experiment:
    data: Any = e.data
    return dataclasses.replace(e, train=dataclasses.replace(e.train, seed=seed), data=dataclasses.replace(data, seed=seed))


def _run(workdir: Path, e: Experiment) -> Run:
    from trainers import runlog, trainer
    from trainers.monitoring import metrics

    ended = _ended(workdir, e)
    if ended is None:
        import jax

        print(f"{workdir.name}: {e.train.steps} steps", flush=True)
        workdir.parent.mkdir(parents=True, exist_ok=True)
        code = trainer.train(e, workdir, devices=jax.devices()[: e.layout.devices])
        if code not in (runlog.DONE, runlog.DIVERGED):
            raise ReproductionError(f"{workdir} was stopped (exit code {code}); run the same command to go on")
        ended = code
    return Run(workdir, ended == runlog.DIVERGED, metrics.read(workdir))


def _ended(workdir: Path, e: Experiment) -> int | None:
    """Returns the exit code of a run that has nothing more to do; None where it has to be started, or to go on.

    Raises:
      ReproductionError: the folder's run has other settings.
    """
    from trainers import runlog

    events = runlog.events(workdir)
    starts = [event for event in events if event.get("event") == "start"]
    if starts and starts[-1].get("config") != runlog.config_hash(e):
        raise ReproductionError(f"{workdir} holds a run with other settings: delete it, or choose another --workdir")
    stops = [event.get("exit_code") for event in events if event.get("event") == "stop"]
    return stops[-1] if stops and stops[-1] in (runlog.DONE, runlog.DIVERGED) else None


def kept(run: Run, name: str, compute: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Returns what is computed from a finished run's weights, from a file beside them if it is there."""
    file = run.workdir / f"{name}.json"
    if not file.exists():
        write_whole(file, json.dumps(compute(), indent=1))
    return json.loads(file.read_text())


def evaluated(run: Run, name: str, change: Callable[[Experiment], Experiment] = lambda e: e) -> dict[str, float]:
    """Returns held-out scores of a finished run, evaluated with fields of its experiment changed."""

    def compute() -> dict[str, float]:
        from trainers.weights.load_any import open_model

        e, weights = open_model(run.workdir)
        return _scores(change(e), weights)

    return kept(run, name, compute)


def started(folder: Path, arm: Arm) -> dict[str, float]:
    """Returns held-out scores of the weights that an arm's runs start from, from a file in the folder if it is there."""
    _set_up([arm])

    def compute() -> dict[str, float]:
        from trainers.weights.init_from import located
        from trainers.weights.load_any import open_weights

        return _scores(arm.experiment, open_weights(located(arm.experiment.train.finetune.init_from)))

    return kept(Run(folder, False, ()), f"{arm.name}-start", compute)


def _scores(e: Experiment, weights: Any) -> dict[str, float]:
    """Returns held-out scores of weights (trainers.weights.source.Weights) by an experiment's evaluation."""
    from data.reading.caches import cache_folder
    from trainers.evaluation.evaluator import open_evaluator
    from trainers.inference.load import load

    served = load(weights, e.execution, config=e.model)
    cache = cache_folder(e.data)
    return dict(open_evaluator(served.model, e, cache, cache)(served.params))


# --- error bars --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error, which is None of a single seed, with the error's degrees of freedom."""

    value: float
    error: float | None
    freedom: float = math.inf

    def __str__(self) -> str:
        return f"{self.value:.4g}" if self.error is None else f"{self.value:.4g} +- {self.error:.2g}"


def mean(values: Sequence[float]) -> Mean:
    """Returns the mean, and the sample's standard deviation over the root of the number of values."""
    if len(values) == 1:
        return Mean(values[0], None)
    return Mean(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1)


def differences(first: Sequence[float], second: Sequence[float] | float) -> list[float]:
    """Returns first less second, seed by seed, or less a figure that no seed changes."""
    others = [float(second)] * len(first) if isinstance(second, int | float) else second
    return [a - b for a, b in zip(first, others, strict=True)]


def less(first: Sequence[float], second: Sequence[float] | float) -> Mean:
    """Returns the mean of `differences`: what seeds share (the order of data) does not add to the error."""
    return mean(differences(first, second))


def sampled(difference: Mean, *errors: float) -> Mean:
    """Returns a difference whose error has, beside that over seeds, those of the held-out samples that its figures come from,
    taken as independent and large; degrees of freedom as Welch and Satterthwaite give them."""
    seeds = difference.error or 0.0
    error = math.hypot(seeds, *errors)
    return Mean(difference.value, error, difference.freedom * (error / seeds) ** 4 if seeds else math.inf)


def below(difference: Mean, bound: float) -> Mean:
    """Returns how far a difference is above a bound, which it stays below where the result is negative."""
    return dataclasses.replace(difference, value=difference.value - bound)


def measured(
    label: str,
    values: Sequence[float],
    paper: float | str | None = None,
    differs: str = "",
    *,
    series: str = "",
    at: float | None = None,
) -> Row:
    """Returns the row of a figure over seeds. It is not compared: at another size only the direction can be the paper's."""
    ours = mean(values)
    return Row(label, paper, ours.value, differs, error=ours.error, freedom=ours.freedom, series=series, at=at, compared=False)


def claim(label: str, difference: Mean, sign: int, paper: float | str | None = None, differs: str = "") -> Row:
    """Returns the row of a difference that the paper says is on one side of zero, `sign` +1 or -1.

    It comes out where it is surely on that side (Row.surely); where not, the row says which of the two is missing.
    """
    row = Row(
        label,
        paper if paper is not None else ("above 0" if sign > 0 else "below 0"),
        difference.value,
        differs,
        error=difference.error,
        freedom=difference.freedom,
        sign=sign,
    )
    if row.comes_out or row.surely is None:
        return row
    opposite = abs(difference.value) > row.surely
    reason = "surely the other way round" if opposite else f"0 is in its interval of 95 %, +- {row.surely:.2g}"
    return dataclasses.replace(row, differs=f"{reason}; {differs}" if differs else reason)


def step_to(run: Run, metric: str, goal: float) -> float:
    """Returns the step at which a falling metric first reaches a goal, between two evaluations by a line; infinity if never."""
    before: tuple[int, float] | None = None
    for step, value in run.curve(metric):
        if value <= goal:
            if before is None or before[1] == value:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - value)
        before = step, value
    return math.inf


def values(runs: Sequence[Run], metric: str) -> list[float]:
    """Returns the last value of a metric of each run."""
    return [run.last(metric) for run in runs]


def curve_rows(runs: Runs, metric: str) -> list[Row]:
    """Returns a metric of every arm over steps, as rows that a picture draws."""
    rows = []
    for name, of_arm in runs.items():
        curves = [dict(run.curve(metric)) for run in of_arm]
        steps = sorted(functools.reduce(lambda a, b: a & b, (set(curve) for curve in curves)))
        rows += [measured(f"{name}, step {n}", [curve[n] for curve in curves], series=name, at=n) for n in steps]
    return rows
