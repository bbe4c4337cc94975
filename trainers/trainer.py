"""The trainer of all experiments, in the order of a run: set-up, plan, data, state, compilation, loop, end.

It is independent of the family and the kind of data: models.protocol is the contract of a model, data.task that of data, and
`trainers.evaluation` scores as the experiment's `eval` says.
"""

import contextlib
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from configs.experiment import Experiment
from configs.registry import ConfigError
from data.kinds import task_of
from data.reading.batches import Batches, batch_shapes
from data.reading.caches import cache_folder
from data.reading.examples import open_source
from models.errors import nearest
from models.families import family_of
from trainers import host_memory, metrics, processes, runlog, step
from trainers.checkpoints.manager import Checkpoints, quiet_libraries
from trainers.evaluation.evaluator import open_evaluator
from trainers.measure import mlperf_log
from trainers.monitoring import spikes, stalls
from trainers.monitoring.corruption import Checker
from trainers.monitoring.hosts import HostLog
from trainers.plan import Plan, make_plan
from trainers.runlog import CORRUPTED, DIVERGED, DONE, PREEMPTED
from trainers.weights import init_from


def train(
    experiment: Experiment, workdir: Path, log: mlperf_log.Request | None = None, devices: Sequence[Any] | None = None
) -> int:
    """Trains until the last step, a signal, or a fault that it cannot go on from; resumes the run in `workdir`, if there is one.

    Args:
      log: requests an MLPerf log of the run, which then also ends when it meets its benchmark's target.
      devices: the devices of the mesh; all by default.

    Returns:
      An exit code: DONE, PREEMPTED, DIVERGED or CORRUPTED.
    """
    with stalls.Watch(workdir, experiment.train.faults.stall_seconds) as watch:
        return _train(experiment, workdir, log, devices, watch)


