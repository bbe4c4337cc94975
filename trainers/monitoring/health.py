"""Tells which process or device of a run is slow, from the lines of hosts.jsonl (trainers/monitoring/hosts.py describes them).

Processes take their steps together, so that all have the same step time. A process's own time of a step is that time without what
it waited for the others' rows: as much as the devices of the process that waited longest for its rows were longer without work
than its own. A process that is slow within a step, between two collectives, is not told from the others by this; the arrival of
its devices shows it where the end of a step has no collective.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SLOW = 1.2
"""Times the time of the others, from which on a process or device is marked as slow."""
OF_PROCESS, OF_DEVICE = ("busy_s", "idle_s", "cpu_s"), ("device_gib", "late_s")
"""Fields of a line that this reads, beside "steps"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """A process over the lines of all starts that had as many processes as the last.

    Attributes:
      own: median seconds of a step, without waiting for other processes' rows.
      waited: seconds of waiting for other processes' rows.
      idle: seconds in which its devices had no work, since its own rows were not there.
      cpu: median CPU seconds of a step.
      slow: `own` is more than SLOW times that of the others.
    """

    own: float
    waited: float
    idle: float
    cpu: float
    slow: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device over the same lines.

    Attributes:
      gib: the peak of its memory; None where the backend does not tell.
      late: median seconds that it ended a step after the first device of its process; None where that has no other.
      slow: with `late`, its step takes more than SLOW times that of the first.
    """

    process: int
    gib: float | None
    late: float | None
    slow: bool


def is_sound(line: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a line that are read here, if it has them, are of the types that the trainer writes."""
    count = len(line["waited_s"])

    def numbers(name: str) -> bool:
        values = line[name]
        sizes = isinstance(values, list) and len(values) > 0 and len(values) % count == 0
        if not sizes or (name in OF_PROCESS and len(values) != count) or len(values) > 1 << 16:
            return False
        return all(type(x) in (int, float) and 0 <= x < 1e9 for x in values)

    steps = line.get("steps", 0)
    return type(steps) is int and 0 <= steps < 2**53 and all(numbers(n) for n in (*OF_PROCESS, *OF_DEVICE) if n in line)


def own_times(host_lines: Sequence[Mapping[str, Any]], processes: int) -> list[dict[str, Any]]:
    """Returns "step" and "own_s", seconds of a step by process, for each line with as many processes."""
    return [
        {
            "step": line["step"],
            "own_s": [
                max(0.0, busy + idle - wait) / line["steps"]
                for busy, idle, wait in zip(line["busy_s"], line["idle_s"], _waits(line), strict=True)
            ],
        }
        for line in _lines(host_lines, processes)
    ]


def processes_of(host_lines: Sequence[Mapping[str, Any]], processes: int) -> list[Process]:
    """Returns all processes in order; none where no line tells of their steps."""
    lines = _lines(host_lines, processes)
    own_times_LN = [line["own_s"] for line in own_times(host_lines, processes)]
    if not lines:
        return []
    own_N = [statistics.median(own) for own in zip(*own_times_LN, strict=True)]
    usual = statistics.median_low(own_N)
    return [
        Process(
            own=own,
            waited=sum(_waits(line)[number] for line in lines),
            idle=sum(line["idle_s"][number] for line in lines),
            cpu=statistics.median(line["cpu_s"][number] / line["steps"] for line in lines),
            slow=own > SLOW * usual,
        )
        for number, own in enumerate(own_N)
    ]


def devices_of(host_lines: Sequence[Mapping[str, Any]], processes: int) -> list[Device]:
    """Returns all devices in order; none where no line tells of them. Devices are as many as in the last line."""
    lines = [line for line in _lines(host_lines, processes) if any(name in line for name in OF_DEVICE)]
    if not lines:
        return []
    own_N = [process.own for process in processes_of(host_lines, processes)]
    count = max(len(lines[-1].get(name, ())) for name in OF_DEVICE)
    devices = []
    for number in range(count):
        process = number * processes // count
        gib, late = ([line[name][number] for line in lines if len(line.get(name, ())) == count] for name in OF_DEVICE)
        lateness = statistics.median(late) if late else None
        slow = lateness is not None and lateness > (SLOW - 1) * own_N[process] > 0
        devices.append(Device(process=process, gib=max(gib, default=None), late=lateness, slow=slow))
    return devices


def _lines(host_lines: Sequence[Mapping[str, Any]], processes: int) -> list[Mapping[str, Any]]:
    return [
        line
        for line in host_lines
        if line.get("steps") and len(line["waited_s"]) == processes and all(name in line for name in OF_PROCESS)
    ]


def _waits(line: Mapping[str, Any]) -> list[float]:
    """Returns the seconds that each process waited for the rows of the slowest reader."""
    most = max(line["idle_s"])
    return [min(most - idle, busy) for idle, busy in zip(line["idle_s"], line["busy_s"], strict=True)]
