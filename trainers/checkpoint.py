"""Checkpoints: asynchronous, atomic, checked when read, restorable onto any mesh and number of processes.

A checkpoint is WORKDIR/checkpoints/<step>/ with two items: `state`, nested dictionaries of arrays (trainers/state.py,
`to_tree`), and `meta`, a JSON object: experiment, library versions, data fingerprint and a checksum of every array. The
data's position is the step, so it needs no item of its own (data/reading/batches.py).
"""

import contextlib
import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, EveryNSteps, LatestN

from configs import registry
from configs.experiment import Experiment, Train
from models.errors import UserError
from models.sharding.params import flatten
from trainers import adapt
from trainers.processes import anywhere
from trainers.state import Plan, State, collect, deal, from_tree, to_tree

FORMAT = "shardzoo-checkpoint-1"


class CheckpointError(UserError):
    """A checkpoint that must not, or cannot, be used; the message says which one and why."""


def versions() -> dict[str, str]:
    """Versions of the libraries that decide a run's numbers."""
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")}


@jax.jit
def checksums(tree: Any) -> Any:
    """A uint32 per array that changes with any bit of it and does not depend on how it is cut."""

    def of_array(x):
        width = jnp.dtype(x.dtype).itemsize
        unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[width]
        bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
        place = jnp.zeros(bits.shape, jnp.uint32)
        for axis, size in enumerate(bits.shape):  # odd factors by position: swapped values are noticed too
            place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        return jnp.sum(bits * (place * jnp.uint32(2654435761) * 2 + 1), dtype=jnp.uint32)

    return jax.tree.map(of_array, tree)


class _Manager(ocp.CheckpointManager):
    """Orbax's, without its own question to JAX's coordinator whether a signal came (see trainers/processes.py): asked late,
    in the thread of a save, it would set back the number from which the coordinator picks where all processes stop."""

    def reached_preemption(self, step: int) -> bool:
        del step
        return False


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, workdir: Path, train: Train):
        self.folder = workdir.absolute() / "checkpoints"
        self.best = train.best
        keep: list[Any] = [LatestN(max(1, train.keep))]
        if train.keep_every:
            keep.append(EveryNSteps(train.keep_every))
        if train.best:
            keep.append(BestN(get_metric_fn=lambda m: m[train.best], n=1, keep_checkpoints_without_metrics=False))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy(keep),
            best_fn=(lambda m: m[train.best]) if train.best else None,  # else Orbax does not store the metric
            cleanup_tmp_directories=True,
            create=True,
        )
        self._manager = _Manager(self.folder, options=options, item_handlers=_handlers())

    def save(self, p: Plan, state: State, fingerprint: str, metrics: dict[str, float] | None = None) -> None:
        """Starts to save; returns once the arrays are copied off the devices, before they are written."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        tree = to_tree(collect(p, state))
        meta = {
            "format": FORMAT,
            "experiment": registry.to_json(p.experiment),
            "versions": versions(),
            "data": fingerprint,
            "checksums": {name: int(value) for name, value in flatten(checksums(tree)).items()},
        }
        items = ocp.args.Composite(state=ocp.args.StandardSave(tree), meta=ocp.args.JsonSave(meta))
        chosen = {self.best: metrics[self.best]} if metrics and self.best in metrics else None
        self._manager.save(step, args=items, metrics=chosen, force=True)

    def restore(self, p: Plan, fingerprint: str, say: Callable[[str], Any] = print) -> State | None:
        """The newest sound checkpoint as a State on the plan's mesh; None where there is none at all.

        A damaged or foreign checkpoint is named and the one before it is tried; once a sound one is found, those that
        were passed over are moved aside to WORKDIR/damaged.

        Raises:
          CheckpointError: the newest sound checkpoint is of another model, data or optimizer, or none could be read.
        """
        damaged: list[int] = []
        placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), p.state, p.shardings)
        for step in sorted(self._manager.all_steps(), reverse=True):
            where, reason, problems, tree = self.folder / str(step), "", [], {}
            with _reader(self.folder) as reader:
                try:
                    meta = _meta(reader, step)
                    described = _described(reader, step)
                    problems = _mismatches(meta, p.experiment, fingerprint) or _other_shapes(described, p)
                except Exception as error:
                    reason = _reason(error)
                if not anywhere(bool(reason or problems)):
                    try:
                        tree = _arrays(reader, step, to_tree(placed))
                    except Exception as error:
                        reason = _reason(error)
                    if not anywhere(bool(reason)):
                        reason = _changed(tree, meta["checksums"])
            if anywhere(bool(reason)):
                say(f"checkpoint {where} is damaged ({reason or 'on another process'}); trying the one before it")
                damaged.append(step)
            elif anywhere(bool(problems)):
                raise CheckpointError(
                    f"checkpoint {where} is of another experiment: {'; '.join(problems) or 'on another process'}; "
                    "choose another --workdir, or start from its release with --train.init-from"
                )
            else:
                self._set_aside(damaged)
                return deal(p, from_tree(p.state, tree))
        if damaged:
            raise CheckpointError(
                f"none of the {len(damaged)} checkpoints in {self.folder} could be read; nothing was changed"
            )
        return None

    def _set_aside(self, steps: list[int]) -> None:
        anywhere(False)  # nobody is still reading
        for step in steps if jax.process_index() == 0 else []:
            aside = self.folder.parent / "damaged" / str(step)
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            (self.folder / str(step)).rename(aside)
        if steps:
            anywhere(False)
            self._manager.reload()

    def close(self) -> None:
        """Waits for the save under way, if any."""
        self._manager.wait_until_finished()
        self._manager.close()


def _handlers() -> dict[str, Any]:
    return {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}


def _reader(folder: Path) -> ocp.CheckpointManager:
    """Reads checkpoints, each process for itself: one that finds damage must not leave the others waiting in a barrier."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"reader_{me}"
    )
    options = ocp.CheckpointManagerOptions(create=False, multiprocessing_options=alone)
    return ocp.CheckpointManager(folder, options=options, item_handlers=_handlers())


