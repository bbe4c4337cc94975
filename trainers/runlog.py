"""WORKDIR/run.jsonl records every start and stop of a run: who trained which experiment, when, on which data and versions."""

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from configs import registry
from configs.experiment import Experiment
from data import paths
from trainers.processes import jointly, versions

_ROOMS = ("configs", "data", "models", "scripts", "trainers")  # the folders of the project's own source


def config_hash(experiment: Experiment) -> str:
    """Returns sixteen hexadecimal digits that change with any field of the experiment."""
    return hashlib.sha256("\n".join(registry.lines(experiment)).encode()).hexdigest()[:16]


def shared_settings(experiment: Experiment, workdir: Path) -> dict[str, str]:
    """Returns the settings in which the processes of one run must not differ, by name, except for the data (processes.agree).

    They are every field of the experiment, the working folder, JAX's settings that change numbers, the libraries' versions, and a
    hash of each source file, because two checkouts of one git revision may hold different edits.
    """
    jax_settings = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl")
    sources = sorted(file for room in _ROOMS for file in (paths.ROOT / room).rglob("*.py"))
    return {
        **dict(line.split(": ", 1) for line in registry.lines(experiment)),
        "workdir": str(workdir.absolute()),
        **{name: str(getattr(jax.config, name)) for name in jax_settings},
        **{f"version of {name}": number for name, number in versions().items()},
        **{f"source {file.relative_to(paths.ROOT)}": paths.sha256(file)[:16] for file in sources},
    }


def user() -> str:
    """Returns the user's name, or the user's number where there is no name."""
    return os.environ.get("USER") or str(os.getuid())


def append(workdir: Path, event: str, **fields: Any) -> None:
    """Adds one line: the event, the time, and these fields."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with (workdir / "run.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": now, "pid": os.getpid()} | fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def events(workdir: Path) -> list[dict[str, Any]]:
    """Returns the events of a run so far; broken lines, as a power cut leaves them, are skipped."""
    path = workdir / "run.jsonl"
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [event for event in found if isinstance(event, dict)]


class Record:
    """Records a start of a run and how it ended: by `end`, called inside the block, or by an exception that leaves the block."""

    def __init__(self, workdir: Path, experiment: Experiment, leader: bool, **fields: Any):
        self.workdir, self.leader, self.stop = workdir, leader, {}
        self._append(
            "start",
            host=socket.gethostname(),
            user=user(),
            command=sys.orig_argv[1:],
            versions=versions() | {"python": sys.version.split()[0]},
            git=git_revision(),
            experiment=experiment.name,
            config=config_hash(experiment),
            **fields,
        )

    def _append(self, event: str, **fields: Any) -> None:
        if self.leader:
            append(self.workdir, event, **fields)

    def end(self, code: int, step: int) -> int:
        """Notes how the run ended and returns the exit code."""
        self.stop = {"step": step, "exit_code": code}
        return code

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._append(
            "stop", **(self.stop if error is None else {"exit_code": 1, "error": f"{kind.__name__}: {error}"[:300]})
        )


@contextlib.contextmanager
def only_run(workdir: Path, leader: bool) -> Iterator[None]:
    """Makes the folder, if there is none, and holds it for this run. Every process of the run must call this.

    Raises:
      ConfigError: on the leader, another run is training in it.
      OSError: on the leader, the folder cannot be written.
      DisagreementError: on the other processes, the leader could not lock it.
    """
    with contextlib.ExitStack() as closing:

        def hold() -> None:
            if not leader:
                return
            workdir.mkdir(parents=True, exist_ok=True)
            file = closing.enter_context((workdir / ".lock").open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise registry.ConfigError(
                    f"another process is training in {workdir}; choose another --workdir"
                ) from None

        jointly(hold)
        yield


def git_revision() -> str:
    """Returns the checkout's commit, with "+" if files differ from it; "" outside a checkout."""

    def git(*args: str) -> str:
        result = subprocess.run(["git", "-C", str(paths.ROOT), *args], capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else ""

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:  # no git on this machine
        return ""
