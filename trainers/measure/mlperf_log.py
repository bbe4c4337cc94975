"""MLPerf's logs: `:::MLLOG` lines about a run, written by MLPerf's own logging package, in a new file for each attempt.

A run with a log (`--mlperf DIR`) ends as soon as an evaluation meets the target of its benchmark, with status "success"; a run
that ends otherwise, with all steps done, by a signal or by an error, has status "aborted". Every field comes from the run itself:
its experiment, its data, its devices and the clock.

This differs from a submission's rules: before the run's clock starts, the held-out examples and the index of the training
rows are read; a run that starts from given weights starts its optimizer and its schedule anew.
"""

import dataclasses
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from configs import registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from data.kinds import task_of
from data.reading import caches
from models.errors import UserError
from trainers import runlog
from trainers.audit.redaction import redacted_values
from trainers.evaluation.evaluator import Evaluator
from trainers.measure import mlperf_benchmarks, mlperf_rules, mlperf_system
from trainers.measure.mlperf_benchmarks import Benchmark
from trainers.monitoring.observer import EVALUATING, Logged, Observer
from trainers.runtime.processes import any_process
from trainers.weights import init_from

_ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The user's request for a log.

    Attributes:
      folder: where result_0.txt, result_1.txt and so on are written; created if it is missing.
      org: the submitter; "" is the user who runs the command.
      division: "closed" if model, data and optimizer are those of MLPerf's reference, which only the user knows; else "open".
      target: the score to reach where the benchmark has no fixed one; see mlperf_rules.benchmark.
      ruleset: the ruleset that the log follows; "" is the newest that has the benchmark.
      began: when the command started, in seconds since 1970.
    """

    folder: Path
    org: str = ""
    division: str = "open"
    target: float | None = None
    ruleset: str = ""
    began: float = dataclasses.field(default_factory=time.time)


class _File(logging.FileHandler):
    """A log's file, whose errors end the run; logging's own handlers print a traceback of each and go on."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise


class Attempt(Observer):
    """The log of one attempt, written as it runs; without a path it writes nothing.

    Leaving its context ends the attempt: as aborted if the target was not met; the file is removed if the run never started.

    Attributes:
      step: the number of steps done.
      target_met: whether the run may end.
    """

    def __init__(self, benchmark: Benchmark | None = None, batch_size: int = 0, path: Path | None = None):
        """Opens the log.

        Args:
          path: an existing, empty file to write to; None for no log.
        """
        self.benchmark, self.path = benchmark, path
        self.step, self.target_met = 0, False
        self._batch_size, self._started, self._in_block, self._stopped = batch_size, False, False, False
        self._handler = self._log = None
        if path:
            # The package's own logger would print.
            from mlperf_logging.mllog.mllog import MLLogger

            self._handler = _File(path, encoding="utf-8")
            logger = logging.Logger("mlperf")
            logger.addHandler(self._handler)
            self._log = MLLogger(logger, default_stack_offset=2, root_dir=str(_ROOT))

    def _write(self, kind: str, key: str, value: Any = None, when: float | None = None, **metadata: Any) -> None:
        if self._log and self.path:
            with runlog.names_full_disks(self.path):
                getattr(self._log, kind)(key, redacted_values(value), metadata=metadata, time_ms=when and int(1000 * when))

    @property
    def _samples(self) -> int:
        return self.step * self._batch_size

    # --- events of the run

    def started(self) -> None:
        self.start()

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.step = step

    def logged(self, log: Logged) -> None:
        self.stats(log.values["loss"], log.seconds)

    def entered(self, step: int, phase: str) -> None:
        if phase == EVALUATING:
            self.eval_start()

    def evaluated(self, step: int, scores: Mapping[str, float], more: bool) -> None:
        self.eval_stop(scores, more)

    # --- lines of the log

    def describe(self, began: float, values: Mapping[str, Any]) -> None:
        """Logs the description of the run, whose initialization began at `began`."""
        self._write("start", "init_start", when=began)
        for key, value in values.items():
            self._write("event", key, value)

    def start(self, when: float | None = None) -> None:
        """Starts the clock, now or at `when`: all processes wait for each other, with all compiled and no batch read."""
        if self.benchmark and when is None:
            any_process(False)
        self._write("end", "init_stop", when=when)
        self._write("start", "run_start", when=when)
        self._started = True
        self._start_block(when)

    def _start_block(self, when: float | None = None) -> None:
        self._write("start", "block_start", when=when, samples_count=self._samples)
        self._in_block = True

    def _stop_block(self, when: float | None = None) -> None:
        if self._in_block:
            self._write("end", "block_stop", when=when, samples_count=self._samples)
        self._in_block = False

    def stats(self, loss: float | None, seconds: float, when: float | None = None) -> None:
        """Logs throughput in rows a second and seconds a step, both since the last call, and the newest step's loss."""
        values = {"throughput": self._batch_size / seconds, "step_time": seconds}
        values |= {} if loss is None else {"reduced_train_loss": loss}
        self._write("event", "tracked_stats", values, when=when, samples_count=self._samples, step=self.step)

    def eval_start(self) -> None:
        self._stop_block()
        self._write("start", "eval_start", **self._position())

    def eval_stop(self, scores: Mapping[str, float], more: bool) -> None:
        """Logs the score, and ends the run if it meets the target.

        Args:
          scores: the evaluator's scores.
          more: whether training continues if the target is not met.
        """
        if self.benchmark and self.benchmark.metric:
            score = scores[self.benchmark.metric]
            self._write("event", "eval_accuracy", score, **self._position())
            self.target_met = self.benchmark.met(score)
        self._write("end", "eval_stop", **self._position())
        if self.target_met:
            self._stop("success")
        elif more:
            self._start_block()

    def _position(self) -> dict[str, int]:
        # BERT's and GPT-3's rules place evaluations by "epoch_num", for which their references count samples too.
        return {"epoch_num": self._samples, "samples_count": self._samples}

    def _stop(self, status: str, when: float | None = None) -> None:
        self._stop_block(when)
        self._write("end", "run_stop", when=when, status=status, samples_count=self._samples)
        self._stopped = True

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._started and not self._stopped:
            self._stop("aborted")
        if self._handler:
            self._handler.close()
        if self.path and not self._started:
            self.path.unlink()


