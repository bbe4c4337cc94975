"""WORKDIR/hosts.jsonl: what every process of a run did. Unlike metrics.jsonl it is never cut back: it also has lost steps.

A line of a start has "hosts", the names of the machines by process; any other line has "step" and, by process, "waited_s", the
seconds spent waiting for rows since the line before, and "memory_gib" (host_memory.memory_gib).
"""

import datetime
import socket
from pathlib import Path
from typing import Any

import jax

from data.reading.batches import Batches
from trainers import runlog
from trainers.monitoring.observer import Observer
from trainers.runtime import host_memory, processes

FILE = "hosts.jsonl"


class HostLog(Observer):
    """Gathers what the processes did and appends it, on process 0. Every process must make one."""

    def __init__(self, workdir: Path, batches: Batches):
        self.path, self._leader = workdir / FILE, jax.process_index() == 0
        self._batches, self._waited = batches, 0.0
        self._append(hosts=processes.gather_names(socket.gethostname()))

    def fetched(self, step: int) -> None:
        waited, before = self._batches.waited, self._waited
        waited_N, memory_N = processes.gather(waited - before, host_memory.memory_gib()).T
        self._waited = waited
        self._append(step=step, waited_s=_rounded(waited_N), memory_gib=_rounded(memory_N))

    def _append(self, **fields: Any) -> None:
        if self._leader:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            runlog.append_line(self.path, {"time": now} | fields)


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]
