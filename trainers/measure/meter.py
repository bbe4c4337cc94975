"""A stopwatch for steps that a host dispatches ahead of a device, in the trainer's order: batch, step, wait for the one before.

A step's time is from when the step before it was done to when it is done itself. Done is when its outputs are there, which a
second thread waits for: the loop itself may be waiting for input then. Waiting for input is a stall only while the device has
nothing to do, from when the last step was done to when the batch is there; input that is fetched beside a running step is free.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

WARMUP = 3  # steps that are not counted: memory is allocated, caches and the reader of input fill
WINDOW = 5  # steps of one program before the other's turn, where two are compared


class Meter:
    """Times one program's steps.

    Args:
      step: takes a batch and dispatches a step; returns outputs that `jax.block_until_ready` can wait for.
      batch: returns the batch of a number, counted from 0.
      clock: returns seconds from some fixed moment on.
      watch: makes the executor, of one worker, that waits for outputs.

    Attributes:
      windows: of each window the seconds of its steps.
      stalls: seconds that the device waited for input, one for each of those steps.
      outputs: what the counted steps returned.
      ended: when each window did, in seconds since 1970.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        batch: Callable[[int], Any],
        clock: Callable[[], float] = time.perf_counter,
        watch: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, thread_name_prefix="meter"),
    ):
        self.step, self.batch, self.clock, self.watch, self.at = step, batch, clock, watch, 0
        self.forget()

    def forget(self) -> None:
        """Drops what was measured so far."""
        self.windows: list[list[float]] = []
        self.stalls: list[float] = []
        self.outputs: list[Any] = []
        self.ended: list[float] = []

    def window(self, steps: int) -> None:
        """Runs a step that is not counted, since it finds the device idle, and then so many that are; waits for the last.

        What comes between windows is in no step's time.
        """
        asked, given, done = [], [], []
        with self.watch() as watch:
            for number in range(steps + 1):
                asked.append(self.clock())
                batch = self.batch(self.at)
                given.append(self.clock())
                output = self.step(batch)
                done.append(watch.submit(self._when_ready, output))
                self.at += 1
                if number:
                    done[-2].result()
                    self.outputs.append(output)
            ends = [future.result() for future in done]
        self.ended.append(time.time() - (self.clock() - ends[-1]))
        self.windows.append([b - a for a, b in itertools.pairwise(ends)])
        self.stalls += [max(0.0, given[n] - max(asked[n], ends[n - 1])) for n in range(1, steps + 1)]

    @property
    def seconds(self) -> list[float]:
        """Of every counted step."""
        return [s for window in self.windows for s in window]

    def spread(self) -> dict[str, float]:
        """`step_s_median`, `step_s_p10`, `step_s_p90`, `step_s_mean`, and `input_stall_share`: of all seconds those stalled."""
        low, middle, high = np.percentile(self.seconds, (10, 50, 90))
        return {
            "step_s_median": float(middle),
            "step_s_p10": float(low),
            "step_s_p90": float(high),
            "step_s_mean": float(np.mean(self.seconds)),
            "input_stall_share": sum(self.stalls) / sum(self.seconds),
        }

    def _when_ready(self, output: Any) -> float:
        jax.block_until_ready(output)
        return self.clock()


def measure(meters: Sequence[Meter], steps: int, window: int = WINDOW) -> None:
    """Counts so many steps of each meter, after a warm-up: of one meter in one window, of several in short ones by turns."""
    for meter in meters:
        meter.window(WARMUP)
        meter.forget()
    size = window if len(meters) > 1 else steps
    for start in range(0, steps, size):
        for meter in meters:
            meter.window(min(size, steps - start))


def ratio(first: Meter, other: Meter) -> dict[str, float]:
    """How many times as long a step of the other takes: `median` of medians; `p10` and `p90` over pairs of windows."""
    pairs = [np.median(b) / np.median(a) for a, b in zip(first.windows, other.windows, strict=True)]
    low, high = np.percentile(pairs, (10, 90))
    middle = np.median(other.seconds) / np.median(first.seconds)
    return {"median": float(middle), "p10": float(low), "p90": float(high)}
