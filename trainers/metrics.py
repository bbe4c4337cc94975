"""Writes a run's metrics: WORKDIR/metrics.jsonl, TensorBoard events, and one live line on the terminal."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from tensorboardX import SummaryWriter

from trainers.runlog import names_full_disks

Values = dict[str, Any]  # floats, or lists of floats


def to_host(metrics: dict[str, jax.Array]) -> Values:
    """Returns metrics as Python numbers (lists for vectors); waits for the step that computes them."""
    return {k: np.asarray(v, np.float64).tolist() for k, v in jax.device_get(metrics).items()}


class MetricWriter:
    """Appends one JSON object per logged step and the same scalars to TensorBoard.

    Opening it at a step first drops lines of later steps, which a killed run has left, and lines that a machine failure
    damaged. The file then reads as if the run had never been interrupted.
    """

    def __init__(self, workdir: Path, step: int):
        self.path = workdir / "metrics.jsonl"
        new = self.path.with_suffix(".new")
        new.write_bytes(b"".join(line for line, values in _logged(self.path) if values["step"] <= step))
        os.replace(new, self.path)
        self._file = self.path.open("a")
        self._board = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Values) -> None:
        # JSON has no NaN: values that are not finite become null.
        line = {k: v if isinstance(v, list) or np.isfinite(v) else None for k, v in values.items()}
        with names_full_disks(self.path):
            self._file.write(json.dumps({"step": step} | line) + "\n")
            self._file.flush()
        for name, value in values.items():
            if isinstance(value, list):
                self._board.add_histogram(name, np.array(value), step)
            else:
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._board.close()


def _logged(path: Path) -> list[tuple[bytes, Values]]:
    """Returns (the line itself, its values) for every sound line of a log.

    A last line without a newline, which a killed process leaves, is skipped. So are broken lines, such as the NULs that a power
    cut leaves; their number is printed on standard error.
    """
    sound, broken = [], 0
    whole_lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in whole_lines:
        try:
            values = json.loads(line.decode())
        except (ValueError, RecursionError):
            values = None
        if isinstance(values, dict) and type(values.get("step")) is int:
            sound.append((line + b"\n", values))
        else:
            broken += 1
    if broken:
        print(f"{path}: {broken} of {len(whole_lines)} lines are broken and left out", file=sys.stderr, flush=True)
    return sound


def read(workdir: Path) -> list[Values]:
    """Returns the logged steps of a run in order, each with its number under "step"; skips broken lines with a warning."""
    return [values for _, values in _logged(workdir / "metrics.jsonl")]


class Progress:
    """Prints the progress of a run as one line, which is rewritten on a terminal and appended elsewhere."""

    def __init__(self, steps: int, start: int, unit: str, stream: TextIO = sys.stdout):
        self.steps, self.unit, self.stream = steps, unit, stream
        self._last = (start, time.perf_counter())
        self._live = stream.isatty()

    def __call__(self, step: int, loss: float, work: float) -> float:
        """Prints the line and returns the seconds a step took since the last call; `work` is the units of work in a step."""
        now = time.perf_counter()
        then_step, then = self._last
        seconds = (now - then) / max(step - then_step, 1)
        self._last = (step, now)
        rate = f"{work / seconds:,.0f} {self.unit}/s"
        days, remainder = divmod(int(seconds * (self.steps - step)), 86_400)
        left = (f"{days}d " if days else "") + time.strftime("%H:%M:%S", time.gmtime(remainder))
        line = f"step {step}/{self.steps}  loss {loss:.4f}  {rate}  {1000 * seconds:.0f} ms/step  ETA {left}"
        self.stream.write(f"\r\x1b[2K{line}" if self._live else line + "\n")
        self.stream.flush()
        return seconds

    def pause(self) -> None:
        """Ends the live line, so that something else can be printed; the time until `resume` is not counted."""
        if self._live:
            self.stream.write("\n")

    def resume(self, step: int) -> None:
        self._last = (step, time.perf_counter())
