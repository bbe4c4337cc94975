"""What happened to a run, from the logs in its folder: starts and ends, lost steps, stalls, and what every host did."""

import contextlib
import dataclasses
import datetime
import fcntl
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers import metrics, runlog
from trainers.monitoring import hosts
from trainers.runlog import CORRUPTED, DIVERGED, DONE, PREEMPTED, UNSAVED

ENDS = {
    DONE: "finished",
    PREEMPTED: "stopped by a signal, saved",
    DIVERGED: "too many steps without a finite loss",
    CORRUPTED: "silent corruption",
    UNSAVED: "nothing could be saved",
    1: "error",
    2: "refused",
}
"""Exit codes in words."""

_SLOW = 3  # times the median, from which on an interval is a stall
_LEAST = 1.0  # seconds that a stall costs at least


@dataclasses.dataclass
class Start:
    """One start of a run.

    Attributes:
      time, ended: ISO 8601 in UTC; `ended` is the last sign of life where nothing says how it ended.
      restored: the step that it began at.
      last: the last step that it is known to have done.
      exit_code: None where it never said.
      lost: steps that it did and the next start did again.
      silence: why there is no exit code.
    """

    time: str
    host: str
    restored: int
    last: int
    ended: str
    exit_code: int | None = None
    error: str = ""
    lost: int = 0
    silence: str = "killed: no word of its end"


@dataclasses.dataclass(frozen=True)
class Stall:
    """A logged interval that was slow: seconds of each step, and seconds beyond those of the median step; the host that waited
    for rows for most of it, if one did."""

    step: int
    per_step: float
    seconds: float
    waited_most: str


@dataclasses.dataclass(frozen=True)
class History:
    """A run, as its logs tell it.

    Attributes:
      steps: the lines of metrics.jsonl about training; `scores` those about evaluation.
      host_lines: the lines of hosts.jsonl about steps, also about lost ones, in order.
      hosts: the machine of every process of the last start.
      notes: (time, name, the rest) of every other event in run.jsonl, such as going back after a spike of the loss.
      unit: the unit of work of the throughput; `rate` is its median per second.
      trained_s, idle_s: seconds between starts and ends, and between ends and the next starts.
    """

    experiment: str
    state: str
    steps: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    starts: list[Start]
    stalls: list[Stall]
    hosts: list[str]
    host_lines: list[dict[str, Any]]
    notes: list[tuple[str, str, str]]
    unit: str
    rate: float

    @property
    def loads(self) -> list[str]:
        """Returns the names of the experts' loads."""
        return sorted({name for line in self.steps for name in line if name.startswith("moe/load_")})

    @property
    def seen(self) -> str:
        return self.starts[-1].ended if self.starts else ""

    @property
    def trained_s(self) -> float:
        return sum(_seconds(start.time, start.ended) for start in self.starts)

    @property
    def idle_s(self) -> float:
        pairs = zip(self.starts, self.starts[1:], strict=False)
        return sum(max(0.0, _seconds(start.ended, following.time)) for start, following in pairs)


def read(workdir: Path) -> History:
    """Returns a run's history. Logs that are missing leave their part empty."""
    lines = metrics.read(workdir)
    steps = [line for line in lines if "loss" in line]
    named, host_lines = _hosts(workdir)
    units = [name.removesuffix("_per_s") for name in (steps[-1] if steps else {}) if name.endswith("_per_s")]
    unit = units[0] if units else "steps"
    per_s = [line[f"{unit}_per_s"] for line in steps if line.get(f"{unit}_per_s")]
    events = runlog.events(workdir)
    starts = _starts(events, host_lines)
    if starts and _is_held(workdir):
        starts[-1].silence = state = "running"
    elif starts:
        last = starts[-1]
        state = last.silence if last.exit_code is None else ENDS.get(last.exit_code, f"exit code {last.exit_code}")
    else:
        state = "no record of a start"
    return History(
        experiment=next((event["experiment"] for event in events if "experiment" in event), ""),
        state=state,
        steps=steps,
        scores=[line for line in lines if any(name.startswith("eval/") for name in line)],
        starts=starts,
        stalls=_stalls(steps, unit, host_lines, named, {start.restored for start in starts}),
        hosts=named,
        host_lines=host_lines,
        notes=[_note(event) for event in events if event.get("event") not in ("start", "stop")],
        unit=unit,
        rate=statistics.median(per_s) if per_s else 0.0,
    )


def _hosts(workdir: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the hosts of the last start, and the lines about steps; broken lines are skipped."""
    path, named, lines = workdir / hosts.FILE, [], []
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict) and "hosts" in line:
                named = line["hosts"]
            elif isinstance(line, dict) and {"step", "time", "waited_s", "memory_gib"} <= line.keys():
                lines.append(line)
    return named, lines


def _starts(events: Sequence[dict[str, Any]], host_lines: Sequence[dict[str, Any]]) -> list[Start]:
    starts: list[Start] = []
    for event in events:
        if event.get("event") == "start":
            at = event.get("restored") or 0
            starts.append(Start(event["time"], event.get("host", ""), at, at, event["time"]))
        elif event.get("event") == "stop" and starts:
            start = starts[-1]
            start.ended, start.exit_code, start.error = event["time"], event.get("exit_code"), event.get("error", "")
            start.last = max(start.last, event.get("step") or 0)
    for start, following in itertools.zip_longest(starts, starts[1:]):
        until = following.time if following else "9"
        for line in host_lines:
            if start.time <= line["time"] < until:
                start.last = max(start.last, line["step"])
                start.ended = max(start.ended, line["time"]) if start.exit_code is None else start.ended
        if following:
            start.lost = max(0, start.last - following.restored)
    return starts


def _note(event: dict[str, Any]) -> tuple[str, str, str]:
    fields = (f"{name}={value}" for name, value in event.items() if name not in ("time", "event", "pid"))
    return str(event.get("time", "")), str(event.get("event", "")), " ".join(fields)


def _stalls(
    steps: Sequence[dict[str, Any]],
    unit: str,
    host_lines: Sequence[dict[str, Any]],
    named: Sequence[str],
    begun: set[int],
) -> list[Stall]:
    """Returns the slow intervals, but for those in which a start `begun` at one of these steps: they have its own delays."""
    rate = f"{unit}_per_s"
    timed = [(line["step"], line.get(unit, 1) / line[rate]) for line in steps if line.get(rate)]
    if not timed:
        return []
    usual = statistics.median(seconds for _, seconds in timed)
    waits = {line["step"]: line["waited_s"] for line in host_lines}  # the last time that a step was done
    stalls = []
    for (step, seconds), (before, _) in zip(timed, [(0, 0.0), *timed], strict=False):
        extra = (seconds - usual) * max(step - before, 1)
        started = any(before <= at < step for at in begun)
        if seconds > _SLOW * usual and extra >= _LEAST and not started:
            waited = waits.get(step, [0.0])
            most = max(range(len(waited)), key=lambda number: waited[number])
            name = named[most] if most < len(named) else ""
            blamed = f"process {most} on {name}: {waited[most]:.1f} s" if waited[most] > extra / 2 else ""
            stalls.append(Stall(step, seconds, extra, blamed))
    return stalls


def _is_held(workdir: Path) -> bool:
    """Returns whether a process of this machine, or of a file system with locks, is training in the folder."""
    path = workdir / ".lock"
    if not path.is_file():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _seconds(begin: str, end: str) -> float:
    return (datetime.datetime.fromisoformat(end) - datetime.datetime.fromisoformat(begin)).total_seconds()
