"""Pipeline schedules as arithmetic: the microbatch and the chunk of layers that each stage computes at each tick.

p stages, v chunks of layers a stage, m microbatches. Chunk c of stage s holds the layers (c p + s) n .. (c p + s + 1) n - 1 of
a stack of v p n. All stages tick together; on a tick a stage does at most one chunk forward and one chunk backward. With v = 1
this is GPipe (arXiv 1811.06965) or 1F1B (PipeDream-Flush, arXiv 2006.09503), with v > 1 the interleaved schedule of
Megatron (arXiv 2104.04473, section 2.2). Its bubble is (p - 1) / (m v) of the time that the work takes.

The functions of a tick take and return integers or arrays of them, NumPy's or JAX's: a timeline and a program share them.
"""

import dataclasses
from typing import Any

import numpy as np

from models.sharding.layout import LayoutError


@dataclasses.dataclass(frozen=True)
class Schedule:
    """p stages, v chunks a stage, m microbatches. Raises LayoutError where they do not go together."""

    stages: int
    chunks: int
    microbatches: int

    def __post_init__(self) -> None:
        p, v, m = self.stages, self.chunks, self.microbatches
        if v > 1 and m % p:
            below, above = m // p * p, -(-m // p) * p
            raise LayoutError(
                f"pipeline: microbatches={m} is not a multiple of the {p} stages, as {v} chunks a stage need; "
                f"the nearest {'are ' if below else 'is '}{f'{below} and ' if below else ''}{above}"
            )

    @property
    def work(self) -> int:
        """Returns the number of chunks that a stage runs forward, which is also the number that it runs backward."""
        return self.microbatches * self.chunks

    @property
    def ticks(self) -> int:
        """Returns the ticks of the forward passes alone, and of the backward passes alone."""
        return self.work + self.stages - 1

    @property
    def lead(self) -> int:
        """Returns the ticks by which the last chunk's forward precedes the first backward on the last stage: 1F1B's warm-up."""
        return self.chunks * self.stages - 1

    @property
    def ring(self) -> int:
        """Returns the most chunk inputs that a stage keeps at once under 1F1B, for any number of microbatches."""
        return 2 * self.chunks * self.stages - 1

    @property
    def bubble(self) -> float:
        """Returns idle time over the time of the work, as the papers give it."""
        return (self.stages - 1) / self.work

    def forward(self, tick: Any, stage: Any) -> tuple[Any, Any, Any]:
        """Returns (active, chunk, microbatch) of a stage's forward pass at a tick; clipped to valid values if it is idle."""
        u = tick - stage
        return self._place(u, lambda c: c)

    def backward(self, tick: Any, stage: Any) -> tuple[Any, Any, Any]:
        """Returns the same of 1F1B's backward pass, on the same clock."""
        u = tick - self.lead - (self.stages - 1 - stage)
        return self._place(u, lambda c: self.chunks - 1 - c)

    def _place(self, u: Any, chunk: Any) -> tuple[Any, Any, Any]:
        p, v = self.stages, self.chunks
        active = (u >= 0) & (u < self.work)
        u = u.clip(0, self.work - 1) if hasattr(u, "clip") else min(max(u, 0), self.work - 1)
        return active, chunk(u // p % v), u // (p * v) * p + u % p

    def slot(self, chunk: Any, microbatch: Any, stage: Any) -> Any:
        """Returns the index of a chunk's input in 1F1B's ring: the tick of its forward pass, modulo the ring's size."""
        p, v = self.stages, self.chunks
        return (microbatch // p * p * v + chunk * p + microbatch % p + stage) % self.ring

    def leaving(self) -> np.ndarray:
        """Returns the tick [m] in which each microbatch's last chunk runs on the last stage."""
        p, v, i = self.stages, self.chunks, np.arange(self.microbatches)
        return i // p * p * v + (v - 1) * p + i % p + p - 1

    def timeline(self, *, backward: bool = True) -> list[list[str]]:
        """Returns [stage][tick] the work of a stage under 1F1B: "F3" forward of microbatch 3, "B1.2" backward of 1 through chunk
        2 (if there are several chunks), both joined by a blank, "" if idle. Without `backward`, only the forward pass.
        """

        def cell(letter: str, work: tuple) -> str:
            active, chunk, microbatch = work
            return f"{letter}{microbatch}{f'.{chunk}' if self.chunks > 1 else ''}" if active else ""

        ticks = self.ticks + (self.lead if backward else 0)
        return [
            [
                " ".join(filter(None, (cell("F", self.forward(t, s)), cell("B", self.backward(t, s)) if backward else "")))
                for t in range(ticks)
            ]
            for s in range(self.stages)
        ]

    def idle(self) -> float:
        """Returns idle time over the time of the work, counted from the timeline: a forward chunk takes 1, a backward chunk 2,
        and a tick as long as the work that the schedule allows in it (forward only, both, backward only)."""
        ticks, f, b = np.arange(self.ticks + self.lead)[:, None], 1, 2
        forward, backward = (work(ticks, np.arange(self.stages))[0] for work in (self.forward, self.backward))
        length = f * forward.any(axis=1) + b * backward.any(axis=1)
        return float(length.sum() * self.stages / (f * forward.sum() + b * backward.sum()) - 1)
