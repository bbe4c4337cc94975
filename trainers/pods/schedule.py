"""What a device does in one step, in order, and a simulation of it: what waits, what is hidden, how long it all takes.

A scheduled TPU program runs its instructions in the order of its text, one at a time. Beside them run what they start and later
wait for: transfers over the links between chips, and copies between a chip's memories. Each link direction of the torus, and the
memory, is a queue that serves one transfer after the other; they do not slow each other or the computation.
"""

import dataclasses
import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

CORE = ("matrix", "vector", "kernel", "unpriced")  # kinds of what a core itself computes
SIMULATED = 3  # iterations of a loop; the rest take as long as the last of them
SPANS = 4000  # the longest are kept


@dataclasses.dataclass(frozen=True)
class Row:
    """An instruction and what it costs in a step.

    Attributes:
      name: the instruction's in the program.
      kind: "matrix" (has a matrix product), "vector", "kernel" (Pallas), "unpriced" (no estimate: bytes over the bandwidth of the
        memory), "dma" (a copy between memories), or a collective's kind.
      label: the last part of JAX's name for where it comes from, as "dot_general".
      component: "forward", "backward", "rematerialised", "optimizer" or "other".
      source: "file:line" that was traced, "" where nothing is noted.
      shape: its results as text; of a collective the arrays of its larger side.
      axes: mesh axes of a collective, see trainers.programs.collectives; () of everything else.
      in_loop: whether a loop is around it.
      bytes: of one run: of a collective those of `shape`, of a copy what it moves, else what it reads and writes in main memory.
      flops: of its matrix products, one run.
      times: runs in a step.
      seconds: all its runs, hidden or not.
      exposed: by how much it lengthens the step; of what a core computes all of it.
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
    """One run of an instruction: its row, its seconds, and the queues that it occupies, none if a core computes it."""

    row: Row
    seconds: float
    queues: frozenset[Hashable] = frozenset()


@dataclasses.dataclass(frozen=True)
class Run:
    """Does it and goes on when it is done; what needs queues waits for them first."""

    work: Work


@dataclasses.dataclass(frozen=True)
class Start:
    """Puts it on its queues and goes on at once."""

    work: Work
    key: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Goes on when what was started under this key is done; `name` is the instruction that waits."""

    key: str
    name: str


@dataclasses.dataclass(frozen=True)
class Loop:
    name: str
    trips: int
    body: "Sequence[Step]"


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several, the one that takes longest."""

    branches: "Sequence[Sequence[Step]]"


Iterations = tuple[tuple[str, int, int], ...]  # of the loops around, outermost first: name, number, how many there are
Step = Run | Start | Wait | Loop | Choice


@dataclasses.dataclass(frozen=True)
class Span:
    """A bar of the timeline, in seconds from the step's begin.

    Of a loop the first iterations have bars, and are where they are in the step; the last of them stands for all that follow.

    Attributes:
      lane: "matrix", "vector" (with "unpriced"), "kernel", "wait" (the core waits for a collective or a copy), "links", "dma".
      label: the instruction's row's.
      kind: the same.
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
      problems: what was waited for and never started, or the other way round.
    """

    def __init__(self):
        self.now = 0.0
        self.free: dict[Hashable, float] = {}  # when each queue is done with what it has
        self.flying: dict[str, tuple[float, Work]] = {}  # by key, with the time of arrival
        self.rows: dict[str, Row] = {}
        self.times: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.exposed: dict[str, float] = defaultdict(float)
        self.spans: list[Span] = []
        self.problems: dict[str, None] = {}  # in order, once each

    def run(self, steps: Sequence[Step], times: int = 1, loops: Iterations = ()) -> None:
        """Runs a schedule on.

        Args:
          times: how many runs in the step this one stands for.
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
                        self.flying[step.key] = end, work
                    else:
                        self._until(end, work, times, loops)
                case Wait(key, name):
                    if key in self.flying:
                        self._until(*self.flying.pop(key), times, loops)
                    else:
                        self.problems[f"%{name} waits for something that was not started"] = None
                case Loop():
                    self._loop(step, times, loops)
                case Choice(branches):
                    trials = [self._trial(branch) for branch in branches]
                    self.run(branches[trials.index(max(trials))], times, loops)

    def finish(self) -> tuple[list[Row], list[Span]]:
        """Rows, most seconds first, and spans in the order of time; what still flies becomes a problem."""
        for key in list(self.flying):
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
            rest = loop.trips - simulated if iteration == simulated - 1 else 0
            begin, free = self.now, dict(self.free)
            self.run(loop.body, times * (1 + rest), (*loops, (loop.name, iteration, loop.trips)))
        rest = (loop.trips - simulated) * (self.now - begin)
        self.now += rest
        for queue, end in self.free.items():
            if free.get(queue) != end:  # the loop uses it, so it is as busy after the last iteration
                self.free[queue] = end + rest

    def _trial(self, steps: Sequence[Step]) -> float:
        """When a schedule would be done."""
        trial = Simulation()
        trial.now, trial.free, trial.flying = self.now, dict(self.free), dict(self.flying)
        trial.run(steps)
        return trial.now

    def _forget(self, key: str) -> None:
        """What still flies under a key will not be waited for."""
        if key in self.flying:
            _, work = self.flying.pop(key)
            self.problems[f"%{work.row.name} is started and never waited for"] = None

    def _count(self, work: Work, times: int) -> None:
        self.rows[work.row.name] = work.row
        self.times[work.row.name] += times
        self.seconds[work.row.name] += times * work.seconds

    def _until(self, end: float, work: Work, times: int, loops: Iterations) -> None:
        """Lets the core be held by this work until a time."""
        if end > self.now:
            self.exposed[work.row.name] += times * (end - self.now)
            self._span(self.now, end, work.row, loops, waits=True)
            self.now = end

    def _span(self, start: float, end: float, row: Row, loops: Iterations, *, waits: bool) -> None:
        """Work of the core has one bar; a transfer has one, and another where the core waits for it."""
        if row.kind in CORE:
            lane = "" if waits else row.kind.replace("unpriced", "vector")
        else:
            lane = "wait" if waits else "dma" if row.kind == "dma" else "links"
        if lane and end > start:
            self.spans.append(Span(start, end, lane, row.label, row.kind, loops))
