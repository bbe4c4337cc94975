"""Goodput: the share of a run's wall time, since its first start, in which it took steps that were not lost.

Every second belongs to one of PARTS, as ml-goodput-measurement divides a job's time (docs/OPERATIONS.md has its names). The
trainer writes seconds by part as events "goodput" of run.jsonl (trainers/monitoring/ledger.py):

    {"event": "goodput", "since": 1700000000.123, "step": 40, "steps": 20, "seconds": {"steps": 9.5, "save": 0.4}, ...}

for the 20 steps up to step 40, from `since` (in seconds since 1970) on. Time after the last event of a start that was killed is
known from hosts.jsonl alone: up to its last line it counts as steps.
"""

import bisect
import dataclasses
import datetime
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

START, COMPILE, STEPS, DATA, SAVE = "start", "compile", "steps", "data", "save"
EVALUATION, RECOMPUTED, WAITING, DOWN = "evaluation", "recomputed", "waiting", "down"
LOSSES = {
    START: "from the command to the compilation: imports, joining the other processes, opening data, restoring",
    COMPILE: "compiling the step, and what the first step of a start takes beyond the mean of the others",
    DATA: "devices had no work, since the rows of the next step were not there",
    SAVE: "devices had no work, while arrays were copied for a checkpoint, or the last one was written",
    EVALUATION: "devices had no work but to score",
    RECOMPUTED: "steps that were lost with a start or by going back, and going back itself",
    WAITING: "waiting for the rows of other processes, for lost ones, for logs and the host",
    DOWN: "between the last sign of life of a start and the next start",
}
"""Parts of a run's time that are not productive."""
PARTS = (STEPS, *LOSSES)

_LATEST = 1e11  # seconds since 1970
_LONGEST = 1e9  # seconds


@dataclasses.dataclass(frozen=True)
class Goodput:
    """A run's time.

    Attributes:
      steps: steps that were not lost.
      seconds: by part, all of PARTS; STEPS has those of steps that were not lost.
    """

    steps: int
    seconds: Mapping[str, float]

    @property
    def wall(self) -> float:
        """Returns the seconds from the first start to the last sign of life."""
        return math.fsum(self.seconds.values())

    @property
    def share(self) -> float:
        """Returns the productive share of the wall time, 0 to 1."""
        return self.seconds[STEPS] / self.wall if self.wall else 0.0

    def losses(self) -> list[tuple[str, float]]:
        """Returns (part, its share of the wall time) of the losses of at least 0.05 %, the greatest first."""
        shares = [(part, self.seconds[part] / self.wall) for part in LOSSES if self.wall]
        return sorted([(part, share) for part, share in shares if share >= 0.0005], key=lambda item: -item[1])

    def __str__(self) -> str:
        losses = ", ".join(f"{part} {share:.1%}" for part, share in self.losses())
        return f"goodput {self.share:.1%} of {self.wall:,.0f} s" + (f": {losses}" if losses else "")


def is_sound(event: Mapping[str, Any]) -> bool:
    """Returns whether an event "goodput" has the fields and types that the trainer writes."""
    seconds, steps, step = (event.get(name) for name in ("seconds", "steps", "step"))
    return (
        _number(event.get("since"), _LATEST)
        and isinstance(seconds, dict)
        and all(part in PARTS and _number(x, _LONGEST) for part, x in seconds.items())
        and isinstance(steps, int)
        and isinstance(step, int)
        and bool not in (type(steps), type(step))
        and 0 <= steps <= step < 2**53
    )


