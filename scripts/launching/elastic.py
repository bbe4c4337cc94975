"""How a job is started on each number of hosts that its layout can use, for the supervisor."""

import dataclasses
import sys
from pathlib import Path

from configs.experiment import Experiment
from configs.registry import ConfigError
from data.paths import is_address
from models.errors import UserError
from models.sharding.layout import Layout
from models.sharding.shrinking import on_fewer_devices, surely_fits
from scripts.launching import supervisor
from scripts.launching.job import FINAL, GRACE, Job
from scripts.launching.local import Local
from trainers.plan import make_plan

_LATER = 60.0
"""Seconds after which the supervisor misses a host that the other processes have not missed. They say more of it, and end."""


def supervised(job: Job) -> supervisor.Supervised:
    """Returns the run with a train command for each number of hosts, whose processes are told by variables where they meet.

    Memory is not checked: on half of the hosts a device holds twice the rows.

    Raises:
      ConfigError: the run's folder is an address, where the supervisor cannot read its logs.
    """
    e = job.experiment
    if is_address(job.workdir):
        raise ConfigError(
            f"--workdir {job.workdir}: the supervisor reads the run's logs in a folder, as /shared/runs/mine; checkpoints alone "
            "may be elsewhere, by --train.checkpoint.folder gs://BUCKET/RUN"
        )
    commands, meshes, unproven = {}, {}, []
    for hosts, layout in _by_hosts(job).items():
        commands[hosts] = [sys.executable, "-m", "scripts.train", *job.arguments, *_changes(e.layout, layout)]
        commands[hosts] += ["--workdir", job.workdir]
        meshes[hosts] = " x ".join(f"{axis} {size}" for axis, size in layout.mesh)
        unproven += [] if surely_fits(layout, e.layout) else [hosts]
    return supervisor.Supervised(
        workdir=job.workdir,
        checkpoints=e.train.checkpoint.folder or str(Path(job.workdir) / "checkpoints"),
        commands=commands,
        meshes=meshes,
        unproven=unproven,
        variables=job.variables() | _all_gpus(job),
        final=FINAL,
        restarts=job.restarts,
        saves=e.train.checkpoint.every > 0,
        grace=GRACE,
        silence=e.train.faults.stall_seconds + _LATER,
    )


def _all_gpus(job: Job) -> dict[str, str]:
    """Returns the variable that gives a process all GPUs of its host: under SLURM JAX would take the one of its task's number."""
    gpus = map(str, range(job.machines.per_host))
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(gpus)} if job.machines.platform == "gpu" else {}


def _by_hosts(job: Job) -> dict[int, Layout]:
    """Returns the layout by the number of hosts that can be used, ascending."""
    e, machines = job.experiment, job.machines
    if machines.slice:  # it is whole or of no use
        return {machines.hosts: e.layout}
    layouts = on_fewer_devices(e.layout, e.data.batch_size // e.train.microbatches)
    return {
        devices // machines.per_host: layout
        for devices, layout in layouts.items()
        if devices % machines.per_host == 0 and (surely_fits(layout, e.layout) or _seems_to_fit(e, layout))
    }


def _seems_to_fit(e: Experiment, layout: Layout) -> bool:
    """Returns whether rows and parameters fit a layout; activations are compared with it at a start alone."""
    try:
        make_plan(dataclasses.replace(e, layout=layout), abstract=True)
    except UserError:
        return False
    return True


def _changes(layout: Layout, small: Layout) -> list[str]:
    """Returns the overrides that make a layout of the one of an experiment."""
    mesh = ["--layout.mesh", *(str(part) for axis in small.mesh for part in axis)] if small.mesh != layout.mesh else []
    return [*mesh, *(["--layout.pad", *small.pad] if small.pad != layout.pad else [])]


def run_here(job: Job, returns_after: float) -> int:
    """Runs the job on this machine, a process for each host; returns the run's exit code.

    Raises:
      ConfigError: several hosts with accelerators, which processes of one machine would all take.
    """
    machines = job.machines
    if machines.hosts > 1 and machines.platform != "cpu":
        raise ConfigError(f"--topology {machines}: --on local has one host with accelerators, or several of CPUs, as cpu:4x2")
    return supervisor.supervise(supervised(job), Local(machines.hosts, returns_after))
