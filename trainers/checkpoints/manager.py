"""The checkpoints of a run: saved asynchronously and atomically, kept by policy, restored onto any mesh and number of processes.

trainers/checkpoints/checkpoint.py says what one holds and reads it.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    EveryNSteps,
    LatestN,
    PreservationContext,
    PreservationPolicy,
)
from orbax.checkpoint.type_handlers import ArrayHandler, register_type_handler

from configs.experiment import Checkpointing
from data import progress
from models.errors import told
from trainers import runlog
from trainers.audit.saved import Saved
from trainers.checkpoints import bucket, checkpoint
from trainers.checkpoints.bucket import StoreReadError
from trainers.checkpoints.checkpoint import CheckpointError, Damaged, Foreign, Manager, Outcome, Sound, Unread
from trainers.checkpoints.local import LocalCheckpoints, Save, disown
from trainers.evaluation.directions import lower_is_better
from trainers.plan import Plan, in_model_form, in_step_form
from trainers.runtime.processes import any_process
from trainers.state import State, by_name, from_names

SLOW = 60
"""Seconds that a save waits for the one before it, while the run waits too."""
LEAST_CUT = 1 << 20
"""Bytes of an array's copies that a process writes at least, where several processes have copies."""


@dataclasses.dataclass(frozen=True)
class _Best(PreservationPolicy):
    """Keeps the checkpoint with the best score, and the newest of equals; also those whose score cannot be read.

    Attributes:
      scores: returns a checkpoint's scores, of which one that is not finite counts as none; None where they cannot be read.
    """

    metric: str
    sign: int  # -1 where less is better
    scores: Callable[[int], Mapping[str, float] | None]

    def counted(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Returns the score that counts, by its name; {} where there is none."""
        return {name: value for name, value in scores.items() if name == self.metric and math.isfinite(value)}

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext) -> list[bool]:
        del context
        scores = {c.step: self.scores(c.step) for c in checkpoints}
        scored = {step: self.sign * self.counted(s)[self.metric] for step, s in scores.items() if s and self.counted(s)}
        best = max(scored, key=lambda step: (scored[step], step), default=None)
        return [step == best or scores[step] is None for step in scores]


def _step(at: Save | int) -> int:
    return at.step if isinstance(at, Save) else at


class Checkpoints:
    """The checkpoints of one run: those of its store, and the local ones of `train.checkpoint.local`.

    Attributes:
      origin: "a checkpoint" or "a local checkpoint", where the last `restore` found one, else "".

    Args:
      directions: of the task's scores (data.task.Task.directions), for `train.checkpoint.best`.
      say: prints a line.

    Raises:
      ConfigError: it is not known whether lower or higher is better for the metric `train.checkpoint.best`.
    """

    def __init__(
        self,
        workdir: Path,
        settings: Checkpointing,
        directions: Mapping[str, bool] = MappingProxyType({}),
        say: Callable[[str], Any] = print,
    ):
        self._settings, self._say = settings, say
        self._damaged = workdir.absolute() / "damaged"
        place = workdir.absolute() / "checkpoints"
        if settings.folder and jax.process_index() == 0 and not place.is_dir():
            with runlog.names_full_disks(place):
                place.write_text(f"{settings.folder}\n")
        self.folder = epath.Path(settings.folder or place)
        self._best = None
        if settings.best:
            self._best = _Best(settings.best, -1 if lower_is_better(settings.best, directions) else 1, self._score)
        self._scores: dict[int, Mapping[str, float] | None] = {}  # by step, once they are known
        self._failures, self._under_way = 0, False  # failures in a row
        with bucket.answers(self.folder):
            self._manager = self._opened()
        self._stale = False  # whether the manager must be opened anew before anything is asked of it: a save failed
        self.origin = ""
        self._pinned: int | None = None  # the step of the local state that stays until the checkpoint it has is written
        self._local = LocalCheckpoints(workdir, settings.local, say) if settings.local.every else None
        if self._local is None:
            disown(workdir)
        self._log = Saved(workdir.absolute(), self.folder, jax.process_index() == 0)

    def _score(self, step: int) -> Mapping[str, float] | None:
        if step not in self._scores:
            self._scores[step] = checkpoint.score(self.folder / str(step))
        return self._scores[step]

    def _policy(self) -> PreservationPolicy:
        """Returns which checkpoints stay."""
        keep: list[PreservationPolicy] = [LatestN(max(1, self._settings.keep))]
        if self._settings.keep_every:
            keep.append(EveryNSteps(self._settings.keep_every))
        if self._best:
            keep.append(self._best)
        return AnyPreservationPolicy(keep)

    def _opened(self) -> Manager:
        # Orbax cuts a copied array by device, and compiles a program for each cut: that pays for large arrays of several hosts.
        cuts = ArrayHandler(use_replica_parallel=jax.process_count() > 1, min_slice_bytes_for_replica_parallel=LEAST_CUT)
        register_type_handler(jax.Array, cuts, override=True)
        options = checkpoint.options(preservation_policy=self._policy(), cleanup_tmp_directories=True, create=True)
        parts = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
        return Manager(self.folder, options=options, item_handlers=parts)

    def _open_anew(self) -> None:
        """Lists the checkpoints anew, and removes what is half written."""
        manager = self._opened()
        self._manager.close()
        self._manager, self._stale = manager, False

    def _steps(self) -> Sequence[int]:
        """Returns the steps of the store's checkpoints; raises StoreReadError."""
        if self._stale:
            with bucket.answers(self.folder):
                self._open_anew()
        return self._manager.all_steps()

    def save(
        self, plan: Plan, state: State, fingerprint: str, metrics: Mapping[str, float] | None = None, *, final: bool = False
    ) -> None:
        """Starts a save; returns once the arrays are copied off the devices, before they are written.

        Where the save before it failed, or is not written within SLOW seconds, a line says so. Training goes on.

        Args:
          final: returns once they are written, and tries again where that fails.

        Raises:
          StoreError: more than `train.checkpoint.max_failures` saves in a row were not written.
        """
        step = int(state.step)
        while self._stale or step not in self._manager.all_steps():
            started = self._settled(step) and self._started(plan, state, fingerprint, metrics)
            if not final:
                return
            if started:
                self._show_writing(step, state)
            if started and self._settled(None):
                return
            time.sleep(2.0**self._failures / 2)

    def _started(self, plan: Plan, state: State, fingerprint: str, metrics: Mapping[str, float] | None) -> bool:
        """Starts a save and returns whether every process could."""
        step = int(state.step)
        arrays = by_name(in_model_form(plan, state))
        self._scores[step] = score = self._best.counted(metrics) if self._best and metrics else {}
        meta = checkpoint.new_meta(plan, arrays, fingerprint, score)
        items = ocp.args.Composite(state=ocp.args.StandardSave(checkpoint.to_tree(arrays)), meta=ocp.args.JsonSave(meta))
        why = ""
        try:
            with bucket.as_files():
                self._manager.save(step, args=items, force=True)
        except (OSError, ValueError) as error:
            why = told(error)
        self._under_way = not self._failed(f"checkpoint {step} could not be saved", why)
        return self._under_way

    def settle(self) -> None:
        """Waits for the saves under way in both tiers."""
        self._settled(None)
        if self._local:
            self._local.wait()

    def _show_writing(self, step: int, state: State) -> None:
        """Shows how much of a save is written until it is; nothing of a store's, whose folders are slow to list."""
        if self._settings.folder or not progress.shown():
            return
        written = 0
        with progress.bar(f"saving checkpoint {step}", sum(x.nbytes for x in jax.tree.leaves(state)), "B") as advance:
            while self._manager.is_saving_in_progress():
                with contextlib.suppress(OSError):  # a folder gets its name
                    now = sum(file.stat().st_size for file in Path(self.folder).glob(f"{step}*/**/*") if file.is_file())
                    advance(max(0, now - written))
                    written = max(now, written)
                time.sleep(0.05)

    def _settled(self, step: int | None) -> bool:
        """Waits for the save under way and returns whether none is under way now; notes whether it failed.

        Args:
          step: the step to be saved next, which is left out if this takes longer than SLOW seconds; None waits without end.
        """
        began = time.monotonic()
        while step is not None and self._manager.is_saving_in_progress() and time.monotonic() - began < SLOW:
            time.sleep(0.002)
        slow, why = step is not None and self._manager.is_saving_in_progress(), ""
        if any_process(slow):
            self._failed(f"checkpoint {step} is left out, since the one before it is not written", f"after {SLOW} s")
            return False
        try:
            with bucket.as_files():
                self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            why = told(error)
        under_way, self._under_way = self._under_way, False
        self._stale |= self._failed("the last save failed", why)
        if self._stale:
            return step is not None and self._could_open_anew(step)
        if under_way:
            self._failures = 0
            self._log.note("saved")
        return True

    def _could_open_anew(self, step: int) -> bool:
        """Returns whether every process could, for the save of a step; a store that refuses it counts as a save that failed."""
        why = ""
        try:
            with bucket.as_files():
                self._open_anew()
        except (OSError, ValueError) as error:
            why = told(error)
        self._stale = self._failed(f"checkpoint {step} could not be saved", why)
        return not self._stale

    def _failed(self, what: str, why: str) -> bool:
        """Returns whether a save failed on any process, where `why` is not empty; counts and says it."""
        if not any_process(bool(why)):
            return False
        self._failures += 1
        line = f"{what} ({self.folder}: {why or 'on another process'})"
        if self._failures > self._settings.max_failures:
            raise runlog.StoreError(f"{line}; {self._failures} in a row were not written; mend it and run the same command again")
        self._say(f"{line}; training goes on")
        return True

    def save_locally(self, plan: Plan, state: State, fingerprint: str, scores: Mapping[str, float] | None) -> None:
        """Starts a local save; returns once the arrays are copied off the devices.

        Args:
          scores: those with which `save` was just called for this state; None if it was not called. The local state stays until
            that checkpoint is written, so that it is not lost with this start.
        """
        assert self._local
        if scores is not None:
            self._pinned = int(state.step)
        elif not self._manager.is_saving_in_progress():
            self._pinned = None
        self._local.save(plan, state, fingerprint, scores, self._pinned)

    def restore(self, plan: Plan, fingerprint: str, until: float = math.inf) -> State | None:
        """Returns the newest sound checkpoint, up to a step, as a State on the plan's mesh; None where there is none.

        A damaged checkpoint is named and the one before it is tried. Once a sound one is found, the damaged ones are moved to
        WORKDIR/damaged. Local ones count only where no step is given: a rewind goes to the same step whatever hosts still hold.

        Raises:
          CheckpointError: the newest sound checkpoint is of another model, data or optimizer, or none could be read.
          StoreReadError: the place of the checkpoints cannot be read for now.
        """
        damaged: list[int] = []
        self._settled(None)
        local = self._local.saves() if self._local and until == math.inf else []
        self._pay(local, plan, fingerprint)
        stored = [step for step in self._steps() if step <= until]
        for at in sorted([*local, *stored], key=lambda at: (_step(at), isinstance(at, Save)), reverse=True):
            what, where = self._named(at)
            match self._read(at, plan, fingerprint):
                case Sound(arrays=arrays):
                    self._set_aside(damaged)
                    if self._local and until == math.inf:
                        self._local.forget(but=at if isinstance(at, Save) else None)
                    self.origin = f"a {what}"
                    return in_step_form(plan, from_names(plan.state, arrays))
                case Damaged(why) if isinstance(at, Save):
                    self._say(f"{what} {where} is damaged or not whole ({why}); trying the one before it")
                case Damaged(why):
                    self._say(f"{what} {where} is damaged ({why}); trying the one before it")
                    damaged.append(_step(at))
                case Unread(why):
                    raise StoreReadError(f"{what} {where} cannot be read for now ({why}); run the same command again")
                case Foreign(why):
                    raise CheckpointError(
                        f"{what} {where} is of another experiment: {why}; choose another --workdir, or start from its "
                        "release with --train.finetune.init-from"
                    )
        if damaged:
            raise CheckpointError(f"none of the {len(damaged)} checkpoints in {self.folder} could be read; nothing was changed")
        if self._local and local:
            self._local.forget()
        return None

    def _named(self, at: Save | int) -> tuple[str, epath.Path]:
        """Returns what a checkpoint is called, and its place."""
        if self._local and isinstance(at, Save):
            return "local checkpoint", epath.Path(self._local.folder) / str(at.step)
        return "checkpoint", self.folder / str(at)

    def _read(self, at: Save | int, plan: Plan, fingerprint: str) -> Outcome:
        """Returns a checkpoint, on which all processes agree."""
        if self._local and isinstance(at, Save):
            return self._local.read(at, plan, fingerprint)
        return checkpoint.verified(checkpoint.agreed(checkpoint.read(self.folder, _step(at), plan, fingerprint)))

    def _pay(self, local: Sequence[Save], plan: Plan, fingerprint: str) -> None:
        """Writes the checkpoint that was under way when an earlier start was killed, from its local copy.

        Older ones than the store's newest were written, and may have been deleted since.
        """
        for save in reversed(local):
            if not self._local or save.step <= (self.newest() or -1) or (scores := self._local.owed(save)) is None:
                continue
            if isinstance(outcome := self._local.read(save, plan, fingerprint), Sound):
                self._say(f"checkpoint {save.step} was under way when the last start ended; it is written from its local copy")
                state = in_step_form(plan, from_names(plan.state, outcome.arrays))
                self.save(plan, state, fingerprint, scores, final=True)

    def _set_aside(self, steps: list[int]) -> None:
        any_process(False)  # waits until no process is reading
        for step in steps if jax.process_index() == 0 else []:
            aside = self._damaged / str(step)
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            if self._settings.folder:  # a store's folders cannot be moved
                with bucket.answers(self.folder):
                    (self.folder / str(step)).rmtree()
            else:
                (self.folder / str(step)).rename(aside)
        if steps:
            any_process(False)
            with bucket.answers(self.folder):
                self._open_anew()
            self._log.note("damaged, set aside")

    def newest(self, until: float = math.inf) -> int | None:
        """Returns the newest checkpoint up to a step; None where there is none."""
        return max((step for step in self._steps() if step <= until), default=None)

    def forget_after(self, step: int) -> None:
        """Deletes the checkpoints of later steps."""
        self._settled(None)
        self._delete([s for s in self._steps() if s > step])
        if self._local:  # the older ones are of no use beside the store's checkpoint of the step
            self._local.forget()
        self._log.note(f"gone back to step {step}")

    def _delete(self, steps: Sequence[int]) -> None:
        with bucket.answers(self.folder):
            for step in steps:
                self._manager.delete(step)

    def end_local(self) -> None:
        """Deletes the local checkpoints of a run that has ended."""
        if self._local:
            self._local.remove()

    def tidy(self) -> None:
        """Deletes what does not stay, as every save does: the rest of a deletion in which a run was killed."""
        self._settled(None)
        listed = [SimpleNamespace(step=step) for step in sorted(self._steps())]
        stays = self._policy().should_preserve(listed, context=PreservationContext())  # pyright: ignore[reportArgumentType]
        self._delete([c.step for c, stay in zip(listed, stays, strict=True) if not stay])
        self._log.note("not kept")

    def last_words(self, seconds: float) -> str:
        """Waits so long for the save under way; returns a line about what is saved. May be called by any thread."""
        until = time.monotonic() + seconds
        while self._manager.is_saving_in_progress() and time.monotonic() < until:
            time.sleep(0.1)
        unfinished = ", which does not hold the save that was under way" if self._manager.is_saving_in_progress() else ""
        steps = sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit() and bucket.whole(p))
        line = f"the last checkpoint is {steps[-1] if steps else 'none'}{unfinished}"
        if not self._local:
            return line
        self._local.wait(max(0.0, until - time.monotonic()))
        newest = self._local.newest()
        return f"{line}; the last local one of this process is {'none' if newest is None else newest}"

    def close(self) -> None:
        """Waits for the save under way, if any; not for one that has been given up.

        Raises:
          StoreError: it failed.
        """
        if self._local:
            self._local.close()
        if self._failures > self._settings.max_failures:
            return
        try:
            with bucket.as_files():
                self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            raise runlog.StoreError(
                f"the last save failed ({self.folder}: {told(error)}); mend it and run the same command again"
            ) from error
        self._manager.close()
        self._log.note("saved")
