"""Reads what happened to a run from the logs in its folder: starts and ends, lost steps, stalls, and what every host did.

The folder may be another's: lines, or single metrics, of other types than the trainer writes are left out and counted.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import itertools
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.registry import ConfigError
from data import untrusted
from trainers import runlog
from trainers.monitoring import goodput, health, metrics
from trainers.monitoring.goodput import Goodput
from trainers.runlog import CORRUPTED, DIVERGED, DONE, PREEMPTED, UNSAVED

HOSTS = "hosts.jsonl"
"""The log of trainers/monitoring/hosts.py."""
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
_LOAD, _SCORE = "moe/load_", r"eval/[^/]+"  # names of metrics: experts' loads, and scores that are drawn
_NAME = re.compile(r"[\w.:+-]+(/[\w.:+-]+)*")  # of a metric
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)")
_LONGEST = 200  # characters of a name


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
      left_out: lines of the logs that are not, or not in all, what the trainer writes.
      goodput: None for a run of an older trainer.
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
    left_out: int
    goodput: Goodput | None

    @property
    def loads(self) -> list[str]:
        """Returns the names of the experts' loads, of the last step that has any."""
        last = next((line for line in reversed(self.steps) if any(name.startswith(_LOAD) for name in line)), {})
        return sorted(name for name in last if name.startswith(_LOAD))

    @property
    def load_lines(self) -> list[dict[str, Any]]:
        """Returns the lines with all loads, of as many experts as the last of them has."""
        whole = [line for line in self.steps if all(name in line for name in self.loads)]
        return [line for line in whole if all(len(line[name]) == len(whole[-1][name]) for name in self.loads)]

    @property
    def score_names(self) -> list[str]:
        """Returns the names of the scores of a whole evaluation."""
        return sorted({name for line in self.scores for name in line if re.fullmatch(_SCORE, name)})

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
    for name in ("metrics.jsonl", "run.jsonl", HOSTS, ".lock"):
        if (workdir / name).exists():
            untrusted.regular(workdir / name, ConfigError)
    lines, odd_lines = _sound(metrics.read(workdir), _metrics)
    steps = [line for line in lines if "loss" in line]
    named, host_lines, odd_hosts = _hosts(workdir)
    rates = [name for name in (steps[-1] if steps else {}) if name.endswith("_per_s") and not name.startswith(_LOAD)]
    units = [name.removesuffix("_per_s") for name in rates]
    unit = units[0] if units else "steps"
    per_s = [line[f"{unit}_per_s"] for line in steps if line.get(f"{unit}_per_s")]
    events, odd_events = _sound(runlog.events(workdir), _event)
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
        scores=[line for line in lines if any(re.fullmatch(_SCORE, name) for name in line)],
        starts=starts,
        stalls=_stalls(steps, unit, host_lines, named, {start.restored for start in starts}),
        hosts=named,
        host_lines=host_lines,
        notes=[_note(event) for event in events if event.get("event") not in ("start", "stop", "goodput")],
        unit=unit,
        rate=statistics.median(per_s) if per_s else 0.0,
        left_out=odd_lines + odd_hosts + odd_events,
        goodput=goodput.of_run(events, host_lines),
    )


def goodput_of(workdir: Path, last: Mapping[str, Any]) -> Goodput | None:
    """Returns the goodput of a run whose log will have one more event at its end."""
    events, _ = _sound([*runlog.events(workdir), {**last, "time": "2000-01-01T00:00:00Z"}], _event)
    return goodput.of_run(events, _hosts(workdir)[1])


def logged(workdir: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl, numbers by name."""
    return _sound(metrics.read(workdir), _metrics)[0]


def _sound(
    lines: Sequence[dict[str, Any]], check: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Returns what a check leaves of each line, without those of which it leaves nothing; and the number of those it changes."""
    checked = [(line, check(line)) for line in lines]
    return [left for _, left in checked if left], sum(left != line for line, left in checked)


def _metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    if not _is_count(line["step"]):
        return {}

    def is_metric(name: str, value: Any) -> bool:
        if len(name) > _LONGEST or not _NAME.fullmatch(name):
            return False
        return _are_numbers(value) if name.startswith(_LOAD) else value is None or _is_number(value)

    return {name: value for name, value in line.items() if is_metric(name, value)}


_EVENT: dict[str, Callable[[Any], bool]] = {
    "event": lambda x: isinstance(x, str),
    "time": lambda x: _is_time(x),
    "host": lambda x: isinstance(x, str),
    "error": lambda x: isinstance(x, str),
    "experiment": lambda x: isinstance(x, str),
    "restored": lambda x: x is None or _is_count(x),
    "step": lambda x: x is None or _is_count(x),
    "began": lambda x: _is_number(x) and 0 <= x < 1e11,
    "exit_code": lambda x: x is None or (type(x) is int and abs(x) < 1000),
}


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    known = all(check(event[name]) for name, check in _EVENT.items() if name in event)
    known = known and (event.get("event") != "goodput" or goodput.is_sound(event))
    return dict(event) if known and {"event", "time"} <= event.keys() and untrusted.depth(event) < 10 else {}


def _host_line(line: Mapping[str, Any]) -> dict[str, Any]:
    if "hosts" in line:
        names = line["hosts"]
        return dict(line) if isinstance(names, list) and all(isinstance(name, str) for name in names) else {}
    each = [line.get(name) for name in ("waited_s", "memory_gib")]
    sound = _is_count(line.get("step")) and _is_time(line.get("time")) and all(map(_are_numbers, each))
    return dict(line) if sound and len(set(map(len, filter(None, each)))) == 1 and health.is_sound(line) else {}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not abs(value) >= 1e100  # NaN is one


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 1 << 16 and all(map(_is_number, value))


def _is_time(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        return bool(_TIME.fullmatch(value) and datetime.datetime.fromisoformat(value))
    return False


def _hosts(workdir: Path) -> tuple[list[str], list[dict[str, Any]], int]:
    """Returns the hosts of the last start, the lines about steps, and the number of odd ones; broken lines are skipped."""
    path, written = workdir / HOSTS, list[dict[str, Any]]()
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            written += [line] if isinstance(line, dict) else []
    lines, odd = _sound(written, _host_line)
    named = next((line["hosts"] for line in reversed(lines) if "hosts" in line), [])
    return named, [line for line in lines if "hosts" not in line], odd


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
    steps: Sequence[dict[str, Any]], unit: str, host_lines: Sequence[dict[str, Any]], named: Sequence[str], begun: set[int]
) -> list[Stall]:
    """Returns the slow intervals, but for those in which a start `begun` at one of these steps: they have its own delays."""
    rate = f"{unit}_per_s"
    timed = [(line["step"], (line.get(unit) or 1) / line[rate]) for line in steps if line.get(rate)]
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
