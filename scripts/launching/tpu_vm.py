"""Starts a job on TPU VMs: a shell script that requests a queued resource with gcloud, watches it, and requests it again.

Each host runs the same startup script: it mounts the buckets, unpacks the checkout that the script has uploaded, and trains until
the run is over. What is over is written to WORKDIR/launch/exit_code; a request that Google Cloud took back is made anew.
"""

import shlex
import subprocess

from configs.registry import ConfigError
from data.paths import ROOT
from scripts.launching.job import FINAL, Job, mounted, plain

TOOL = "gcloud"

_TYPES = {"v4": "v4", "v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e"}
_RUNTIMES = {"v4": "tpu-ubuntu2204-base", "v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
_POLL = 60  # seconds


def submit(job: Job, text: str) -> int:
    """Runs the script; returns the run's exit code."""
    del job
    return subprocess.run(["bash", "-c", text], check=False).returncode


def script(job: Job, zone: str, spot: bool) -> str:
    """Returns the shell script; raises ConfigError for machines that are no TPU VMs, a folder of one host, or a missing zone."""
    pod = job.machines.slice
    if not pod:
        raise ConfigError(f"--topology {job.machines}: --on tpu-vm starts TPU slices, as v4:2x2x4")
    if pod.chip.name not in _TYPES:
        raise ConfigError(f"--topology {pod}: Google Cloud has no TPU VMs of {pod.chip.name}; take --on gke")
    if not job.workdir.startswith("gs://"):
        raise ConfigError(f"--workdir {job.workdir}: TPU VMs share no folder; give one as gs://bucket/runs/mine")
    if not zone:
        raise ConfigError("--on tpu-vm needs --zone, as us-central2-b")
    name, chip = job.name, pod.chip.name
    plain("--zone", zone)
    create = [
        "gcloud",
        "compute",
        "tpus",
        "queued-resources",
        "create",
        name,
        *([f"--node-count={pod.slices}", f"--node-prefix={name}"] if pod.slices > 1 else [f"--node-id={name}"]),
        f"--zone={zone}",
        f"--type={_TYPES[chip]}",
        f"--topology={'x'.join(map(str, pod.dims))}",
        f"--runtime-version={_RUNTIMES[chip]}",
        *(["--spot"] if spot else []),
    ]
    launch = f"{job.workdir.rstrip('/')}/launch"
    resource = shlex.join([name, f"--zone={zone}"])
    return f"""#!/bin/bash
{_comments(job)}
set -euo pipefail
startup=$(mktemp)
trap 'rm -f "$startup"' EXIT
cat > "$startup" <<'STARTUP'
{_startup(job)}STARTUP

create() {{ {shlex.join(create)} --metadata-from-file=startup-script="$startup"; }}
delete() {{ gcloud compute tpus queued-resources delete {resource} --force --quiet; }}
state() {{ gcloud compute tpus queued-resources describe {resource} --format='value(state.state)'; }}

git -C {shlex.quote(str(ROOT))} archive --format=tar.gz HEAD | gcloud storage cp - {launch}/code.tar.gz
gcloud storage rm --quiet {launch}/exit_code 2> /dev/null || true
create
restarts=0
while :; do
  if code=$(gcloud storage cat {launch}/exit_code 2> /dev/null); then
    delete
    echo "exit code $code"
    exit "$code"
  fi
  case $(state) in
    SUSPENDED|FAILED)
      delete
      [ $restarts -lt {job.restarts} ] || {{ echo "error: taken back after $restarts restarts" >&2; exit 75; }}
      restarts=$((restarts + 1))
      create
      ;;
  esac
  sleep ${{POLL_SECONDS:-{_POLL}}}
done
"""


def _startup(job: Job) -> str:
    """Returns the script that each host runs when it boots."""
    mounts = "".join(
        f"mkdir -p /mnt/{bucket}\nmountpoint -q /mnt/{bucket} || "
        f"gcsfuse --implicit-dirs --rename-dir-limit=200000 {bucket} /mnt/{bucket}\n"
        for bucket in job.buckets()
    )
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.variables().items())
    launch = shlex.quote(f"{mounted(job.workdir)}/launch")
    return f"""#!/bin/bash
set -u
apt-get install -y gcsfuse python3.11-venv make git
{mounts}mkdir -p /opt/shardzoo && cd /opt/shardzoo && tar xzf {launch}/code.tar.gz
make setup DEVICE=tpu PYTHON=python3.11
{variables}for start in $(seq 0 {job.restarts}); do
  {job.train(".venv/bin/python")}
  code=$?
  case $code in {"|".join(map(str, FINAL))}) break ;; esac
  sleep 10
done
echo $code > {launch}/exit_code
"""


def _comments(job: Job) -> str:
    return "\n".join(f"# {line}" for line in job.summary())
