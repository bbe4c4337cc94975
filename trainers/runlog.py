"""WORKDIR/run.jsonl: every start and stop of a run, so that who trained what on which data can be told afterwards."""

import datetime
import getpass
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from configs import registry
from configs.schema import Experiment
from trainers.checkpoint import versions


def config_hash(experiment: Experiment) -> str:
    """Sixteen hexadecimal digits that change with any field of the experiment."""
    return hashlib.sha256("\n".join(registry.lines(experiment)).encode()).hexdigest()[:16]


def append(workdir: Path, event: str, **fields: Any) -> None:
    """Adds one line: the event, the time, and these fields."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with (workdir / "run.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": now, "pid": os.getpid()} | fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def start(workdir: Path, experiment: Experiment, **fields: Any) -> None:
    """Records a start: who, where, with what."""
    append(
        workdir,
        "start",
        host=socket.gethostname(),
        user=getpass.getuser(),
        command=sys.orig_argv[1:],
        versions=versions() | {"python": sys.version.split()[0]},
        git=git_revision(),
        experiment=experiment.name,
        config=config_hash(experiment),
        **fields,
    )


def git_revision() -> str:
    """The checkout's commit, with "+" if files differ from it; "" outside a checkout."""
    root = Path(__file__).resolve().parent.parent

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:  # no git on this machine
        return ""