def _train(
    experiment: Experiment, workdir: Path, log: mlperf_log.Request | None, devices: Sequence[Any] | None, watch: stalls.Watch
) -> int:
    train = experiment.train
    leader = jax.process_index() == 0

    def say(text: str) -> None:
        if leader:
            print(text, flush=True)

    mlperf = repr(log and (log.division, log.target))
    processes.agree(runlog.shared_settings(experiment, workdir) | {"--mlperf": mlperf})

    # --- 1. the plan: shapes and shardings before any array
    plan = make_plan(experiment, devices)
    say(summary(plan))

    # --- 2. data
    source = processes.jointly(open_source, experiment.data, experiment.model)
    processes.agree({"the data's fingerprint": source.fingerprint})
    cache = evaluator = None
    if experiment.data.cache:  # random data has no held-out examples
        cache = cache_folder(experiment.data)
        evaluator = open_evaluator(plan.model, experiment, cache, vocabulary=cache)
    if log and train.faults.spike:
        raise ConfigError(f"train.faults.spike={train.faults.spike:g}: a benchmark's run, which --mlperf logs, does not rewind")
    if train.checkpoint.best and train.checkpoint.best not in (names := evaluator.names if evaluator else []):
        raise ConfigError(
            f"train.checkpoint.best={train.checkpoint.best!r}: no such metric{nearest(train.checkpoint.best, names)}"
        )
    with contextlib.ExitStack() as closing:
        closing.enter_context(runlog.only_run(workdir, leader, train.checkpoint.folder))
        stop = closing.enter_context(processes.stop_signals())
        batches = Batches(source, experiment.data, plan.batch_shardings(), train.workers)
        closing.callback(batches.close)
        attempt = closing.enter_context(mlperf_log.attempt(log, experiment, evaluator, workdir))

        # --- 3. the newest sound checkpoint, a release's weights, or fresh ones
        quiet_libraries()
        checkpoints = Checkpoints(workdir, train.checkpoint, task_of(experiment.data).directions, say)
        watch.last_words = checkpoints.last_words
        state = checkpoints.restore(plan, source.fingerprint)
        restored = None if state is None else int(state.step)
        if state is None:
            state = init_from.new_state(plan, cache, say)
        at = int(state.step)
        say(f"starting at step {at}{' from a checkpoint' if restored is not None else ''}")
        record = runlog.Record(workdir, experiment, leader, restored=restored, data=source.fingerprint)
        if record.resized:
            say(f"going on with {jax.process_count()} processes; the last start had {record.resized}")
        closing.push(record)
        closing.callback(checkpoints.close)  # before the record ends: waits for the save under way, which may fail
        if at >= train.steps:
            checkpoints.tidy()  # no save will do it
            say(f"all {train.steps} steps are done")
            return record.end(DONE, at)

        # --- 4. one compiled step
        began = time.perf_counter()
        compiled = step.compile_step(plan, batch_shapes(experiment.data))
        checker = Checker(plan, compiled)
        host_memory.keep()
        say(f"compiled the step in {time.perf_counter() - began:.1f} s")
        spiking = spikes.Spikes(workdir, train.faults, at)
        processes.agree({"rewinds and losses in the run's folder": spiking.state()})
        processes.wait_for_all("compiled the step")

        # --- 5. the loop
        writer = metrics.MetricWriter(workdir, at) if leader else None
        closing.callback(lambda: writer and writer.close())
        closing.push(watch.explain)  # before anything is closed, which would wait for a process that is lost
        units = plan.units()
        progress = metrics.Progress(train.steps, at, units[0], sys.stdout if leader else io.StringIO())
        skipped = allowed_from = int(state.skipped)
        saved = at, skipped  # steps, and those of them that were skipped, up to the last save
        stopping = False
        pending: list[tuple[int, dict[str, jax.Array]]] = []  # steps whose metrics have not been fetched
        host_log = HostLog(workdir)
        attempt.start()
        while True:
            watch.at(at, stalls.READING)
            batch = batches(spiking.batch(at))
            watch.at(at, stalls.STEPPING)
            if train.faults.check_every and (at + 1) % train.faults.check_every == 0:
                state, step_metrics, corrupt = checker(state, batch)
                if corrupt:
                    progress.pause()
                    say(f"step {at + 1} is corrupt: {corrupt}; nothing is saved")
                    return record.end(CORRUPTED, at + 1, error=corrupt)
            else:
                state, step_metrics = compiled(state, batch)
            at += 1
            attempt.step = at
            pending.append((at, step_metrics))
            if len(pending) > 1:  # at most two steps are in flight: the host must not run ahead without bound
                jax.block_until_ready(pending[-2][1]["loss"])
            last = at == train.steps
            due = last or bool(train.eval_every and at % train.eval_every == 0)
            stopping = stopping or stop()

            logging = last or at % train.log_every == 0
            if logging or stopping:
                seen = [(number, metrics.to_host(values)) for number, values in pending]
                pending.clear()
                if logging:
                    host_log.write(at, batches.waited)
                for number, values in seen:
                    if int(values["skipped"]) > skipped:
                        skipped = int(values["skipped"])
                        first, final = batches.ids(spiking.batch(number - 1))
                        progress.pause()
                        say(f"step {number}: loss or gradient is not finite; skipped (rows {first} to {final})")
                if logging:
                    number, values = seen[-1]
                    sound = spiking.before(values["loss"])
                    if sound is not None and checkpoints.newest(until=sound) is not None:
                        progress.pause()
                        say(f"step {at}: the loss {values['loss']:.4g} is a spike")
                        state = checkpoints.restore(plan, source.fingerprint, until=sound)
                        assert state is not None
                        at = int(state.step)
                        if not (rewind := spiking.rewind(number, at, checkpoints, leader)):
                            say(f"it has gone back to step {at} {spikes.AT_ONE_PLACE} times already")
                            return record.end(DIVERGED, number)
                        say(f"going back to step {at}, and from there past {rewind.skip} batches")
                        skipped = int(state.skipped)
                        saved = at, skipped
                        if writer:
                            writer.close()
                            writer = metrics.MetricWriter(workdir, at)
                        progress.resume(at)
                        continue
                    spiking.accept(number, values["loss"])
                if writer and logging:
                    number, values = seen[-1]
                    done = {unit: sum(v[unit] for _, v in seen) / len(seen) for unit in units}
                    seconds = progress(at, values["loss"], done[units[0]])
                    attempt.stats(values["loss"], seconds)
                    # Time and memory are logged beside the run's numbers, which are the same in every repetition.
                    rates = {f"{unit}_per_s": count / seconds for unit, count in done.items()}
                    writer.write(at, values | rates | {"memory_gib": host_memory.memory_gib()})
                if skipped - allowed_from > train.faults.max_nonfinite:
                    progress.pause()
                    most = train.faults.max_nonfinite
                    say(f"{skipped - allowed_from} steps were not finite, more than train.faults.max_nonfinite={most}")
                    return record.end(DIVERGED, at)

            scores = None
            if evaluator and due:  # also when stopping, because the step is not repeated
                watch.at(at, stalls.EVALUATING)
                progress.pause()
                attempt.eval_start()
                scores = evaluator(plan.for_model(state.params))
                attempt.eval_stop(scores, more=not (last or stopping))
                shown = {k.removeprefix("eval/"): v for k, v in scores.items() if k.count("/") == 1}
                say(f"step {at}: " + "  ".join(f"{k} {v:.4g}" for k, v in shown.items()))
                if writer:
                    writer.write(at, dict(scores))
                progress.resume(at)
                if attempt.target_met:
                    say(f"step {at}: the target is met")
                    last = True
            by_best = bool(scores) and bool(train.checkpoint.best)
            if last or stopping or by_best or (train.checkpoint.every and at % train.checkpoint.every == 0):
                watch.at(at, stalls.SAVING)
                now = at, int(state.skipped)
                if now[0] - saved[0] == now[1] - saved[1] and not last:  # nothing has changed; sound checkpoints stay
                    say(f"step {at}: not saved, since every step after {saved[0]} was skipped")
                else:
                    checkpoints.save(plan, state, source.fingerprint, scores, final=last or stopping)
                    saved = now
            if last or stopping:
                progress.pause()
                if last:
                    return record.end(DONE, at)
                say(f"stopping at step {at} by a signal; run the same command to go on")
                return record.end(PREEMPTED, at)


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
    return "\n".join([*lines, *family_of(e.model).notes(e.model, e.execution)])
