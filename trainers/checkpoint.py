"""Checkpoints, written asynchronously and atomically, checked when read, and restorable onto any mesh and number of processes.

A checkpoint is WORKDIR/checkpoints/<step>/ with two items: `state`, nested dictionaries of arrays (trainers/state.py,
`to_tree`), and `meta`, a JSON object with the experiment, library versions, data fingerprint, a checksum of every array and one
of itself. The position in the data is the step, so it needs no item of its own (data/reading/batches.py).
"""

import contextlib
import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    EveryNSteps,
    LatestN,
    PreservationContext,
    PreservationPolicy,
)

from configs import registry
from configs.experiment import Experiment, Train
from data import paths
from models.errors import UserError
from models.sharding.params import flatten
from trainers import adapt
from trainers.evaluation.directions import lower_is_better
from trainers.plan import Plan, in_model_order, in_step_order
from trainers.processes import any_process, versions
from trainers.state import State, from_tree, to_tree

FORMAT = "shardzoo-checkpoint-1"
_META = {"format": str, "experiment": dict, "versions": dict, "data": str, "checksums": dict}
"""Keys of `meta`, with the types of their values; "checksum", a SHA-256 of all of them, is not in the oldest checkpoints."""


class CheckpointError(UserError):
    """A checkpoint must not be used, or cannot be read; the message names it and says why."""


@jax.jit
def checksums(tree: Any) -> Any:
    """Returns a uint32 for each array that changes with any bit of it, and does not depend on its sharding."""

    def checksum(x):
        width = jnp.dtype(x.dtype).itemsize
        unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[width]
        bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
        place = jnp.zeros(bits.shape, jnp.uint32)
        for axis, size in enumerate(bits.shape):  # odd factors by position, so that swapped values change the sum
            place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        return jnp.sum(bits * (place * jnp.uint32(2654435761) * 2 + 1), dtype=jnp.uint32)

    return jax.tree.map(checksum, tree)


@dataclasses.dataclass(frozen=True)
class Sound:
    """A checkpoint from which the run can continue: its arrays, placed on the plan's mesh, and the checksums they should have."""

    tree: dict[str, Any]
    checksums: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A checkpoint that cannot be read; the one before it may be sound."""

    why: str


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A checkpoint of another experiment, or of other data, from which the run must not continue."""

    why: str


Outcome = Sound | Damaged | Foreign


@dataclasses.dataclass(frozen=True)
class _Best(PreservationPolicy):
    """Keeps the checkpoint with the best score, and the newest of equals. One without a finite score is never the best."""

    metric: str
    sign: int  # -1 where less is better

    def is_scored(self, metrics: Any) -> bool:
        value = metrics.get(self.metric) if isinstance(metrics, dict) else None
        return isinstance(value, (int, float)) and math.isfinite(value)

    def score(self, metrics: dict[str, float]) -> float:
        return self.sign * metrics[self.metric]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext) -> list[bool]:
        del context
        scored = [c for c in checkpoints if self.is_scored(c.metrics)]
        best = max(scored, key=lambda c: (self.score(c.metrics), c.step), default=None)
        return [c is best for c in checkpoints]


class _Manager(ocp.CheckpointManager):
    """Orbax's manager with two changes.

    It does not ask JAX's coordinator whether a signal came (trainers/processes.py does): Orbax asks late, in the thread of a
    save, which would set back the number from which the coordinator picks the step at which all processes stop. And a
    checkpoint whose score cannot be read counts as one without a score, and does not prevent the others from being listed.
    """

    def reached_preemption(self, step: int) -> bool:
        del step
        return False

    def metrics(self, step: int) -> Any:
        try:
            return super().metrics(step)
        except ValueError:
            return None