def _meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """A checkpoint's `meta`; raises ValueError if it is not one of ours."""
    meta = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
    if meta.get("format") != FORMAT:
        raise ValueError(f"not one of ours: its format is {meta.get('format')!r}, not {FORMAT!r}")
    return meta


def _described(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """Shapes and dtypes of a checkpoint's arrays, as nested dictionaries."""
    return manager.item_metadata(step).state


def _arrays(manager: ocp.CheckpointManager, step: int, like: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's arrays, placed like `like`, unchecked."""
    return manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like)))["state"]


def _changed(tree: dict[str, Any], want: dict[str, int]) -> str:
    """The first array whose checksum is not the one that was saved, "" if there is none; all processes compute it."""
    found = {name: int(value) for name, value in flatten(checksums(tree)).items()}
    for name in sorted(want.keys() | found.keys()):
        if found.get(name) != want.get(name):
            return f"checksum of {name} is {found.get(name)}, was {want.get(name)}"
    return ""


def _other_shapes(described: dict[str, Any], p: Plan) -> list[str]:
    """Arrays that the checkpoint has and the plan has not, or in another shape: another optimizer's, for example."""
    stored = {k: tuple(m.shape) for k, m in flatten(described).items()}
    wanted = {k: tuple(x.shape) for k, x in flatten(to_tree(p.state)).items()}
    names = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    return [f"{k}: {stored.get(k, 'none')} -> {wanted.get(k, 'none')}" for k in names[:3]]


def _reason(error: Exception) -> str:
    """Why a checkpoint could not be read, on one line; what is no fault of the checkpoint's is raised again."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, (MemoryError, PermissionError)) or "RESOURCE_EXHAUSTED" in text:
        raise error
    return text


def _mismatches(meta: dict[str, Any], experiment: Experiment, fingerprint: str) -> list[str]:
    """Why a run of this experiment cannot go on from this checkpoint: the fields that differ, old -> new."""
    old, new = meta["experiment"], registry.to_json(experiment)
    # Fields that came since have their defaults; those that are gone differ.
    with contextlib.suppress(registry.ConfigError):
        old = registry.to_json(registry.from_json(old))
    found = [f"model.{d}" for d in registry.differences(old["model"], new["model"])]
    found += [f"data.{d}" for d in registry.differences(old["data"], new["data"])]
    for field in ("seed", "master_dtype", "freeze", "freeze_layers", "lora"):
        found += [
            f"train.{d}" for d in registry.differences({field: old["train"][field]}, {field: new["train"][field]})
        ]
    kinds = [{"class": e["optimizer"]["class"]} for e in (old, new)]
    found += [f"optimizer.{d}" for d in registry.differences(*kinds)]
    if not found and meta["data"] != fingerprint:
        found.append(f"the prepared data changed: fingerprint {meta['data'][:12]} -> {fingerprint[:12]}")
    return found


def newest_step(workdir: Path) -> int | None:
    """The step of a run's newest checkpoint, whose parameters `read_params` takes; None where there is none."""
    folder = workdir.absolute() / "checkpoints"
    if not folder.is_dir():
        return None
    with _reader(folder) as manager:
        return manager.latest_step()


def read_params(workdir: Path, step: int | None = None) -> tuple[Experiment, int, dict[str, Any], str]:
    """(experiment, step, parameters on the host, data fingerprint) of a run's newest checkpoint, or of that step.

    Adapters are merged into the matrices they change: the experiment is given back without them.

    Raises:
      CheckpointError: there is no such checkpoint, or it is damaged.
    """
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
        except Exception as error:
            raise CheckpointError(f"checkpoint {folder / str(step)} is damaged ({_reason(error)})") from error
    experiment, params = adapt.plain(registry.from_json(meta["experiment"]), tree["params"])
    return experiment, step, params, meta["data"]
