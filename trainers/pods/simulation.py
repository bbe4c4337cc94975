"""The schedule of one step on a device, and a simulation of it: waiting, hidden transfers, and total time.

A scheduled TPU program runs its instructions in the order of its text, one at a time. Operations that they start and later wait
for run concurrently: transfers over the links between chips, copies between a chip's memories, and copies from and to the host's.
Each direction of a link of the torus or to the host, and the memory, is a queue that serves one transfer after the other; queues
do not slow each other or the computation.
"""

import dataclasses
import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

CORE = ("matrix", "vector", "kernel", "unpriced")  # kinds of instructions that a core itself computes
SIMULATED = 3  # iterations of a loop that are simulated; all others take as long as the last of these
SPANS = 4000  # spans that are kept, the longest


@dataclasses.dataclass(frozen=True)
class Row:
    """An instruction and its cost in a step.

    Attributes:
      name: the instruction's name in the program.
      kind: "matrix" (has a matrix product), "vector", "kernel" (Pallas), "unpriced" (no estimate: bytes over the bandwidth of the
        memory), "dma" (a copy between memories), "host" (one from or to the host's), or a collective's kind.
      label: the last part of JAX's name for the operation, such as "dot_general".
      component: "forward", "backward", "rematerialised", "optimizer" or "other".
      source: "file:line" that was traced, "" where none is noted.
      shape: its results as text; for a collective, the arrays of its larger side.
      axes: mesh axes of a collective, see trainers.hlo.collectives; () for everything else.
      in_loop: whether it is inside a loop.
      bytes: bytes of one run: those of `shape` for a collective, those moved by a copy, else those that it reads and writes in
        main memory.
      flops: FLOPs of its matrix products in one run.
      times: runs in a step.
      seconds: time of all its runs, hidden or not.
      exposed: seconds by which it lengthens the step; for work of a core, all of its time.
    """

    name: str
    kind: str
    label: str
    component: str
    source: str
    shape: str
    axes: tuple[str, ...] | None
    in_loop: bool
    bytes: int
    flops: float
    times: int = 0
    seconds: float = 0.0
    exposed: float = 0.0


@dataclasses.dataclass(frozen=True)
class Work:
    """One run of an instruction: its row, its seconds, and the queues that it occupies (none for work of a core)."""

    row: Row
    seconds: float
    queues: frozenset[Hashable] = frozenset()


@dataclasses.dataclass(frozen=True)
class Run:
    """Performs the work and continues when it is done; work that needs queues waits for them first."""

    work: Work


@dataclasses.dataclass(frozen=True)
class Start:
    """Puts the work on its queues and continues at once."""

    work: Work
    key: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Waits for the work that was started under this key; `name` is the instruction that waits."""

    key: str
    name: str


@dataclasses.dataclass(frozen=True)
class Loop:
    name: str
    trips: int
    body: "Sequence[Step]"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Alternative branches, of which the one that takes longest runs."""

    branches: "Sequence[Sequence[Step]]"


Iterations = tuple[tuple[str, int, int], ...]  # (name, iteration, trips) of each enclosing loop, outermost first
Step = Run | Start | Wait | Loop | Choice


@dataclasses.dataclass(frozen=True)
class Span:
    """A bar of the timeline, in seconds from the beginning of the step.

    Only the first iterations of a loop have bars, at their times in the step; the last of these stands for all that follow.

    Attributes:
      lane: "matrix", "vector" (with "unpriced"), "kernel", "wait" (the core waits for a collective or a copy), "links", "dma",
        "host".
      label: the label of the instruction's row.
      kind: the kind of that row.
      loops: the iterations that it is in.
    """

    start: float
    end: float
    lane: str
    label: str
    kind: str
    loops: Iterations