class Checkpoints:
    """The checkpoints of one run.

    Args:
      directions: of the task's scores (data.task.Task.directions), for `train.best`.

    Raises:
      ConfigError: it is not known whether lower or higher is better for the metric `train.best`.
    """

    def __init__(self, workdir: Path, train: Train, directions: Mapping[str, bool] = MappingProxyType({})):
        self.folder = workdir.absolute() / "checkpoints"
        self._best = None
        if train.best:
            self._best = _Best(train.best, -1 if lower_is_better(train.best, directions) else 1)
        keep: list[PreservationPolicy] = [LatestN(max(1, train.keep))]
        if train.keep_every:
            keep.append(EveryNSteps(train.keep_every))
        if self._best:
            keep.append(self._best)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy(keep),
            best_fn=self._best and self._best.score,  # without a function Orbax does not store the metric
            cleanup_tmp_directories=True,
            create=True,
        )
        self._manager = _Manager(self.folder, options=options, item_handlers=_handlers())

    def save(self, plan: Plan, state: State, fingerprint: str, metrics: dict[str, float] | None = None) -> None:
        """Starts a save; returns once the arrays are copied off the devices, before they are written."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        tree = to_tree(in_model_order(plan, state))
        meta = {
            "format": FORMAT,
            "experiment": registry.to_json(plan.experiment),
            "versions": versions(),
            "data": fingerprint,
            "checksums": {name: int(value) for name, value in flatten(checksums(tree)).items()},
        }
        meta["checksum"] = paths.digest(meta)
        items = ocp.args.Composite(state=ocp.args.StandardSave(tree), meta=ocp.args.JsonSave(meta))
        best = self._best
        chosen = {best.metric: metrics[best.metric]} if best and metrics and best.is_scored(metrics) else None
        self._manager.save(step, args=items, metrics=chosen, force=True)

    def restore(self, plan: Plan, fingerprint: str, say: Callable[[str], Any] = print) -> State | None:
        """Returns the newest sound checkpoint as a State on the plan's mesh; None where there is no checkpoint.

        A damaged checkpoint is named and the one before it is tried. Once a sound one is found, the damaged ones are moved to
        WORKDIR/damaged.

        Raises:
          CheckpointError: the newest sound checkpoint is of another model, data or optimizer, or none could be read.
        """
        damaged: list[int] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            where = self.folder / str(step)
            match _verified(_agreed(_read(self.folder, step, plan, fingerprint))):
                case Sound(tree=tree):
                    self._set_aside(damaged)
                    return in_step_order(plan, from_tree(plan.state, tree))
                case Damaged(why):
                    say(f"checkpoint {where} is damaged ({why}); trying the one before it")
                    damaged.append(step)
                case Foreign(why):
                    raise CheckpointError(
                        f"checkpoint {where} is of another experiment: {why}; choose another --workdir, or start from its "
                        "release with --train.init-from"
                    )
        if damaged:
            raise CheckpointError(
                f"none of the {len(damaged)} checkpoints in {self.folder} could be read; nothing was changed"
            )
        return None

    def _set_aside(self, steps: list[int]) -> None:
        any_process(False)  # waits until no process is reading
        for step in steps if jax.process_index() == 0 else []:
            aside = self.folder.parent / "damaged" / str(step)
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            (self.folder / str(step)).rename(aside)
        if steps:
            any_process(False)
            self._manager.reload()

    def close(self) -> None:
        """Waits for the save under way, if any."""
        self._manager.wait_until_finished()
        self._manager.close()


def _read(folder: Path, step: int, plan: Plan, fingerprint: str) -> Outcome:
    """Reads a checkpoint on this process alone, without comparing the arrays with their checksums."""
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), plan.state, plan.shardings)
    try:
        with _reader(folder) as reader:
            meta = _meta(reader, step)
            if why := _mismatches(meta, plan.experiment, fingerprint) or _other_shapes(_described(reader, step), plan):
                return Foreign("; ".join(why))
            return Sound(_arrays(reader, step, to_tree(placed)), meta["checksums"])
    except Exception as error:
        return Damaged(_reason(error))


def _agreed(outcome: Outcome) -> Outcome:
    """Returns the worst outcome of all processes: damaged, else foreign, else sound. Every process must call this."""
    for kind in (Damaged, Foreign):
        if any_process(isinstance(outcome, kind)):
            return outcome if isinstance(outcome, kind) else kind("on another process")
    return outcome


def _verified(outcome: Outcome) -> Outcome:
    """Returns the outcome after comparing checksums, which all processes compute together; they agree before and after."""
    if isinstance(outcome, Sound) and (why := _changed(outcome.tree, outcome.checksums)):
        outcome = Damaged(why)
    return _agreed(outcome)


def _handlers() -> dict[str, Any]:
    return {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}


def _reader(folder: Path) -> ocp.CheckpointManager:
    """Returns a manager that reads on this process alone: a process that finds damage must not leave others at a barrier."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"reader_{me}"
    )
    options = ocp.CheckpointManagerOptions(create=False, multiprocessing_options=alone)
    return _Manager(folder, options=options, item_handlers=_handlers())


def _meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """Returns a checkpoint's `meta`; raises ValueError if it is damaged or another program's."""
    meta = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
    if not isinstance(meta, dict):
        raise ValueError("its meta is not a JSON object")
    if meta.get("format") != FORMAT:
        raise ValueError(f"not a checkpoint of this project: its format is {meta.get('format')!r}, not {FORMAT!r}")
    wrong = [name for name, kind in _META.items() if not isinstance(meta.get(name), kind)]
    wrong += sorted(meta.keys() - _META.keys() - {"checksum"})  # a damaged "checksum" is not taken for a missing one
    if wrong:
        raise ValueError(f"its meta has missing, mistyped or unknown fields: {', '.join(wrong)}")
    if "checksum" in meta and meta.pop("checksum") != paths.digest(meta):
        raise ValueError("its meta does not have the checksum that it was saved with")
    return meta