def attempt(request: Request | None, e: Experiment, evaluator: Evaluator | None, workdir: Path) -> Attempt:
    """Returns the log of a run that is about to start, an empty one without a request. All processes call this, the first writes.

    Raises:
      ConfigError: the run is no benchmark, the rules would refuse its log with any score, or it resumes.
      OSError: the log cannot be written.
    """
    if request is None:
        return Attempt()
    refused: Exception | None = None
    benchmark, path, values = None, None, {}
    try:
        if any((workdir / "checkpoints").glob("[0-9]*")):
            raise ConfigError(f"an MLPerf attempt starts at step 0, {workdir} has checkpoints; choose another --workdir")
        benchmark = mlperf_rules.benchmark(e, request.target)
        values = _description(request, e, benchmark, evaluator)
        if jax.process_index() == 0:
            _check_in_advance(request, e, benchmark, values)
            _check_seed(request, values)
            path = new_log(request.folder)
            mlperf_system.write(request.folder, values)
    except (UserError, OSError) as error:
        refused = error
    if any_process(refused is not None):  # before another process waits for one that has failed
        if path:
            path.unlink()
        raise refused or ConfigError("another process refuses to write an MLPerf log; it says why")
    log = Attempt(benchmark, values["global_batch_size"] if benchmark else 0, path)
    log.describe(request.began, values | {"cache_clear": clear_cache(e)})
    return log


def _description(request: Request, e: Experiment, benchmark: Benchmark, evaluator: Evaluator | None) -> dict[str, Any]:
    """Returns the log's values for a run before it starts, by key, without those that the run does not have."""
    values = {
        "submission_benchmark": benchmark.name,
        "submission_division": request.division,
        "submission_org": request.org or runlog.user(),
        "submission_platform": f"{e.layout.devices}x {jax.devices()[0].device_kind}",
        "ruleset": mlperf_rules.ruleset(benchmark, request.ruleset),
        "experiment": e.name,
        "config_filename": registry.file_of(e.name),
        "config_hash": runlog.config_hash(e),
        **mlperf_rules.settings(e, benchmark),
    }
    if e.data.cache:
        manifest = caches.read_manifest(caches.cache_folder(e.data))
        values["train_samples"] = task_of(e.data).rows(manifest)
    if evaluator and benchmark.metric:
        if benchmark.metric not in evaluator.names:
            raise ConfigError(
                f"{e.name}: MLPerf's {benchmark.name} scores {benchmark.metric}, which its evaluation does not give"
            )
        values["eval_samples"] = evaluator.samples
    if (step := init_from.newest_step(e.train.finetune.init_from)) is not None:
        values["init_checkpoint_step"] = step
    return values


