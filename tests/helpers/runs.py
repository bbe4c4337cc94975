"""Training runs in folders, and damage to what they leave there."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from configs.experiment import Checkpointing, Experiment
from trainers import runlog, step, trainer
from trainers.measure.mlperf_log import Request
from trainers.monitoring import metrics
from trainers.plan import Plan


def run(e: Experiment, workdir: Path, log: Request | None = None) -> int:
    """The trainer on as many of the simulated devices as the layout needs."""
    return trainer.train(e, workdir, log, jax.devices()[: e.layout.devices])


@contextlib.contextmanager
def shared_steps() -> Iterator[None]:
    """Runs inside that differ only in their number of steps and in their checkpoints have one compiled step.

    Its key is the experiment, so that a test that patches what a step computes needs settings that no other run inside has.
    """
    compile_step, programs = step.compile_step, {}

    def compiled(plan: Plan, *options: Any) -> Any:
        e = plan.experiment
        train = dataclasses.replace(e.train, steps=1, checkpoint=Checkpointing())
        key = dataclasses.replace(e, train=train), tuple(plan.mesh.devices.flat) if plan.mesh else (), options
        if key not in programs:
            programs[key] = compile_step(plan, *options)
        return programs[key]

    step.compile_step = compiled
    try:
        yield
    finally:
        step.compile_step = compile_step


def damage(arrays: Path) -> None:
    """Flips bits in the largest file of a folder with a checkpoint's arrays."""
    files = [p for p in arrays.rglob("*") if p.is_file() and "_METADATA" not in p.name]
    victim = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    for i in range(len(content) // 4, len(content) // 2):
        content[i] ^= 0x5A
    victim.write_bytes(content)


def fill_disk_of(path: Path) -> None:
    """Lets every further write to a file that this process has open fail as on a full disk; in a folder, to any of its files."""
    full = os.open("/dev/full", os.O_WRONLY)
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.is_symlink() and Path(os.readlink(descriptor)).is_relative_to(path):
            os.dup2(full, int(descriptor.name))
    os.close(full)


def with_train(e: Experiment, **changes: Any) -> Experiment:
    """Returns the experiment with fields of `train` changed; a dictionary changes fields of a part, as `checkpoint`."""
    parts = {k: dataclasses.replace(getattr(e.train, k), **v) for k, v in changes.items() if isinstance(v, dict)}
    return dataclasses.replace(e, train=dataclasses.replace(e.train, **changes | parts))


def curve(workdir: Path) -> list[dict]:
    """Returns the metrics that a run logged, but for what the machine decides."""
    return [{k: v for k, v in line.items() if k not in ("tokens_per_s", "memory_gib")} for line in metrics.read(workdir)]


def events(workdir: Path, event: str) -> list[dict]:
    """The events of a run of this name."""
    return [entry for entry in runlog.events(workdir) if entry["event"] == event]


def kept(workdir: Path) -> list[int]:
    """The steps of the checkpoints in a run's folder."""
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


def changed_steps(monkeypatch, change) -> None:
    """Has `change(call, state, metrics)` applied to what the compiled step returns; calls are counted from 1."""
    compile_step = step.compile_step

    def compiled(*args: Any) -> Any:
        inner, calls = compile_step(*args), iter(range(1, 10_000))
        return lambda state, batch: change(next(calls), *inner(state, batch))

    monkeypatch.setattr(step, "compile_step", compiled)
