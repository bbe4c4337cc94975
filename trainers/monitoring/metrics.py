"""Observers of a run that write its metrics: to WORKDIR/metrics.jsonl, as TensorBoard events, and as one line on the terminal."""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import masked_crc32c

from trainers.monitoring.observer import EVALUATING, SAVING, Logged, Observer
from trainers.runlog import names_full_disks
from trainers.runtime import host_memory

Values = dict[str, Any]  # floats, or lists of floats

_EDGES = np.geomspace(1e-12, 1e20, 775)  # each 1.1 times the one before it
_BINS = np.concatenate([-_EDGES[::-1], [0.0], _EDGES])


def to_host(metrics: dict[str, jax.Array]) -> Values:
    """Returns metrics as Python numbers (lists for vectors); waits for the step that computes them."""
    return {k: np.asarray(v, np.float64).tolist() for k, v in jax.device_get(metrics).items()}


class MetricWriter(Observer):
    """Appends one JSON object per logged step and the same scalars to TensorBoard.

    Opening it at a step first drops lines of later steps, which a killed run has left, and lines that a machine failure
    damaged. The file then reads as if the run had never been interrupted.
    """

    def __init__(self, workdir: Path, step: int):
        self.path, self._folder = workdir / "metrics.jsonl", workdir / "tensorboard"
        self._open(step)

    def _open(self, step: int) -> None:
        new = self.path.with_suffix(".new")
        with names_full_disks(self.path):
            new.write_bytes(b"".join(line for line, values in _logged(self.path) if values["step"] <= step))
            os.replace(new, self.path)
            self._file = self.path.open("a")
        self._board = _Board(self._folder, step)

    def logged(self, log: Logged) -> None:
        # Time and memory are logged beside the run's numbers, which are the same in every repetition.
        rates = {f"{unit}_per_s": count / log.seconds for unit, count in log.work.items()}
        self.write(log.step, log.values | rates | {"memory_gib": host_memory.memory_gib()})

    def evaluated(self, step: int, scores: Mapping[str, float], more: bool) -> None:
        self.write(step, dict(scores))

    def rewound(self, step: int) -> None:
        self.close()
        self._open(step)

    def write(self, step: int, values: Values) -> None:
        # JSON has no NaN: values that are not finite become null.
        line = {k: v if isinstance(v, list) or np.isfinite(v) else None for k, v in values.items()}
        with names_full_disks(self.path):
            self._file.write(json.dumps({"step": step} | line) + "\n")
            self._file.flush()
        self._board.write(step, values)

    def close(self) -> None:
        with names_full_disks(self.path):  # what could not be written is tried again
            self._file.close()
        self._board.close()


class _Board:
    """Writes TensorBoard's events, scalars and histograms; they are in the file when `write` returns.

    tensorboardX's writer is a thread behind a queue: a full disk ends the thread alone, and the queue, once full, stops the run.

    Args:
      step: events of later steps, which a killed run has left in other files, are not shown any more.
    """

    def __init__(self, folder: Path, step: int):
        self.path = folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        with names_full_disks(self.path):
            folder.mkdir(exist_ok=True)
            self._file = self.path.open("ab")  # there is one already where a run goes back within a second
        started = SessionLog(status=SessionLog.START)
        self._append([Event(file_version="brain.Event:2"), Event(session_log=started)], step + 1)

    def write(self, step: int, values: Values) -> None:
        events = []
        for name, value in values.items():
            if not isinstance(value, list):
                events.append(Event(summary=summary.scalar(name, value)))
            elif finite := [x for x in value if np.isfinite(x)]:
                events.append(Event(summary=summary.histogram(name, np.array(finite), _BINS)))
        self._append(events, step)

    def _append(self, events: Sequence[Event], step: int) -> None:
        """Writes events as records: length, its checksum, the event, its checksum."""
        with names_full_disks(self.path):
            for event in events:
                event.step, event.wall_time = step, time.time()
                record = event.SerializeToString()
                length = struct.pack("<Q", len(record))
                self._file.write(length + struct.pack("<I", masked_crc32c(length)))
                self._file.write(record + struct.pack("<I", masked_crc32c(record)))
            self._file.flush()

    def close(self) -> None:
        with names_full_disks(self.path):
            self._file.close()


def _logged(path: Path) -> list[tuple[bytes, Values]]:
    """Returns (the line itself, its values) for every sound line of a log.

    A last line without a newline, which a killed process leaves, is skipped. So are broken lines, such as the NULs that a power
    cut leaves; their number is printed on standard error.
    """
    sound, broken = [], 0
    whole_lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in whole_lines:
        try:
            values = json.loads(line.decode())
        except (ValueError, RecursionError):
            values = None
        if isinstance(values, dict) and type(values.get("step")) is int:
            sound.append((line + b"\n", values))
        else:
            broken += 1
    if broken:
        print(f"{path}: {broken} of {len(whole_lines)} lines are broken and left out", file=sys.stderr, flush=True)
    return sound


def read(workdir: Path) -> list[Values]:
    """Returns the logged steps of a run in order, each with its number under "step"; skips broken lines with a warning."""
    return [values for _, values in _logged(workdir / "metrics.jsonl")]


class Progress(Observer):
    """Prints the progress of a run as one line, which is rewritten on a terminal and appended elsewhere."""

    def __init__(self, steps: int, stream: TextIO = sys.stdout):
        self.steps, self.stream = steps, stream
        self._live = False  # the line is on a terminal and may be rewritten

    def logged(self, log: Logged) -> None:
        unit, work = next(iter(log.work.items()))
        rate = f"{work / log.seconds:,.0f} {unit}/s"
        days, remainder = divmod(int(log.seconds * (self.steps - log.step)), 86_400)
        left = (f"{days}d " if days else "") + time.strftime("%H:%M:%S", time.gmtime(remainder))
        loss, per_step = log.values["loss"], 1000 * log.seconds
        line = f"step {log.step}/{self.steps}  loss {loss:.4f}  {rate}  {per_step:.0f} ms/step  ETA {left}"
        self._live = self.stream.isatty()
        self.stream.write(f"\r\x1b[2K{line}" if self._live else line + "\n")
        self.stream.flush()

    def entered(self, step: int, phase: str) -> None:
        if phase == EVALUATING or (phase == SAVING and step == self.steps):  # whose progress has a line of its own
            self.interrupted()

    def interrupted(self) -> None:
        if self._live:
            self.stream.write("\n")
            self.stream.flush()
        self._live = False
