"""One checkpoint: what it holds, whether it is sound, and reading it.

A checkpoint is WORKDIR/checkpoints/<step>/, or <step>/ in the folder `train.checkpoints`, with two items: `state`, nested
dictionaries of arrays (trainers/state.py, `to_tree`), and `meta`, a JSON object with the experiment, library versions, data
fingerprint, a checksum of every array and one of itself. The position in the data is the step, so it needs no item of its own
(data/reading/batches.py). trainers/checkpoints/manager.py writes them.
"""

import contextlib
import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from configs import registry
from configs.experiment import Experiment
from data import paths, untrusted
from models.errors import UserError, told
from models.sharding.params import flatten, nest
from trainers import adapt
from trainers.plan import Plan
from trainers.processes import any_process, versions
from trainers.state import to_tree

FORMAT = "shardzoo-checkpoint-1"
_META = {"format": str, "experiment": dict, "versions": dict, "data": str, "checksums": dict}
"""Keys of `meta`, with the types of their values; "checksum", a SHA-256 of all of them, is not in the oldest checkpoints."""

_READ = ("params", "step")  # what is read of a state where its run does not go on


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


def checksum_on_host(x: Any) -> int:
    """Returns what `checksums` does of an array that this process holds whole, without compiling a program for its shape."""
    values = np.asarray(x)
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{values.dtype.itemsize}")
    total, part = 0, 1 << 20  # at a time, so that the factors take little memory
    for start in range(0, bits.size, part):
        piece = bits[start : start + part].astype(np.uint32)
        place = np.arange(start, start + piece.size, dtype=np.uint64).astype(np.uint32)
        total += int(np.dot(piece, place * np.uint32(2654435761 * 2 % 2**32) + np.uint32(1)))
    return total % 2**32


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


class Manager(ocp.CheckpointManager):
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


def folder_of(workdir: Path) -> epath.Path:
    """Returns the folder of a run's checkpoints: WORKDIR/checkpoints, or the one that this file names."""
    at = workdir.absolute() / "checkpoints"
    if not at.is_file():
        return epath.Path(at)
    return epath.Path(untrusted.read_bytes(at, CheckpointError, most=4096).decode(errors="replace").strip())


def new_meta(plan: Plan, tree: dict[str, Any], fingerprint: str) -> dict[str, Any]:
    """Returns the `meta` of a checkpoint of these arrays."""
    meta = {
        "format": FORMAT,
        "experiment": registry.to_json(plan.experiment),
        "versions": versions(),
        "data": fingerprint,
        "checksums": {name: int(value) for name, value in flatten(checksums(tree)).items()},
    }
    return meta | {"checksum": paths.digest(meta)}


def read(folder: epath.Path, step: int, plan: Plan, fingerprint: str) -> Outcome:
    """Reads a checkpoint on this process alone, without comparing the arrays with their checksums."""
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), plan.state, plan.shardings)
    try:
        with _reader(folder) as reader:
            meta = _meta(reader, step)
            if why := _mismatches(meta, plan.experiment, fingerprint) or _other_shapes(_described(reader, step), plan):
                return Foreign("; ".join(why))
            tree = _arrays(reader, step, to_tree(placed))
            return Damaged(why) if (why := _copied(step, tree)) else Sound(tree, meta["checksums"])
    except Exception as error:
        return Damaged(_reason(error))


def agreed(outcome: Outcome) -> Outcome:
    """Returns the worst outcome of all processes: damaged, else foreign, else sound. Every process must call this."""
    for kind in (Damaged, Foreign):
        if any_process(isinstance(outcome, kind)):
            return outcome if isinstance(outcome, kind) else kind("on another process")
    return outcome


def verified(outcome: Outcome) -> Outcome:
    """Returns the outcome after comparing checksums, which all processes compute together; they agree before and after."""
    if isinstance(outcome, Sound) and (why := _changed(outcome.tree, outcome.checksums)):
        outcome = Damaged(why)
    return agreed(outcome)


def _reader(folder: epath.Path) -> ocp.CheckpointManager:
    """Returns a manager that reads on this process alone: a process that finds damage must not leave others at a barrier."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"reader_{me}"
    )
    options = ocp.CheckpointManagerOptions(create=False, multiprocessing_options=alone)
    parts = {"state": ocp.PyTreeCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}  # reads a part of a tree too
    return Manager(folder, options=options, item_handlers=parts)


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
    how = ocp.checkpoint_utils.construct_restore_args(like)
    part = ocp.args.PyTreeRestore(like, restore_args=how, partial_restore=True)
    return manager.restore(step, args=ocp.args.Composite(state=part))["state"]


def _on_host(manager: ocp.CheckpointManager, step: int, names: Collection[str]) -> dict[str, Any]:
    """Returns the arrays of these names, nested, as NumPy's. Orbax's list of all arrays would open each of the optimizer's."""
    like = nest(dict.fromkeys(names, 0))
    how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
    part = ocp.args.PyTreeRestore(like, restore_args=how, partial_restore=True)
    return manager.restore(step, args=ocp.args.Composite(state=part))["state"]


def _changed(tree: dict[str, Any], want: dict[str, int]) -> str:
    """Returns the first difference between the arrays' checksums and the saved ones, or "". Every process must call this."""
    return _difference({name: int(value) for name, value in flatten(checksums(tree)).items()}, want)


def _difference(actual: dict[str, int], want: dict[str, int]) -> str:
    for name in sorted(want.keys() | actual.keys()):
        if actual.get(name) != want.get(name):
            return f"checksum of {name} is {actual.get(name)}, was {want.get(name)}"
    return ""


def _copied(step: int, tree: dict[str, Any]) -> str:
    """Returns a line if a checkpoint is not of the step that it has for a name, else ""."""
    return f"it is a copy of checkpoint {int(tree['step'])}" if int(tree["step"]) != step else ""


def _other_shapes(described: dict[str, Any], plan: Plan) -> list[str]:
    """Returns the arrays that differ in shape, or exist on one side only, as with another optimizer."""
    stored = {k: tuple(m.shape) for k, m in flatten(described).items()}
    wanted = {k: tuple(x.shape) for k, x in flatten(to_tree(plan.state)).items()}
    names = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    return [f"{k}: {stored.get(k, 'none')} -> {wanted.get(k, 'none')}" for k in names[:3]]


def _reason(error: Exception) -> str:
    """Returns, in one line, why a checkpoint could not be read; raises errors again that are not the checkpoint's fault."""
    text = told(error)
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
    folder = folder_of(workdir)
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
    folder = folder_of(workdir)
    if not folder.is_dir():
        raise CheckpointError(f"no checkpoints in {workdir}; a run writes them under WORKDIR/checkpoints")
    with _reader(folder) as manager:
        step = manager.latest_step() if step is None else step
        if step is None or step not in manager.all_steps():
            raise CheckpointError(f"no checkpoint {step} in {folder}; there are {sorted(manager.all_steps())}")
        try:
            meta = _meta(manager, step)
            want = {name: value for name, value in meta["checksums"].items() if name.partition(".")[0] in _READ}
            tree = _on_host(manager, step, want)
            actual = {name: checksum_on_host(x) for name, x in flatten(tree).items()}
            if reason := _difference(actual, want) or _copied(step, tree):
                raise ValueError(reason)
            experiment = registry.from_json(meta["experiment"])
        except registry.ConfigError:  # sound, but its experiment is not one of this version
            raise
        except Exception as error:
            raise CheckpointError(f"checkpoint {folder / str(step)} is damaged ({_reason(error)})") from error
    return experiment, step, tree["params"], meta["data"]
