"""The trainer of all experiments, in the order of a run: set-up, plan, data, state, compilation, loop, end.

It is independent of the family and the kind of data: models.protocol is the contract of a model, data.task that of data, and
`trainers.evaluation` scores as the experiment's `eval` says.
"""

import contextlib
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from configs.experiment import Experiment
from configs.registry import ConfigError
from data.kinds import task_of
from data.reading.batches import Batches
from data.reading.caches import cache_folder
from data.reading.examples import open_source
from data.stages import quiet_libraries
from models.errors import nearest
from models.families import family_of
from trainers import distillation, runlog, step
from trainers.checkpoints import bucket
from trainers.checkpoints.manager import Checkpoints
from trainers.evaluation.evaluator import Evaluator, open_evaluator
from trainers.loop import Loop
from trainers.measure import mlperf_log
from trainers.monitoring import metrics, stalls, wandb
from trainers.monitoring.corruption import Checker
from trainers.monitoring.goodput import COMPILE
from trainers.monitoring.hosts import HostLog
from trainers.monitoring.ledger import Ledger
from trainers.monitoring.spikes import Spikes
from trainers.plan import Plan, fresh_state, make_plan
from trainers.runlog import DONE
from trainers.runtime import host_memory, processes
from trainers.weights import init_from


def train(
    experiment: Experiment,
    workdir: Path,
    log: mlperf_log.Request | None = None,
    devices: Sequence[Any] | None = None,
    began: float | None = None,
) -> int:
    """Trains until the last step, a signal, or a fault that it cannot go on from; resumes the run in `workdir`, if there is one.

    Args:
      log: requests an MLPerf log of the run, which then also ends when it meets its benchmark's target.
      devices: the devices of the mesh; all by default.
      began: when the command started, in seconds since 1970; now by default.

    Returns:
      An exit code: DONE, PREEMPTED, DIVERGED or CORRUPTED.
    """
    with stalls.Watch(workdir, experiment.train.faults.stall_seconds) as watch:
        return _train(experiment, workdir, log, devices, began or time.time(), watch)


def _train(
    experiment: Experiment,
    workdir: Path,
    log: mlperf_log.Request | None,
    devices: Sequence[Any] | None,
    began: float,
    watch: stalls.Watch,
) -> int:
    train, leader = experiment.train, jax.process_index() == 0
    mlperf = repr(log and (log.division, log.target, log.ruleset))
    processes.agree(runlog.shared_settings(experiment, workdir) | {"--mlperf": mlperf})

    # --- 1. the plan: shapes and shardings before any array
    plan = make_plan(experiment, devices)
    say(summary(plan))

    # --- 2. the store's permissions, and data
    processes.jointly(functools.partial(bucket.check, train.checkpoint.folder, writes=True))
    source = processes.jointly(open_source, experiment.data, experiment.model)
    processes.agree({"the data's fingerprint": source.fingerprint})
    cache = cache_folder(experiment.data) if experiment.data.cache else None
    evaluator = cache and open_evaluator(plan.model, experiment, cache, vocabulary=cache)  # random data is not held out
    check_settings(experiment, log, evaluator)
    if evaluator and not evaluator.samples:
        say(f"not evaluated: split {experiment.eval.split!r} of cache {experiment.data.cache!r} holds no examples")
        evaluator = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(runlog.only_run(workdir, leader, train.checkpoint.folder))
        stop = stack.enter_context(processes.stop_signals())
        batches = Batches(source, experiment.data, plan.batch_shardings(), train.workers)
        stack.callback(batches.close)
        attempt = stack.enter_context(mlperf_log.attempt(log, experiment, evaluator, workdir))
        board = stack.enter_context(processes.jointly(wandb.open_run, experiment, workdir, leader, say))

        # --- 3. the newest sound checkpoint, a release's weights, or fresh ones
        quiet_libraries()
        checkpoints = Checkpoints(workdir, train.checkpoint, task_of(experiment.data).directions, say)
        watch.last_words = checkpoints.last_words
        restored = checkpoints.restore(plan, source.fingerprint)
        state = restored or init_from.new_state(plan, cache, say)
        start, taught = int(state.step), init_from.newest_step(train.distillation.teacher)
        processes.agree({"the step of the teacher's newest checkpoint": str(taught)})
        distillation.check_step(experiment, runlog.events(workdir) if restored else (), taught)
        teach = distillation.teacher(plan, cache)
        say(f"starting at step {start}{f' from {checkpoints.origin}' if restored else ''}")
        of_data = {"data": source.fingerprint} | ({"teacher_step": taught} if taught is not None else {})
        record = runlog.Record(workdir, experiment, leader, restored=start if restored else None, began=began, **of_data)
        if record.resized:
            say(f"going on with {jax.process_count()} processes; the last start had {record.resized}")
        stack.push(record)
        ledger = Ledger(workdir, began, start, train.log_every)
        stack.callback(ledger.close, say)
        stack.callback(checkpoints.close)  # before the record ends: waits for the save under way, which may fail
        if start >= train.steps:
            checkpoints.tidy()  # no save will do it
            checkpoints.end_local()
            say(f"all {train.steps} steps are done")
            return record.end(DONE, start)

        # --- 4. one compiled step
        ledger.enter(COMPILE)
        then = time.perf_counter()
        compiled = step.compile_step(plan)
        checker = Checker(plan, compiled)
        host_memory.keep()
        say(f"compiled the step in {time.perf_counter() - then:.1f} s")
        spikes = Spikes(workdir, train.faults, start)
        processes.agree({"rewinds and losses in the run's folder": spikes.state()})
        processes.wait_for_all("compiled the step")

        # --- 5. the loop, and what watches it
        writer = metrics.MetricWriter(workdir, start) if leader else None
        stack.callback(lambda: writer and writer.close())
        stack.push(watch.explain)  # before anything is closed, which would wait for a process that is lost
        progress = [metrics.Progress(train.steps)] if leader else []
        observers = [watch, ledger, HostLog(workdir, batches, ledger), *progress, attempt, board, *([writer] if writer else [])]
        code = Loop(
            plan=plan,
            state=state,
            fingerprint=source.fingerprint,
            batches=batches,
            teach=teach,
            compiled=compiled,
            checker=checker,
            evaluator=evaluator,
            checkpoints=checkpoints,
            spikes=spikes,
            record=record,
            stop=stop,
            print_line=say,
            observers=observers,
        ).run()
        if code != runlog.PREEMPTED:  # what is at fault may be in them, too
            checkpoints.end_local()
        return code


