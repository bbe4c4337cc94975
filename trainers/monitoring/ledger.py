"""Measures where the time of a start goes, by the parts of trainers/monitoring/goodput.py, and writes it to run.jsonl.

Steps run behind the host, which keeps two of them in flight. A thread waits for each step's loss and so knows when the devices of
this process have no work. Time in which they compute, or wait in a collective, belongs to the step; time without work belongs to
what the host does meanwhile: a process that waits for rows while a step is under way loses nothing. The loop waits for nothing
more than it does without this, but for the newest step where it waits for that anyway: at logs and saves.
"""

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from models.errors import UserError
from trainers import runlog
from trainers.monitoring import history
from trainers.monitoring.goodput import COMPILE, DATA, EVALUATION, RECOMPUTED, SAVE, START, STEPS, WAITING
from trainers.monitoring.observer import EVALUATING, READING, SAVING, STEPPING, Logged, Observer

_PARTS = {READING: DATA, STEPPING: WAITING, EVALUATING: EVALUATION, SAVING: SAVE}  # of idle devices, by the loop's phase
_SELDOM, _OFTEN = 60.0, 1.0  # seconds: between events at logs at most, at saves at least
_POLL = 1e-3  # seconds
_PATIENCE = 5.0  # seconds that the end of a start waits for its last step


