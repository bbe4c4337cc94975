"""Starts a job under SLURM: an sbatch script that puts itself back into the queue until the run is over.

SLURM's own variables choose the partition, the account and the time: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT.
"""

import dataclasses
import shlex
import subprocess
import sys
from pathlib import Path

from configs.registry import ConfigError
from data.paths import ROOT
from scripts.launching.elastic import supervised
from scripts.launching.job import FINAL, GRACE, Job
from scripts.launching.supervisor import GIVEN_UP

TOOL = "sbatch"


def submit(job: Job, text: str) -> int:
    """Makes the run's folder, where the job's output goes, and submits the script; returns sbatch's exit code."""
    Path(job.workdir).mkdir(parents=True, exist_ok=True)
    return subprocess.run([TOOL], input=text, text=True, check=False).returncode


def script(job: Job, elastic: bool = False) -> str:
    """Returns the sbatch script; raises ConfigError for a folder that the nodes do not share, or several slices.

    Args:
      elastic: a supervisor in the batch script goes on with fewer nodes while some are lost (on_slurm.py), one process on each.
    """
    for option, place in (("--workdir", job.workdir), ("--data", job.data)):
        if place.startswith("gs://"):
            raise ConfigError(f"{option} {place}: under SLURM it is a folder that all nodes see, as /shared/runs/mine")
    machines = job.machines
    if machines.slice and machines.slice.slices > 1:
        raise ConfigError(f"--topology {machines}: --on slurm starts one slice, as {machines.slice.name}; gke and tpu-vm several")
    # JAX gives each process of a SLURM job the GPU of its number on the node.
    tasks = machines.per_host if machines.platform == "gpu" and not elastic else 1
    folder = Path(job.workdir).absolute()
    job = dataclasses.replace(job, workdir=str(folder), data=job.data and str(Path(job.data).absolute()))
    options = {
        "job-name": job.name,
        "nodes": machines.hosts,
        "ntasks-per-node": tasks,
        **({"gpus-per-node": machines.per_host} if machines.platform == "gpu" else {}),
        "output": f"{folder}/slurm-%j.out",
        "open-mode": "append",
        "signal": f"{'B:' * elastic}TERM@{GRACE}",
    }
    final = (*FINAL, GIVEN_UP) if elastic else FINAL
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items()),
        "#SBATCH --requeue",
        *(["#SBATCH --no-kill"] if elastic else []),
        *(f"# {line}" for line in job.summary()),
        f"cd {shlex.quote(str(ROOT))} || exit",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.variables().items()),
        *(_supervised(job) if elastic else [f"srun --kill-on-bad-exit=1 {job.train(sys.executable)}", "code=$?"]),
        'echo "exit code $code, restart ${SLURM_RESTART_COUNT:-0}"',
        "case $code in",
        f"  {'|'.join(map(str, final))}) exit $code ;;  # done, or somebody must look first",
        "esac",
        f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.restarts} ] || exit $code',
        'scontrol requeue "$SLURM_JOB_ID"',
    ]
    return "\n".join(lines) + "\n"


def _supervised(job: Job) -> list[str]:
    """Returns lines that run the supervisor, pass SIGTERM on to it, and keep its exit code: a trap interrupts bash's wait."""
    return [
        "trap 'kill -TERM $supervisor' TERM",
        f"{shlex.quote(sys.executable)} -m scripts.launching.on_slurm <<'PLAN' &",
        supervised(job).to_json(),
        "PLAN",
        "supervisor=$!",
        "while wait $supervisor; code=$?; kill -0 $supervisor 2> /dev/null; do :; done",
    ]