def of_run(events: Sequence[Mapping[str, Any]], host_lines: Sequence[Mapping[str, Any]]) -> Goodput | None:
    """Returns the goodput of all starts of a run; None where no event tells of it.

    Clocks that were set back count as if they had stood still.

    Args:
      events: run.jsonl, in order; events that are not sound are left out.
      host_lines: the lines of hosts.jsonl about steps, with "time" and "step".
    """
    if not any(event.get("event") == "goodput" and is_sound(event) for event in events):
        return None
    seen = sorted((ms_of(line["time"]), line["step"]) for line in host_lines)
    starts = [_began(event) for event in events if event.get("event") == "start"]
    run, number = _Run(starts[0] if starts else math.inf), 0
    for event in events:
        match event.get("event"):
            case "start":
                number += 1
                run.start(event, seen, starts[number - 1])
            case "goodput" if is_sound(event):
                run.record(event)
            case "stop":
                run.tail(seen, ms_of(event["time"]) + 1000)  # whose time has no milliseconds
                run.until(ms_of(event["time"]), WAITING)
    run.tail(seen, math.inf)
    return run.goodput()


class _Run:
    """Adds up a run's time, in whole milliseconds, so that the parts are exactly the whole.

    Attributes:
      now: the end of what has been added.
      loaded: when the present start had its state, if no event tells more of it.
      done: (from step, to step, ms) of steps that have not been lost, in order.
    """

    def __init__(self, now: float):
        self.now, self.ms = now, Counter[str]()
        self.done: list[tuple[int, int, int]] = []
        self.step = self.loaded = 0

    def until(self, then: int, part: str) -> None:
        """Adds the time up to a moment, if it is later than now, to a part."""
        if then > self.now:
            self.ms[part] += then - int(self.now)
            self.now = then

    def start(self, event: Mapping[str, Any], seen: Sequence[tuple[int, int]], began: int) -> None:
        self.tail(seen, began)
        self.until(began, DOWN)
        self.loaded = ms_of(event["time"])
        self.step = event.get("restored") or 0
        self.lose(self.step)

    def record(self, event: Mapping[str, Any]) -> None:
        since, self.loaded = _ms(event["since"]), 0
        self.now = min(self.now, since) if self.now == math.inf else self.now
        self.until(since, WAITING)
        ms = {part: _ms(seconds) for part, seconds in event["seconds"].items()}
        self.now += sum(ms.values())
        self.ms.update({part: x for part, x in ms.items() if part != STEPS})
        self.lose(event["step"] - event["steps"])
        self.take(event["step"], ms.get(STEPS, 0))

    def tail(self, seen: Sequence[tuple[int, int]], before: float) -> None:
        """Adds the time up to the last line of hosts.jsonl before a moment."""
        self.until(self.loaded, START)
        for at, step in itertools.islice(seen, bisect.bisect_right(seen, (self.now, math.inf)), None):
            if at >= before:
                return
            if step > self.step:
                spent, self.now = at - int(self.now), at
                self.take(step, spent)
            else:
                self.until(at, WAITING)

    def take(self, step: int, ms: int) -> None:
        """Adds the steps up to one."""
        self.done.append((self.step, step, ms))
        self.step = step

    def lose(self, step: int) -> None:
        """Counts the steps after one as lost; of steps that are known together, their part of the time."""
        while self.done and (self.done[-1][1] > step or self.done[-1][0] > step):
            first, last, ms = self.done.pop()
            kept = ms * max(0, step - first) // max(1, last - first)
            self.ms[RECOMPUTED] += ms - kept
            if step > first:
                self.done.append((first, step, kept))
        self.step = step

    def goodput(self) -> Goodput:
        seconds = {part: self.ms[part] / 1000 for part in PARTS}
        seconds[STEPS] = sum(ms for _, _, ms in self.done) / 1000
        return Goodput(sum(last - first for first, last, _ in self.done), seconds)


def _number(value: Any, most: float) -> bool:
    return type(value) in (int, float) and 0 <= value <= most


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def ms_of(time: str) -> int:
    """Returns milliseconds since 1970 of a time in ISO 8601."""
    return _ms(datetime.datetime.fromisoformat(time).timestamp())


def _began(event: Mapping[str, Any]) -> int:
    return _ms(event["began"]) if _number(event.get("began"), _LATEST) else ms_of(event["time"])