class Simulation:
    """The state of a device while it runs a schedule.

    Attributes:
      now: seconds since the step began.
      problems: messages about work that is waited for and never started, or the reverse.
    """

    def __init__(self):
        self.now = 0.0
        self.free: dict[Hashable, float] = {}  # when each queue becomes idle
        self.in_flight: dict[str, tuple[float, Work]] = {}  # by key, with the time of arrival
        self.rows: dict[str, Row] = {}
        self.times: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.exposed: dict[str, float] = defaultdict(float)
        self.spans: list[Span] = []
        self.problems: dict[str, None] = {}  # in order, without duplicates

    def run(self, steps: Sequence[Step], times: int = 1, loops: Iterations = ()) -> None:
        """Continues the simulation with a schedule.

        Args:
          times: the number of runs in the step that this one stands for.
          loops: the iterations that it is in.
        """
        for step in steps:
            match step:
                case Run(work) | Start(work):
                    begin = max([self.now, *(self.free.get(queue, 0.0) for queue in work.queues)])
                    end = begin + work.seconds
                    self.free.update(dict.fromkeys(work.queues, end))
                    self._count(work, times)
                    self._span(begin, end, work.row, loops, waits=False)
                    if isinstance(step, Start):
                        self._forget(step.key)
                        self.in_flight[step.key] = end, work
                    else:
                        self._until(end, work, times, loops)
                case Wait(key, name):
                    if key in self.in_flight:
                        self._until(*self.in_flight.pop(key), times, loops)
                    else:
                        self.problems[f"%{name} waits for something that was not started"] = None
                case Loop():
                    self._loop(step, times, loops)
                case Choice(branches):
                    trials = [self._trial(branch) for branch in branches]
                    self.run(branches[trials.index(max(trials))], times, loops)

    def finish(self) -> tuple[list[Row], list[Span]]:
        """Returns rows, most seconds first, and spans in the order of time; work still in flight becomes a problem."""
        for key in list(self.in_flight):
            self._forget(key)
        rows = [
            dataclasses.replace(row, times=self.times[name], seconds=self.seconds[name], exposed=self.exposed[name])
            for name, row in self.rows.items()
        ]
        spans = heapq.nlargest(SPANS, self.spans, key=lambda span: span.end - span.start)
        return sorted(rows, key=lambda row: -row.seconds), sorted(spans, key=lambda span: span.start)

    def _loop(self, loop: Loop, times: int, loops: Iterations) -> None:
        simulated = min(loop.trips, SIMULATED)
        begin, free = self.now, self.free
        for iteration in range(simulated):
            remaining = loop.trips - simulated if iteration == simulated - 1 else 0
            begin, free = self.now, dict(self.free)
            self.run(loop.body, times * (1 + remaining), (*loops, (loop.name, iteration, loop.trips)))
        skipped_s = (loop.trips - simulated) * (self.now - begin)
        self.now += skipped_s
        for queue, end in self.free.items():
            if free.get(queue) != end:  # the loop uses it, so it is as busy after the last iteration
                self.free[queue] = end + skipped_s

    def _trial(self, steps: Sequence[Step]) -> float:
        """Returns the time at which a schedule would be done."""
        trial = Simulation()
        trial.now, trial.free, trial.in_flight = self.now, dict(self.free), dict(self.in_flight)
        trial.run(steps)
        return trial.now

    def _forget(self, key: str) -> None:
        """Drops work in flight under a key that will not be waited for, which is a problem."""
        if key in self.in_flight:
            _, work = self.in_flight.pop(key)
            self.problems[f"%{work.row.name} is started and never waited for"] = None

    def _count(self, work: Work, times: int) -> None:
        self.rows[work.row.name] = work.row
        self.times[work.row.name] += times
        self.seconds[work.row.name] += times * work.seconds

    def _until(self, end: float, work: Work, times: int, loops: Iterations) -> None:
        """Makes the core wait for this work until a time."""
        if end > self.now:
            self.exposed[work.row.name] += times * (end - self.now)
            self._span(self.now, end, work.row, loops, waits=True)
            self.now = end

    def _span(self, start: float, end: float, row: Row, loops: Iterations, *, waits: bool) -> None:
        """Adds a bar: one for work of the core; one for a transfer, and another where the core waits for it."""
        if row.kind in CORE:
            lane = "" if waits else row.kind.replace("unpriced", "vector")
        else:
            lane = "wait" if waits else row.kind if row.kind in ("dma", "host") else "links"
        if lane and end > start:
            self.spans.append(Span(start, end, lane, row.label, row.kind, loops))
