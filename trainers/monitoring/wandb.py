"""The metrics of a run on Weights & Biases, where $WANDB_PROJECT is set, its client's own variable.

It is no field of the experiment, since it decides no result; everything else is set by the client's variables too, such as
WANDB_MODE=offline, which needs no network, WANDB_ENTITY and WANDB_API_KEY. The client is not among the locked packages.
"""

import importlib
import math
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from models.errors import told
from trainers.monitoring.observer import Logged, Observer
from trainers.runlog import names_full_disks

PROJECT, IDENTITY = "WANDB_PROJECT", "wandb_id"
"""The variable that names a project, and the file of a run's folder by which a resumed run goes on in the same curves."""


class WandbRun(Observer):
    """Sends what is logged and scored; all of it is drawn over the step.

    Steps that are repeated, after a rewind or from an older checkpoint, are drawn twice: what is sent cannot be taken back.

    Attributes:
      run: of the client.
      histogram: makes the client's histogram of a list of numbers.
      say: prints a line.
    """

    def __init__(self, run: Any, histogram: Callable[[list[float]], Any], say: Callable[[str], Any]):
        self.run, self.histogram, self.say = run, histogram, say
        self._failed = False
        run.define_metric("*", step_metric="step")

    def __enter__(self) -> "WandbRun":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._tried(self.run.finish, exit_code=int(kind is not None))

    def logged(self, log: Logged) -> None:
        self._send(log.step, log.values | {f"{unit}_per_s": count / log.seconds for unit, count in log.work.items()})

    def evaluated(self, step: int, scores: Mapping[str, float], more: bool) -> None:
        self._send(step, scores)

    def _send(self, step: int, values: Mapping[str, Any]) -> None:
        line: dict[str, Any] = {"step": step}
        for name, value in values.items():
            finite = [x for x in (value if isinstance(value, list) else [value]) if math.isfinite(x)]
            if finite:
                line[name] = self.histogram(finite) if isinstance(value, list) else value
        self._tried(self.run.log, line)

    def _tried(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Calls the client; where it fails, a line says so once, and the run goes on without it."""
        if self._failed:
            return
        try:
            call(*args, **kwargs)
        except Exception as error:  # of many classes
            self._failed = True
            self.say(f"W&B takes no more metrics ({told(error)}); training goes on without it")


class Unwatched(Observer):
    """Stands for `WandbRun` where there is none."""

    def __enter__(self) -> "Unwatched":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def open_run(e: Experiment, workdir: Path, leader: bool, say: Callable[[str], Any]) -> WandbRun | Unwatched:
    """Returns an observer that sends a run's metrics, if $WANDB_PROJECT is set and this is the first process.

    Raises:
      ConfigError: the client is not installed, or cannot begin, as without an API key.
    """
    project = os.environ.get(PROJECT)
    if not project or not leader:
        return Unwatched()
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            f"{PROJECT}={project!r} asks for W&B, whose client cannot be imported ({error}): run "
            f"`.venv/bin/python -m pip install wandb`, or unset {PROJECT}"
        ) from None
    identity = workdir / IDENTITY
    if not identity.exists():
        with names_full_disks(identity):
            identity.write_text(f"{uuid.uuid4().hex[:16]}\n")
    try:
        run = wandb.init(
            project=project,
            id=identity.read_text().strip(),
            resume="allow",
            name=workdir.absolute().name,
            dir=str(workdir),
            config=registry.to_json(e),
            settings=wandb.Settings(silent=True, console="off", x_disable_meta=True),  # the command's arguments
        )
    except Exception as error:  # of many classes
        raise ConfigError(
            f"{PROJECT}={project!r}: W&B cannot begin: {told(error)}; WANDB_MODE=offline needs no network"
        ) from error
    if not run.offline:
        say(f"W&B: {run.url}")
    return WandbRun(run, wandb.Histogram, say)
