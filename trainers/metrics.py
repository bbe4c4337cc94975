"""Where numbers go: WORKDIR/metrics.jsonl, TensorBoard events, and one live line on the terminal."""

import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorboardX import SummaryWriter

Values = dict[str, Any]  # floats, or lists of floats


def to_host(metrics: dict[str, jax.Array]) -> Values:
    """Metrics as Python numbers (lists for vectors); waits for the step that computes them."""
    return {k: np.asarray(v, np.float64).tolist() for k, v in jax.device_get(metrics).items()}


class MetricWriter:
    """Appends one JSON object per logged step and the same scalars to TensorBoard.

    Opened at a step, it first drops what a killed run had written beyond it, so that the file reads as if the run had
    never been interrupted, and lines that a fault of the machine broke.
    """

    def __init__(self, workdir: Path, step: int):
        self.path = workdir / "metrics.jsonl"
        new = self.path.with_suffix(".new")
        new.write_bytes(b"".join(line for line, values in _logged(self.path) if values["step"] <= step))
        os.replace(new, self.path)
        self._file = self.path.open("a")
        self._board = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Values) -> None:
        # JSON has no NaN: what is not finite is null.
        rate = f"{work / seconds:,.0f} {self.unit}/s"
        line = f"step {step}/{self.steps}  loss {loss:.4f}  {rate}  {1000 * seconds:.0f} ms/step  ETA {left}"
        self.stream.write(f"\r\x1b[2K{line}" if self._live else line + "\n")
        self.stream.flush()
        return seconds

    def pause(self) -> None:
        """Leaves the live line standing, before something else is printed; the time until `resume` is not counted."""
        if self._live:
            self.stream.write("\n")

    def resume(self, step: int) -> None:
        self._last = (step, time.perf_counter())
