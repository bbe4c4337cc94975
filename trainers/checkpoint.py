"""Checkpoints: asynchronous, atomic, checked when read, restorable onto any mesh and number of processes.

A checkpoint is WORKDIR/checkpoints/<step>/ with two items: `state`, nested dictionaries of arrays (trainers/state.py,
`to_tree`), and `meta`, a JSON object: experiment, library versions, data fingerprint and a checksum of every array. The
data's position is the step, so it needs no item of its own (data/batches.py).
"""

import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, EveryNSteps, LatestN

from configs import registry
from configs.schema import Experiment, Train
from models.common.sharding import flatten
from trainers.state import Plan, State, from_tree, to_tree

FORMAT = "shardzoo-checkpoint-1"


class CheckpointError(RuntimeError):
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
            preservation_policy=AnyPreservationPolicy(keep), cleanup_tmp_directories=True, create=True
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_names=("state", "meta"))

    def save(self, p: Plan, state: State, fingerprint: str, metrics: dict[str, float] | None = None) -> None:
        """Starts to save; returns once the arrays are copied off the devices, before they are written."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        tree = to_tree(state)
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

        A damaged or foreign checkpoint is named, moved aside to WORKDIR/damaged, and the one before it is tried.

        Raises:
          CheckpointError: the newest sound checkpoint is of another model or data, or all of them are damaged.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                meta = self._meta(step)
                problems = _mismatches(meta, p.experiment, fingerprint)
                state = None if problems else self._state(step, p, meta)
            except Exception as error:  # whatever Orbax or the file system raises: this checkpoint cannot be read
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                say(f"checkpoint {self.folder / str(step)} is damaged ({reason}); trying the one before it")
                self._set_aside(step)
                continue
            if problems:
                raise CheckpointError(
                    f"checkpoint {self.folder / str(step)} is of another experiment: {'; '.join(problems)}; "
                    "choose another --workdir, or start from its release with --train.init-from"
                )
            return state
        if steps:
            raise CheckpointError(f"none of the {len(steps)} checkpoints in {self.folder} could be read")
        return None

    def _meta(self, step: int) -> dict[str, Any]:
        items = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        if items["meta"].get("format") != FORMAT:
            raise ValueError(f"not one of ours: its format is {items['meta'].get('format')!r}, not {FORMAT!r}")
        return items["meta"]

    def _state(self, step: int, p: Plan, meta: dict[str, Any]) -> State:
        placed = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), p.state, p.shardings
        )
        items = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(to_tree(placed))))
        found = flatten(checksums(items["state"]))
        for name, want in meta["checksums"].items():
            if name not in found or int(found[name]) != want:
                raise ValueError(f"checksum of {name} is {int(found.get(name, 0))}, was {want}")
        return from_tree(p.state, items["state"])

    def _set_aside(self, step: int) -> None:
        aside = self.folder.parent / "damaged" / str(step)
        if jax.process_index() == 0:
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            (self.folder / str(step)).rename(aside)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"set aside checkpoint {step}")
        self._manager.reload()

    def latest(self) -> int | None:
        return self._manager.latest_step()

    def close(self) -> None:
        """Waits for the save under way, if any."""
        self._manager.wait_until_finished()
        self._manager.close()


def _mismatches(meta: dict[str, Any], experiment: Experiment, fingerprint: str) -> list[str]:
    """Why a run of this experiment cannot go on from this checkpoint: the fields that differ, old -> new."""
    old, new = meta["experiment"], registry.to_json(experiment)
    found = [f"model.{d}" for d in registry.differences(old["model"], new["model"])]
    found += [f"data.{d}" for d in registry.differences(old["data"], new["data"])]
    for field in ("seed", "master_dtype"):
        found += [
            f"train.{d}" for d in registry.differences({field: old["train"][field]}, {field: new["train"][field]})
        ]
    kinds = [{"class": e["optimizer"]["class"]} for e in (old, new)]
    found += [f"optimizer.{d}" for d in registry.differences(*kinds)]
    if not found and meta["data"] != fingerprint:
        found.append(f"the prepared data changed: fingerprint {meta['data'][:12]} -> {fingerprint[:12]}")
    return found


def read_params(workdir: Path, step: int | None = None) -> tuple[Experiment, int, dict[str, Any]]:
    """(experiment, step, parameters on the host) of a run's newest checkpoint, or of that step, for tools.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    folder = workdir.absolute() / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"no checkpoints in {workdir}; a run writes them under WORKDIR/checkpoints")
    handlers = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
    with ocp.CheckpointManager(folder, item_handlers=handlers) as manager:
        step = manager.latest_step() if step is None else step
        if step not in manager.all_steps():
            raise CheckpointError(f"no checkpoint {step} in {folder}; there are {sorted(manager.all_steps())}")
        items = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        experiment = registry.from_json(items["meta"]["experiment"])
        described = manager.item_metadata(step).state
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        like = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=here), described)
        items = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like)))
    return experiment, step, items["state"]["params"]
