"""WORKDIR/run.jsonl records every start and stop of a run: who trained which experiment, when, on which data and versions.

WORKDIR/experiment.json is the experiment of the last start, whole, for commands that take one: also when its file has gone.
"""

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
from data import paths, untrusted
from models.errors import UNSAVED, UserError, exit_code
from trainers.audit import log as audit
from trainers.audit.redaction import redacted_values
from trainers.runtime.processes import jax_settings, jointly, versions

EXPERIMENT = "experiment.json"
DONE, PREEMPTED, DIVERGED, CORRUPTED = 0, 75, 76, 77
"""Exit codes of a run, beside UNSAVED: finished; stopped by a signal or by the loss of a process, and the same command continues
it; too many steps without a finite loss; a computation or an array that changed by itself."""

_ROOMS = ("configs", "data", "models", "scripts", "trainers")  # the folders of the project's own source


class StoreError(UserError):
    """A run's folder or its checkpoints cannot be written; the message names the place."""

    exit_code = UNSAVED


@contextlib.contextmanager
def names_full_disks(workdir: Path) -> Iterator[None]:
    """Raises StoreError, with the folder's name, where the block fails to write."""
    try:
        yield
    except OSError as error:
        where = error.filename or workdir
        raise StoreError(
            f"{where} cannot be written: {error.strerror or error}; mend it and run the same command again"
        ) from error


# Fields that are younger than hashes which are kept, at the value that changes nothing: with them a hash is what it was.
_LATER = frozenset(
    (
        *(f"train.distillation.{line}" for line in ('class: "Distillation"', 'teacher: ""', "weight: 0.25")),
        'execution.offload: "none"',
        "layout.pad: []",
        'train.benchmark: ""',
        *(f"train.checkpoint.local.{line}" for line in ('class: "LocalTier"', 'folder: ""', "every: 0")),
        "train.eval_from: 0",
        "eval.rows: 0",
        "train.finetune.lora.dropout: 0.0",
        "model.output.mtp: 0.0",
        *(f"model.inputs.{line}" for line in ('class: "Inputs"', "scaled: true", 'sinusoids: "fairseq"', "norm: false")),
        "model.logits_bias: false",
        "model.output.divisor: 1.0",
        *(
            f"model.{part}norm.{line}"
            for part in ("", "towers.audio.", "towers.vision.")
            for line in ("branch_scale: 1.0", "embedding: false")
        ),
        "model.inputs: null",
        *(
            f"model.{at}layer.{line}"
            for at in ("", "towers.audio.")
            for line in ("causal: false", "near: null", "positions: null")
        ),
        "model.embedding.distinct: 0",
        "model.embedding.size: 0",
        'model.head.vector: "mean"',
        *(f"model.{at}norm.layer_scale: 0.0" for at in ("", "towers.vision.", "towers.audio.")),
        *(f"model.{at}patches.{name}: false" for at in ("", "towers.vision.") for name in ("norm", "cut")),
    )
)


def config_hash(experiment: Experiment) -> str:
    """Returns sixteen hexadecimal digits that change with any field of the experiment."""
    lines = [line for line in registry.lines(experiment) if line not in _LATER]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def shared_settings(experiment: Experiment, workdir: Path) -> dict[str, str]:
    """Returns the settings in which the processes of one run must not differ, by name, except for the data (processes.agree).

    They are every field of the experiment, the working folder, the settings of JAX and XLA, the libraries' versions, and a hash
    of each source file, because two checkouts of one git revision may hold different edits.
    """
    sources = sorted(file for room in _ROOMS for file in (paths.ROOT / room).rglob("*.py"))
    return {
        **dict(line.split(": ", 1) for line in registry.lines(experiment)),
        "workdir": str(workdir.absolute()),
        **jax_settings(),
        **{f"version of {name}": number for name, number in versions().items()},
        **{f"source {file.relative_to(paths.ROOT)}": paths.sha256(file)[:16] for file in sources},
    }


def user() -> str:
    """Returns the user's name, or the user's number where there is no name."""
    return os.environ.get("USER") or str(os.getuid())


def append(workdir: Path, event: str, **fields: Any) -> None:
    """Adds one line: the event, the time, and these fields; and one to the audit log, whose digest the line has."""
    with names_full_disks(workdir / audit.FILE):
        head = audit.record(event, workdir, **fields)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    append_line(workdir / "run.jsonl", {"event": event, "time": now, "pid": os.getpid()} | fields | {"audit": head}, durable=True)