def _described(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """Returns the shapes and dtypes of a checkpoint's arrays, as nested dictionaries."""
    return manager.item_metadata(step).state


def _arrays(manager: ocp.CheckpointManager, step: int, like: dict[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint's arrays, placed like `like`, without checking them."""
    return manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like)))["state"]


def _changed(tree: dict[str, Any], want: dict[str, int]) -> str:
    """Returns the first difference between the arrays' checksums and the saved ones, or "". Every process must call this."""
    actual = {name: int(value) for name, value in flatten(checksums(tree)).items()}
    for name in sorted(want.keys() | actual.keys()):
        if actual.get(name) != want.get(name):
            return f"checksum of {name} is {actual.get(name)}, was {want.get(name)}"
    return ""


def _other_shapes(described: dict[str, Any], plan: Plan) -> list[str]:
    """Returns the arrays that differ in shape, or exist on one side only, as with another optimizer."""
    stored = {k: tuple(m.shape) for k, m in flatten(described).items()}
    wanted = {k: tuple(x.shape) for k, x in flatten(to_tree(plan.state)).items()}
    names = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    return [f"{k}: {stored.get(k, 'none')} -> {wanted.get(k, 'none')}" for k in names[:3]]


def _reason(error: Exception) -> str:
    """Returns, in one line, why a checkpoint could not be read; raises errors again that are not the checkpoint's fault."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, (MemoryError, PermissionError)) or "RESOURCE_EXHAUSTED" in text:
        raise error
    return text


def _mismatches(meta: dict[str, Any], experiment: Experiment, fingerprint: str) -> list[str]:
    """Returns why a run of this experiment cannot continue from this checkpoint: the fields that differ, old -> new."""
    # How a model is computed (Experiment.execution) may change from one start to the next.
    old, new = registry.modernized(meta["experiment"]), registry.to_json(experiment)
    # Fields that were added since take their defaults; fields that were removed count as differences.
    with contextlib.suppress(registry.ConfigError):
        old = registry.to_json(registry.from_json(old))
    mismatches = [f"model.{d}" for d in registry.differences(old["model"], new["model"])]
    mismatches += [f"data.{d}" for d in registry.differences(old["data"], new["data"])]
    for field in ("seed", "master_dtype", "freeze", "freeze_layers", "lora"):
        mismatches += [
            f"train.{d}" for d in registry.differences({field: old["train"][field]}, {field: new["train"][field]})
        ]
    kinds = [{"class": e["optimizer"]["class"]} for e in (old, new)]
    mismatches += [f"optimizer.{d}" for d in registry.differences(*kinds)]
    if not mismatches and meta["data"] != fingerprint:
        mismatches.append(f"the prepared data changed: fingerprint {meta['data'][:12]} -> {fingerprint[:12]}")
    return mismatches


def newest_step(workdir: Path) -> int | None:
    """Returns the step of a run's newest checkpoint, which `read_params` reads by default; None where there is none."""
    folder = workdir.absolute() / "checkpoints"
    if not folder.is_dir():
        return None
    with _reader(folder) as manager:
        return manager.latest_step()


def read_params(workdir: Path, step: int | None = None) -> tuple[Experiment, int, dict[str, Any], str]:
    """Returns (experiment, step, parameters on the host, data fingerprint) of a run's newest checkpoint, or of a given step.

    Adapters are merged into the matrices they change, and the experiment that is returned has none.

    Raises:
      CheckpointError: there is no such checkpoint, or it is damaged.
    """
    experiment, at, stored, data = read_stored(workdir, step)
    experiment, params = adapt.plain(experiment, stored)
    return experiment, at, params, data


def read_stored(workdir: Path, step: int | None = None) -> tuple[Experiment, int, dict[str, Any], str]:
    """Returns what `read_params` does, with parameters as they are stored: adapters beside them, matrices quantised."""
    folder = workdir.absolute() / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"no checkpoints in {workdir}; a run writes them under WORKDIR/checkpoints")
    host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    with _reader(folder) as manager:
        step = manager.latest_step() if step is None else step
        if step is None or step not in manager.all_steps():
            raise CheckpointError(f"no checkpoint {step} in {folder}; there are {sorted(manager.all_steps())}")
        try:
            meta = _meta(manager, step)
            described = _described(manager, step)
            like = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=host), described)
            tree = _arrays(manager, step, like)
            if reason := _changed(tree, meta["checksums"]):
                raise ValueError(reason)
            experiment = registry.from_json(meta["experiment"])
        except registry.ConfigError:  # sound, but its experiment is not one of this version
            raise
        except Exception as error:
            raise CheckpointError(f"checkpoint {folder / str(step)} is damaged ({_reason(error)})") from error
    return experiment, step, tree["params"], meta["data"]