def compile_ahead(experiment: Experiment) -> None:
    """Compiles the programs of a new run's start and of its step, which `train` then finds among the compiled ones.

    They need no data.
    """
    plan = make_plan(experiment)
    fresh_state(plan)
    step.compile_step(plan)


def say(text: str) -> None:
    """Prints a line on process 0."""
    if jax.process_index() == 0:
        print(text, flush=True)


def check_settings(e: Experiment, log: mlperf_log.Request | None, evaluator: Evaluator | None) -> None:
    """Raises ConfigError for settings that do not go together with an MLPerf log, or with the evaluation's metrics."""
    if log and e.train.faults.spike:
        raise ConfigError(f"train.faults.spike={e.train.faults.spike:g}: a benchmark's run, which --mlperf logs, does not rewind")
    if log and e.train.checkpoint.local.every:
        every = e.train.checkpoint.local.every
        raise ConfigError(f"train.checkpoint.local.every={every}: a benchmark's run, which --mlperf logs, never resumes")
    best, names = e.train.checkpoint.best, evaluator.names if evaluator else []
    if best and best not in names:
        raise ConfigError(f"train.checkpoint.best={best!r}: no such metric{nearest(best, names)}")


def summary(plan: Plan) -> str:
    """Returns a description of the run in a few lines."""
    e = plan.experiment
    total = sum(info.size for info in plan.parameters)
    here = sum(info.bytes_per_device for info in plan.parameters)
    mesh = " x ".join(f"{name} {size}" for name, size in e.layout.mesh)
    lines = [
        f"{e.name}: {total:,} parameters, layout {e.layout.name!r} on {mesh} "
        f"{jax.devices()[0].platform} devices, {here / 2**20:,.1f} MiB of parameters each"
    ]
    trained = sum(info.size for info in plan.parameters if info.name in plan.trained)
    if trained < total:
        lines.append(f"{trained:,} of them are trained ({trained / total:.1%})")
    if plan.by_rows:
        lines.append(f"of {', '.join(sorted(plan.by_rows))}, a step changes the rows alone that its batch reads")
    if e.train.distillation.teacher:
        lines.append(f"{e.train.distillation.weight:.0%} of each target's mass is as {e.train.distillation.teacher} predicts")
    return "\n".join([*lines, *family_of(e.model).notes(e.model, e.execution)])