def append_line(path: Path, values: dict[str, Any], *, durable: bool = False) -> None:
    """Adds a JSON object as a line of its own to a log, also behind a part of a line, which a kill or a full disk leaves.

    Credentials are left out (trainers/audit/redaction.py).

    Args:
      durable: it stays when the power fails after this.

    Raises:
      StoreError: it cannot be written.
    """
    with names_full_disks(path), path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        whole = file.read(1) in (b"", b"\n")
        file.write((b"" if whole else b"\n") + json.dumps(redacted_values(values)).encode() + b"\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())


def events(workdir: Path) -> list[dict[str, Any]]:
    """Returns the events of a run so far; broken lines, as a power cut leaves them, are skipped."""
    path = workdir / "run.jsonl"
    values = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError):
            values.append(json.loads(line))
    return [event for event in values if isinstance(event, dict)]


class Record:
    """Records a start of a run and how it ended: by `end`, called inside the block, or by an exception that leaves the block.

    Attributes:
      resized: how many processes the last start had, if it was another number than now.
    """

    def __init__(self, workdir: Path, experiment: Experiment, leader: bool, **fields: Any):
        self.workdir, self.leader, self.stop = workdir, leader, {}
        starts = [event["processes"] for event in events(workdir) if event.get("event") == "start" and "processes" in event]
        self.resized = starts[-1] if starts and starts[-1] != jax.process_count() else None
        changed = _changes(workdir / EXPERIMENT, experiment) if leader else []
        if leader:
            with names_full_disks(workdir / EXPERIMENT):
                paths.write_whole(workdir / EXPERIMENT, json.dumps(registry.to_json(experiment), indent=1) + "\n")
        self._append(
            "start",
            processes=jax.process_count(),
            **({"processes_before": self.resized} if self.resized else {}),
            host=socket.gethostname(),
            user=user(),
            command=sys.orig_argv[1:],
            versions=versions() | {"python": sys.version.split()[0]},
            git=git_revision(),
            experiment=experiment.name,
            config=config_hash(experiment),
            **({"changed": changed} if changed else {}),
            **({"files": audit.digests(workdir, *_named(workdir))} if leader else {}),
            **fields,
        )

    def _append(self, event: str, **fields: Any) -> None:
        if self.leader:
            append(self.workdir, event, **fields)

    def end(self, code: int, step: int, **fields: Any) -> int:
        """Notes how the run ended and returns the exit code."""
        self.stop = {"step": step, "exit_code": code} | fields
        return code

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        stop = self.stop
        if error is not None:
            stop = {"exit_code": exit_code(error, 1), "error": f"{kind.__name__}: {error}"[:300]}
        with contextlib.suppress(StoreError):  # a full disk is why the run ends
            self._append("stop", **stop)


def _named(workdir: Path) -> list[str]:
    """Returns the files of a run's folder that decide about a start: its experiment, and the address of checkpoints elsewhere."""
    return [EXPERIMENT, *(["checkpoints"] if (workdir / "checkpoints").is_file() else [])]


def _changes(file: Path, experiment: Experiment) -> list[str]:
    """Returns the fields in which an experiment differs from that of the last start, as `path: old -> new`."""
    if not file.exists():
        return []
    try:
        with untrusted.damage(file, UserError):
            return registry.differences(untrusted.read_json(file, UserError), experiment)
    except UserError as error:
        return [str(error)]


@contextlib.contextmanager
def only_run(workdir: Path, leader: bool, checkpoints: str = "") -> Iterator[None]:
    """Makes the folder and that of its checkpoints, if there are none, and holds both for this run.

    Every process of the run must call this.

    Args:
      checkpoints: `train.checkpoint.folder`. An address is not held: a store has no locks.

    Raises:
      ConfigError: on the leader, another run is training in one of them.
      LinkError: on the leader, the folder or one of its entries is a link.
      OSError: on the leader, the folder cannot be written.
      DisagreementError: on the other processes, the leader could not lock it.
    """
    with contextlib.ExitStack() as closing:

        def lock(folder: Path, option: str) -> None:
            file = closing.enter_context((folder / ".lock").open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise registry.ConfigError(f"another process is training in {folder}; choose another {option}") from None

        def hold() -> None:
            if not leader:
                return
            paths.owned_folder(workdir)
            lock(workdir, "--workdir")
            folder = Path(checkpoints or workdir / "checkpoints")
            if not paths.is_address(checkpoints) and not folder.is_file():  # a file has the address of others
                folder.mkdir(parents=True, exist_ok=True)
                lock(folder, "--train.checkpoint.folder")

        jointly(hold)
        yield


def git_revision() -> str:
    """Returns the checkout's commit, with "+" if files differ from it; "" outside a checkout."""
    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def git(*arguments: str) -> str:
    """Returns what git prints of the checkout; "" where it fails, or is not on this machine."""
    try:
        result = subprocess.run(["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