def _check_in_advance(request: Request, e: Experiment, benchmark: Benchmark, values: dict[str, Any]) -> None:
    """Refuses a run whose log would not pass even if it met its target: a made-up log of such a run is checked; and, in the
    closed division, a run that differs in what the rules fix and the checker does not see."""
    ruleset, evaluations = values["ruleset"], mlperf_rules.first_evaluation(e)

    def check(division: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = new_log(Path(folder))
            with Attempt(benchmark, values["global_batch_size"], path) as log:
                log.describe(time.time(), values | {"submission_division": division, "cache_clear": False})
                log.start(time.time())
                log.step = evaluations[1] if benchmark.every else 1
                log.stats(1.0, 1.0)
                if benchmark.target is not None:
                    log.eval_start()
                    log.eval_stop({benchmark.metric: benchmark.target}, more=False)
            lines = mlperf_rules.complaints(path)
        fixed = mlperf_benchmarks.broken(benchmark, ruleset, values, evaluations) if division == "closed" else {}
        return [*lines, *(line for key, line in fixed.items() if not any(key in other for other in lines))]

    if refusals := check(request.division):
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        other = "open" if request.division == "closed" else "closed"
        hint = "" if check(other) else f"; choose --mlperf-division {other}"
        raise ConfigError(f"{e.name} is no {request.division} {benchmark.name} of MLPerf {ruleset}: {refusals[0]}{more}{hint}")


def _check_seed(request: Request, values: dict[str, Any]) -> None:
    """Raises ConfigError for a closed attempt whose seed another attempt in the folder has: MLPerf refuses both together."""
    if request.division != "closed":
        return
    logs = {path.name: mlperf_rules.read(path) for path in sorted(request.folder.glob("result_*.txt"))}
    taken = {mlperf_rules.value(events, "seed"): name for name, events in logs.items()}
    if (seed := values["seed"]) in taken:
        free = next(n for n in itertools.count() if n not in taken)
        raise ConfigError(
            f"--train.seed {seed}: {request.folder / taken[seed]} has it, and no two attempts may; nearest is {free}"
        )


def new_log(folder: Path) -> Path:
    """Creates an empty FOLDER/result_N.txt, with the first free number N, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in itertools.count():
        try:
            path = folder / f"result_{n}.txt"
            path.open("x").close()
            return path
        except FileExistsError:
            continue
    raise AssertionError


def clear_cache(e: Experiment) -> bool:
    """Drops the pages of the experiment's data from this machine's page cache; returns whether that was done.

    MLPerf requires cold caches. The kernel drops the clean pages of an unmapped file on request, which needs no privilege; pages
    of other files stay. An experiment on random tokens reads no files, and nothing is dropped.
    """
    if not e.data.cache or not hasattr(os, "posix_fadvise"):
        return False
    for path in caches.cache_folder(e.data).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # only clean pages are dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


# --- throughput alone --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Window:
    """Steps that were timed together: from `start` to `stop`, in seconds since 1970, and the last one's loss."""

    start: float
    stop: float
    steps: int
    loss: float | None = None


def throughput(e: Experiment, request: Request, windows: Sequence[Window]) -> Path:
    """Writes timed windows as a log of benchmark "throughput", and returns its path.

    Only the first process may call this.

    Args:
      windows: the windows in order; time between them is not counted.

    Raises:
      ConfigError: nothing was timed, or the rules refuse the log.
    """
    if not windows:
        raise ConfigError(f"{e.name}: no window was timed, so there is no throughput to log")
    benchmark = mlperf_benchmarks.THROUGHPUT
    values = _description(request, e, benchmark, None)
    _check_in_advance(request, e, benchmark, values)
    path = new_log(request.folder)
    with Attempt(benchmark, e.data.batch_size, path) as log:
        log.describe(request.began, values | {"cache_clear": False})
        log.start(windows[0].start)
        for window in windows:
            log.step += window.steps
            log.stats(window.loss, (window.stop - window.start) / window.steps, window.stop)
        log._stop("aborted", windows[-1].stop)
    return path
