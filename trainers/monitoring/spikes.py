"""Loss spikes: the run rewinds to a checkpoint before one and skips the batches that led to it (PaLM, arXiv 2204.02311, 5.1).

Rewinds are events of run.jsonl, and the losses that a new one is compared with are those of metrics.jsonl, so that a run that is
resumed skips the same batches and rewinds at the same steps as one that was never interrupted.
"""

import dataclasses
import json
import math
import statistics
from pathlib import Path

from configs.experiment import Faults
from trainers import runlog
from trainers.checkpoints.manager import Checkpoints
from trainers.monitoring import metrics

WINDOW, FEWEST = 20, 5  # logged losses that a new one is compared with, and how many there must be
AT_ONE_PLACE = 3  # rewinds to one checkpoint, after which the run gives up


@dataclasses.dataclass(frozen=True)
class Rewind:
    """From step `to` on, the batches of `skip` further steps were left out, because of a spike at step `at`."""

    at: int
    to: int
    skip: int


class Spikes:
    """The spikes of a run.

    Args:
      at: the step that the run goes on from.
    """

    def __init__(self, workdir: Path, faults: Faults, at: int):
        self.workdir, self.faults = workdir, faults
        events = (event for event in runlog.events(workdir) if event.get("event") == "rewind")
        self.rewinds = [Rewind(e["at"], e["to"], e["skip"]) for e in events] if faults.spike else []
        self._read_losses(at)

    def _read_losses(self, at: int) -> None:
        logged = metrics.read(self.workdir) if self.faults.spike else []
        self._losses = [(v["step"], v["loss"]) for v in logged if v["step"] <= at and v.get("loss") is not None][-WINDOW:]

    def batch(self, step: int) -> int:
        """Returns the index of the batch that this step takes."""
        return step + sum(rewind.skip for rewind in self.rewinds if rewind.to <= step)

    def state(self) -> str:
        """Returns all that decides about the next spike; equal on all processes."""
        return json.dumps([[dataclasses.astuple(rewind) for rewind in self.rewinds], self._losses])

    def before(self, loss: float) -> int | None:
        """Returns the last logged step before a spike, if this logged loss is one; None if not."""
        past = [value for _, value in self._losses]
        spike = len(past) >= FEWEST and math.isfinite(loss) and loss > self.faults.spike * statistics.median(past)
        return self._losses[-1][0] if self.faults.spike and spike else None

    def accept(self, step: int, loss: float) -> None:
        """Adds a logged loss to those that later ones are compared with."""
        if math.isfinite(loss):
            self._losses = [*self._losses, (step, loss)][-WINDOW:]

    def rewind(self, at: int, to: int, checkpoints: Checkpoints, leader: bool) -> Rewind | None:
        """Records that a spike at a step sends the run back to an earlier one; None where it has been there too often."""
        if sum(rewind.to == to for rewind in self.rewinds) >= AT_ONE_PLACE:
            return None
        checkpoints.forget_after(to)  # before the record: a run that is killed in between comes to the same spike again
        rewind = Rewind(at, to, max(self.faults.spike_skip, at - to))
        if leader:
            runlog.append(self.workdir, "rewind", **dataclasses.asdict(rewind))
        self.rewinds.append(rewind)
        self._read_losses(to)
        return rewind