class Account:
    """Nanoseconds by part, without gaps, of one start; times are those of one clock, in order.

    Attributes:
      now: the moment up to which all is accounted for.
      ns: by part, since the start.
      taken: steps.
    """

    def __init__(self, now: int):
        self.now, self.ns = now, Counter[str]()
        self._part = START
        self.taken = self._first = self._others = 0  # and the time of the first step until it is divided, of the others

    def until(self, then: int, part: str = "") -> None:
        """Adds the time up to a moment, in which devices had no work, to a part; by default to the present one."""
        if then > self.now:
            self.ns[part or self._part] += then - self.now
            self.now = then

    def enter(self, then: int, part: str) -> None:
        """The host begins with a part."""
        self.until(then)
        self._part = part

    def step(self, began: int, ended: int) -> None:
        """Adds a step, which devices began no earlier than these."""
        self.until(began)
        spent = max(0, ended - self.now)
        self.until(ended, STEPS)
        self.taken += 1
        if self.taken == 1:
            self._first = spent
        else:
            self._others += spent

    def divide_first(self) -> None:
        """Counts what the first step took beyond the mean of the others as compilation, once there are others."""
        if self.taken > 1 and self._first:
            self.move(self._first - self._others // (self.taken - 1), COMPILE)
        self._first = 0 if self.taken else self._first

    def move(self, ns: int, part: str) -> None:
        """Counts so much of the steps' time as another part."""
        ns = min(max(0, ns), self.ns[STEPS])
        self.ns[STEPS] -= ns
        self.ns[part] += ns


def arrivals(shards: Sequence[Any], clock: Callable[[], int], sleep: Callable[[float], object] = time.sleep) -> list[int]:
    """Returns when each of these arrays, one of each device, was seen to be ready, to a millisecond."""
    at = [0] * len(shards)
    while waiting := [number for number, ns in enumerate(at) if not ns]:
        for number in waiting:
            at[number] = clock() if shards[number].is_ready() else 0
        if not all(at):
            sleep(_POLL)
    return at


class Ledger(Observer):
    """Watches one start. Every process has one; process 0 writes events.

    Args:
      began: when the command started, in seconds since 1970.
      step: the start goes on from this one.
      log_every: `train.log_every`: at these steps each local device's end is looked at by itself.

    Attributes:
      step: the newest step.
      late: by local device, seconds by which it ended the newest of these steps after the first of them; empty for one device.
    """

    def __init__(
        self,
        workdir: Path,
        began: float,
        step: int,
        log_every: int,
        clock: Callable[[], int] = time.perf_counter_ns,
        now: Callable[[], float] = time.time,
    ):
        self.workdir, self._every, self._clock, self._leader = workdir, log_every, clock, jax.process_index() == 0
        self.late: list[float] = []
        self._account = Account(clock() - max(0, round(1e9 * (now() - began))))
        self._since = round(1000 * began)  # milliseconds since 1970, up to which events are written
        self._written = Counter[str]()  # milliseconds by part
        self.step = self._from = step
        self._works = False  # a run that was done already is left as it is
        self._stepping = self._account.now
        self._queue = queue.SimpleQueue[Callable[[], object] | None]()
        threading.Thread(target=self._work, daemon=True, name="ledger").start()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            with contextlib.suppress(Exception):  # a step that fails raises in the loop too
                task()

    def enter(self, part: str) -> None:
        """A part of the start begins now."""
        then, self._works = self._clock(), True
        self._queue.put(lambda: self._account.enter(then, part))

    def settled(self, seconds: float | None = None) -> Mapping[str, int]:
        """Returns nanoseconds by part up to now, once the newest step has ended, or after so many seconds."""
        then, done = self._clock(), threading.Event()
        self._queue.put(lambda: self._account.until(then))
        self._queue.put(done.set)
        done.wait(seconds)
        return self._account.ns

    def divide_first(self) -> None:
        """Counts what the first step took beyond the others as compilation, once there are others."""
        self._queue.put(lambda: self._account.divide_first() if self._account.taken > 1 else None)

    # --- events of the run

    def started(self) -> None:
        self.settled()
        self._write()

    def entered(self, step: int, phase: str) -> None:
        if phase == STEPPING:
            self._stepping = self._clock()
        if phase == SAVING:  # which waits for the newest step too
            self.settled()
            self._write(seldom=_OFTEN)
        self.enter(_PARTS[phase])

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.step = step
        began, loss, alone = self._stepping, metrics["loss"], step % self._every == 0

        def wait() -> None:
            shards = [shard.data for shard in loss.addressable_shards] if alone else []
            try:
                if len(shards) > 1:
                    at = arrivals(shards, self._clock)
                    self.late = [(ns - min(at)) / 1e9 for ns in at]
                jax.block_until_ready(loss)
            finally:
                self._account.step(began, self._clock())

        self._queue.put(wait)

    def waited_for_others(self, seconds: float) -> None:
        """Counts so much of the steps' time as waiting: the devices of other processes had no rows meanwhile."""
        self._account.move(min(round(1e9 * seconds), self._account.ns[STEPS] - 1_000_000 * self._written[STEPS]), WAITING)

    def logged(self, log: Logged) -> None:
        self._write(seldom=_SELDOM)

    def rewound(self, step: int) -> None:
        then = self._clock()
        self._queue.put(lambda: self._account.until(then, RECOMPUTED))
        self.settled()
        self._write()
        self.step = self._from = step

    def close(self, say: Callable[[str], object]) -> None:
        """Writes what is left, on process 0, and says the run's goodput in a line."""
        self.settled(_PATIENCE)
        self._queue.put(None)
        with contextlib.suppress(runlog.StoreError, UserError):  # a full disk is why the run ends
            line = self._write(last=True) if self._works else ""
            if line:
                say(line)

    # --- writing

    def _write(self, *, seldom: float = 0.0, last: bool = False) -> str:
        """Appends an event, unless the last one is younger than so many seconds.

        Args:
          last: the event also has the goodput of the whole run, which is returned in a line.
        """
        elapsed = sum(self._account.ns.values()) // 1_000_000 - sum(self._written.values())
        if not self._leader or elapsed < 1000 * seldom:
            return ""
        self._account.divide_first()
        total = Counter({part: (ns + 500_000) // 1_000_000 for part, ns in self._account.ns.items()})
        ms = {part: x - self._written[part] for part, x in total.items() if x != self._written[part]}
        steps = self.step - self._from
        fields = {"step": self.step, "steps": steps, "since": self._since / 1000}
        fields["seconds"] = {part: x / 1000 for part, x in ms.items()}
        whole = history.goodput_of(self.workdir, {"event": "goodput"} | fields) if last else None
        if whole:
            fields |= {"goodput": round(whole.share, 4), "wall_s": round(whole.wall, 3)}
        runlog.append(self.workdir, "goodput", **fields)
        self._written, self._from = total, self.step
        self._since += sum(ms.values())
        return str(whole or "")
