"""A stopwatch for steps that a host dispatches ahead of a device, in the trainer's order: batch, step, wait for the one before.

A step's time is from the end of the step before it to its own end. A step ends when its outputs are ready, which a second thread
waits for, since the loop itself may be waiting for input then. Waiting for input is a stall only while the device is idle, from
the end of the last step until the batch is ready; fetching input during a running step is free.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

WARMUP = 3  # uncounted steps in which memory is allocated, and caches and the input reader fill
WINDOW = 5  # steps of one program before the other's turn, if two are compared


class Meter:
    """Times one program's steps.

    Args:
      step: takes a batch and dispatches a step; returns outputs that `jax.block_until_ready` can wait for.
      batch: returns the batch of a number, counted from 0.
      clock: returns seconds since some fixed moment.
      watch: makes the executor, with one worker, that waits for outputs.

    Attributes:
      windows: for each window, the seconds of its steps.
      stalls: seconds that the device waited for input, for each of those steps.
      outputs: the outputs of the counted steps.
      ended: the end of each window, in seconds since 1970.
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
        """Drops all measurements so far."""
        self.windows: list[list[float]] = []
        self.stalls: list[float] = []
        self.outputs: list[Any] = []
        self.ended: list[float] = []

    def window(self, steps: int) -> None:
        """Runs one uncounted step, since it finds the device idle, and then `steps` counted ones; waits for the last.

        Time between windows belongs to no step.
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
        """Seconds of every counted step."""
        return [s for window in self.windows for s in window]

    def spread(self) -> dict[str, float]:
        """Returns `step_s_median`, `step_s_p10`, `step_s_p90`, `step_s_mean`, and `input_stall_share`, stalled of all seconds."""
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
    """Counts `steps` steps of each meter, after a warm-up: one meter in one window, several in short windows by turns."""
    for meter in meters:
        meter.window(WARMUP)
        meter.forget()
    size = window if len(meters) > 1 else steps
    for start in range(0, steps, size):
        for meter in meters:
            meter.window(min(size, steps - start))


def ratio(first: Meter, other: Meter) -> dict[str, float]:
    """Returns the ratio of step times, other over first: `median` of medians; `p10` and `p90` over pairs of windows."""
    pairs = [np.median(b) / np.median(a) for a, b in zip(first.windows, other.windows, strict=True)]
    low, high = np.percentile(pairs, (10, 90))
    middle = np.median(other.seconds) / np.median(first.seconds)
    return {"median": float(middle), "p10": float(low), "p90": float(high)}
