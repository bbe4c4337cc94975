"""WORKDIR/hosts.jsonl: what every process of a run did. Unlike metrics.jsonl it is never cut back: it also has lost steps.

A line of a start has "hosts", the names of the machines by process; any other line has "step", "steps", those since the line
before, and what each process did meanwhile:

    waited_s     seconds spent waiting for rows
    memory_gib   host_memory.memory_gib
    busy_s       seconds in which its devices computed, or waited in a collective for others
    idle_s       seconds in which its devices had no work, since its rows were not there
    cpu_s        seconds of CPU time of the process, all its threads; its workers not

and, by device, those of each process together and in the processes' order, only where there is something to tell:

    device_gib   the peak of its memory, where the backend tells it (GPUs and TPUs do, CPUs do not)
    late_s       seconds by which it ended the step after the first device of its process; missing where each process has one

How long a device waits in a collective, no backend tells a running program. It is derived: processes take their steps together,
so that one whose rows come late keeps the others waiting (trainers/monitoring/health.py).
"""

import datetime
import math
import socket
import time
from pathlib import Path
from typing import Any

import jax

from data.reading.batches import Batches
from trainers import runlog
from trainers.monitoring.goodput import DATA, STEPS
from trainers.monitoring.history import HOSTS
from trainers.monitoring.ledger import Ledger
from trainers.monitoring.observer import Observer
from trainers.runtime import host_memory, processes

_OF_PROCESS = ("waited_s", "memory_gib", "busy_s", "idle_s", "cpu_s")
_OF_DEVICE = ("device_gib", "late_s")


class HostLog(Observer):
    """Gathers what the processes did and appends it, on process 0. Every process must make one."""

    def __init__(self, workdir: Path, batches: Batches, ledger: Ledger):
        self.path, self._leader = workdir / HOSTS, jax.process_index() == 0
        self._batches, self._ledger = batches, ledger
        self._devices = len(jax.local_devices())
        self._step, self._before = ledger.step, self._totals()
        self._append(hosts=processes.gather_names(socket.gethostname()))

    def _totals(self) -> list[float]:
        """Returns seconds since the start: waiting for rows, devices with work and without rows, and CPU time."""
        ns = self._ledger.settled()
        return [self._batches.waited, ns[STEPS] / 1e9, ns[DATA] / 1e9, time.process_time()]

    def fetched(self, step: int) -> None:
        self._ledger.divide_first()  # on every process, before the leader does it for an event
        totals = self._totals()
        # What was compilation may have been counted as work until now.
        waited, busy, idle, cpu = (max(0.0, now - before) for now, before in zip(totals, self._before, strict=True))
        late = self._ledger.late or [math.nan] * self._devices
        mine = [waited, host_memory.memory_gib(), busy, idle, cpu, *host_memory.device_gib(), *late]
        values_NV = processes.gather(*mine)
        fields = {name: _rounded(values_NV[:, at]) for at, name in enumerate(_OF_PROCESS)}
        for at, name in enumerate(_OF_DEVICE):
            first = len(_OF_PROCESS) + at * self._devices
            values = values_NV[:, first : first + self._devices].ravel()
            fields |= {} if any(map(math.isnan, values)) else {name: _rounded(values)}
        self._append(step=step, steps=step - self._step, **fields)
        idle_N = fields["idle_s"]
        self._ledger.waited_for_others(max(idle_N) - idle_N[jax.process_index()])
        self._step, self._before = step, [*totals[:1], self._ledger.settled()[STEPS] / 1e9, *totals[2:]]

    def rewound(self, step: int) -> None:
        self._step, self._before = step, self._totals()

    def _append(self, **fields: Any) -> None:
        if self._leader:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            runlog.append_line(self.path, {"time": now} | fields)


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]
