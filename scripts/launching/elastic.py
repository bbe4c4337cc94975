"""How a job is started on each number of hosts that its layout can use, for the supervisor."""

import sys
from pathlib import Path

from configs.registry import ConfigError
from data.paths import is_address
from models.sharding.shrinking import numbers_of_devices, shrunk
from scripts.launching import supervisor
from scripts.launching.job import FINAL, GRACE, Job
from scripts.launching.local import Local


def supervised(job: Job) -> supervisor.Supervised:
    """Returns the run with a train command for each number of hosts, whose processes are told by variables where they meet.

    Memory is not checked: on half of the hosts a device holds twice the rows.

    Raises:
      ConfigError: checkpoints are written to an address, where the supervisor does not see them.
    """
    e, machines = job.experiment, job.machines
    for option, place in (("--workdir", job.workdir), ("train.checkpoint.folder", e.train.checkpoint.folder)):
        if is_address(place):
            raise ConfigError(
                f"{option} {place}: the supervisor looks for complete checkpoints in a folder, as /shared/runs/mine"
            )
    commands, meshes = {}, {}
    # A TPU slice is whole or of no use.
    for devices in [e.layout.devices] if machines.slice else numbers_of_devices(e.layout):
        if devices % machines.per_host:
            continue
        hosts, layout = devices // machines.per_host, shrunk(e.layout, devices)
        smaller = [str(part) for axis in layout.mesh for part in axis]
        more = [] if layout == e.layout else ["--layout.mesh", *smaller]
        train = [sys.executable, "-m", "scripts.train", *job.arguments, *more, "--workdir", job.workdir]
        commands[hosts], meshes[hosts] = train, " x ".join(f"{axis} {size}" for axis, size in layout.mesh)
    return supervisor.Supervised(
        workdir=job.workdir,
        checkpoints=e.train.checkpoint.folder or str(Path(job.workdir) / "checkpoints"),
        commands=commands,
        meshes=meshes,
        variables=job.variables(),
        final=FINAL,
        restarts=job.restarts,
        saves=e.train.checkpoint.every > 0,
        grace=GRACE,
    )


def run_here(job: Job, returns_after: float) -> int:
    """Runs the job on this machine, a process for each host; returns the run's exit code.

    Raises:
      ConfigError: several hosts with accelerators, which processes of one machine would all take.
    """
    machines = job.machines
    if machines.hosts > 1 and machines.platform != "cpu":
        raise ConfigError(f"--topology {machines}: --on local has one host with accelerators, or several of CPUs, as cpu:4x2")
    return supervisor.supervise(supervised(job), Local(machines.hosts, returns_after))
