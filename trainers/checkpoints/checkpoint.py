"""One checkpoint: what it holds, whether it is sound, and reading it.

A checkpoint is WORKDIR/checkpoints/<step>/, or <step>/ in the folder `train.checkpoint.folder`, with two items: `state`, nested
dictionaries of arrays (trainers/state.py, `by_name`), and `meta`, a JSON object with the experiment, library versions, data
fingerprint, score, a checksum of every array and one of itself. The position in the data is the step, so it needs no item of its
own (data/reading/batches.py). trainers/checkpoints/manager.py writes them.
"""

import contextlib
import dataclasses
import json
import math
import typing
from collections.abc import Collection, Iterator, Mapping
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
from trainers import lora
from trainers.audit import log as audit
from trainers.audit import saved
from trainers.checkpoints import bucket
from trainers.checkpoints.bucket import StoreReadError
from trainers.plan import Plan
from trainers.runtime.processes import any_process, versions
from trainers.state import by_name, on_device

FORMAT = "shardzoo-checkpoint-1"
_META = {"format": str, "experiment": dict, "versions": dict, "data": str, "checksums": dict}
"""Keys of `meta`, with the types of their values. "checksum", a SHA-256 of all of them, is not in the oldest checkpoints;
"score", a value by the name of its metric, is where `train.checkpoint.best` asks for it."""

_PARTS = ("model", "data", "train", "optimizer")  # of an experiment, in which a run that goes on may not differ

_FIXED = ("seed.", "master_dtype.", "finetune.freeze.", "finetune.freeze_layers.", "finetune.lora.")  # of `train`, likewise

_UNFINISHED = ".orbax-checkpoint-tmp"  # is in the name of a checkpoint's folder until all of it is written

_READ = ("params", "step")  # what is read of a state where its run does not go on


_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    EOFError,
    RecursionError,
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
)
"""Exceptions of Orbax for files whose contents are not what it wrote. TensorStore's are ValueErrors, or the cause of an Exception
without a class of its own."""

_FOR_NOW = (
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
)
"""TensorStore's words for a store that does not give what it has."""


class CheckpointError(UserError):
    """A checkpoint must not be used, or cannot be read; the message names it and says why."""


class DamageError(CheckpointError):
    """The files of a checkpoint are not what was written; the message says where."""


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

    return jax.tree.map(checksum, on_device(tree))


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
    """A checkpoint from which the run can continue: its arrays by name, on the plan's mesh, and their stored checksums."""

    arrays: dict[str, Any]
    checksums: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A checkpoint that cannot be read; the one before it may be sound."""

    why: str


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A checkpoint of another experiment, or of other data, from which the run must not continue."""

    why: str


@dataclasses.dataclass(frozen=True)
class Unread:
    """A checkpoint of which nothing is known, since the place it lies in cannot be read for now."""

    why: str


Outcome = Sound | Damaged | Foreign | Unread
T = typing.TypeVar("T")


class Manager(ocp.CheckpointManager):
    """Orbax's manager, which does not ask JAX's coordinator whether a signal came (trainers/runtime/processes.py does).

    Orbax asks late, in the thread of a save, which would set back the number from which the coordinator picks the step at which
    all processes stop.
    """

    def reached_preemption(self, step: int) -> bool:
        del step
        return False


def options(**kwargs: Any) -> ocp.CheckpointManagerOptions:
    """Returns a manager's options. It lists checkpoints by name alone, since one with damage must not hide the others."""
    return ocp.CheckpointManagerOptions(lightweight_initialize=True, **kwargs)


def folder_of(workdir: Path) -> epath.Path:
    """Returns the folder of a run's checkpoints: WORKDIR/checkpoints, or the one that this file names.

    Raises:
      BucketError, StoreReadError: it is at an address that cannot be read.
    """
    at = workdir.absolute() / "checkpoints"
    if not at.is_file():
        return epath.Path(at)
    place = untrusted.read_bytes(at, CheckpointError, most=4096).decode(errors="replace").strip()
    bucket.check(place)
    return epath.Path(place)


def new_meta(plan: Plan, arrays: dict[str, Any], fingerprint: str, score: Mapping[str, float]) -> dict[str, Any]:
    """Returns the `meta` of a checkpoint of these arrays.

    Args:
      score: a value by the name of its metric; empty where it has none.
    """
    meta = {
        "format": FORMAT,
        "experiment": registry.to_json(plan.experiment),
        "versions": versions(),
        "data": fingerprint,
        "checksums": {name: int(value) for name, value in checksums(arrays).items()},
    } | ({"score": dict(score)} if score else {})
    return meta | {"checksum": paths.digest(meta)}


def to_tree(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays by name as they are stored, nested by the parts of their names."""
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def _from_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the inverse of `to_tree`."""
    arrays = {}
    for key, value in tree.items():
        arrays |= _from_tree(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return arrays


def score(folder: epath.Path) -> dict[str, float] | None:
    """Returns a checkpoint's score by the name of its metric, {} where it has none, and None where nobody can know: damage.

    Checkpoints from before `meta` held the score have it in a file of its own, without a checksum.
    """
    try:
        if "score" in (meta := _checked(json.loads((folder / "meta" / "metadata").read_text()))):
            return meta["score"]
        older = folder / "metrics" / "metrics"
        stored = {name: float(value) for name, value in json.loads(older.read_text()).items()} if older.exists() else {}
        return stored if all(map(math.isfinite, stored.values())) else None
    except FileNotFoundError:
        return {}
    except Exception:  # damage, or a store's error, whose classes are those of many packages
        return None


def read(folder: epath.Path, step: int, plan: Plan, fingerprint: str) -> Outcome:
    """Reads a checkpoint on this process alone, without comparing the arrays with their checksums."""
    try:
        with _reader(folder) as reader:
            meta = _meta(reader, step)
            obsolete = optimized_statistics(shapes := _shapes(reader, step), plan)
            shapes = {name: shape for name, shape in shapes.items() if name not in obsolete}
            if why := mismatches(meta, plan.experiment, fingerprint) or other_shapes(shapes, plan):
                return Foreign("; ".join(why))
            arrays = _arrays(reader, step, by_name(plan.model_form))
            checksums = {name: value for name, value in meta["checksums"].items() if name not in obsolete}
            return Damaged(why) if (why := copied(step, arrays)) else Sound(arrays, checksums)
    except DamageError as error:
        return Damaged(str(error))
    except StoreReadError as error:
        return Unread(str(error))


def agreed(outcome: T) -> T | Outcome:
    """Returns the worst outcome of all processes: unread, damaged, foreign, or another. Every process must call this."""
    for kind in (Unread, Damaged, Foreign):
        if any_process(isinstance(outcome, kind)):
            return outcome if isinstance(outcome, kind) else kind("on another process")
    return outcome


def verified(outcome: Outcome) -> Outcome:
    """Returns the outcome after comparing checksums, which all processes compute together; they agree before and after."""
    if isinstance(outcome, Sound) and (why := _changed(outcome.arrays, outcome.checksums)):
        outcome = Damaged(why)
    return agreed(outcome)


def _reader(folder: epath.Path) -> ocp.CheckpointManager:
    """Returns a manager that reads on this process alone: a process that finds damage must not leave others at a barrier."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"reader_{me}")
    parts = {"state": ocp.PyTreeCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}  # reads a part of a tree too
    with bucket.answers(folder):
        return Manager(folder, options=options(create=False, multiprocessing_options=alone), item_handlers=parts)


@contextlib.contextmanager
def _finds_damage() -> Iterator[None]:
    """Raises DamageError for an exception that means damage, StoreReadError for that of a store, and any other again.

    The block asks Orbax for something and uses nothing of this project's that might have a bug.
    """
    try:
        yield
    except Exception as raised:
        error = bucket.as_file_error(raised)
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
        if isinstance(raised, (MemoryError, PermissionError)):
            raise
        if (isinstance(error, OSError) and not missing) or any(word in str(c) for c in causes for word in _FOR_NOW):
            raise StoreReadError(told(error)) from error
        if isinstance(error, _DAMAGE) or type(error) is Exception:
            raise DamageError(told(error)) from error
        raise


@_finds_damage()
def _meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """Returns a checkpoint's `meta`; raises DamageError if it is damaged or another program's."""
    return _checked(manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"])


def _checked(meta: Any) -> dict[str, Any]:
    """Returns a `meta` without its checksum; raises ValueError if it is damaged or another program's."""
    if not isinstance(meta, dict):
        raise ValueError("its meta is not a JSON object")
    if meta.get("format") != FORMAT:
        raise ValueError(f"not a checkpoint of this project: its format is {meta.get('format')!r}, not {FORMAT!r}")
    wrong = [name for name, kind in _META.items() if not isinstance(meta.get(name), kind)]
    wrong += sorted(meta.keys() - _META.keys() - {"checksum", "score"})  # a damaged name is not taken for a missing key
    wrong += [] if isinstance(meta.get("score", {}), dict) else ["score"]
    wrong = wrong or [f"experiment.{part}" for part in _PARTS if not isinstance(meta["experiment"].get(part), dict)]
    if wrong:
        raise ValueError(f"its meta has missing, mistyped or unknown fields: {', '.join(wrong)}")
    if "checksum" in meta and meta.pop("checksum") != paths.digest(meta):
        raise ValueError("its meta does not have the checksum that it was saved with")
    return meta


@_finds_damage()
def _shapes(manager: ocp.CheckpointManager, step: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a checkpoint's arrays, by name."""
    return {name: tuple(array.shape) for name, array in _from_tree(manager.item_metadata(step).state).items()}


def _arrays(manager: ocp.CheckpointManager, step: int, like: dict[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint's arrays by name, placed like `like`, without checking them."""
    tree = to_tree(like)
    return _from_tree(_restored(manager, step, tree, ocp.checkpoint_utils.construct_restore_args(tree)))


def _on_host(manager: ocp.CheckpointManager, step: int, names: Collection[str]) -> dict[str, Any]:
    """Returns the arrays of these names as NumPy's. Orbax's list of all arrays would open each of the optimizer's."""
    tree = to_tree(dict.fromkeys(names, 0))
    return _from_tree(_restored(manager, step, tree, jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)))


@_finds_damage()
def _restored(manager: ocp.CheckpointManager, step: int, like: dict[str, Any], how: Any) -> dict[str, Any]:
    part = ocp.args.PyTreeRestore(like, restore_args=how, partial_restore=True)
    return manager.restore(step, args=ocp.args.Composite(state=part))["state"]


def _changed(arrays: dict[str, Any], want: dict[str, int]) -> str:
    """Returns the first difference between the arrays' checksums and the saved ones, or "". Every process must call this."""
    return _difference({name: int(value) for name, value in checksums(arrays).items()}, want)


def _difference(actual: dict[str, int], want: dict[str, int]) -> str:
    for name in sorted(want.keys() | actual.keys()):
        if actual.get(name) != want.get(name):
            return f"checksum of {name} is {actual.get(name)}, was {want.get(name)}"
    return ""


def copied(step: int, arrays: Mapping[str, Any]) -> str:
    """Returns a line if a checkpoint is not of the step that it has for a name, else ""."""
    return f"it is a copy of checkpoint {int(arrays['step'])}" if int(arrays["step"]) != step else ""


def optimized_statistics(stored: Collection[str], plan: Plan) -> set[str]:
    """Returns the arrays that the optimizer kept of running statistics when these were parameters that it changed."""
    endings = tuple(f".{name}" for name in plan.statistics)
    return {name for name in stored if name.startswith("optimizer.") and name.endswith(endings)} if endings else set()


def other_shapes(stored: Mapping[str, tuple[int, ...]], plan: Plan) -> list[str]:
    """Returns the arrays that differ in shape, or exist on one side only, as with another optimizer."""
    wanted = {k: tuple(x.shape) for k, x in by_name(plan.state).items()}
    names = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    return [f"{k}: {stored.get(k, 'none')} -> {wanted.get(k, 'none')}" for k in names[:3]]


def mismatches(meta: Mapping[str, Any], experiment: Experiment, fingerprint: str) -> list[str]:
    """Returns why a run of this experiment cannot continue from this checkpoint: the fields that differ, old -> new."""
    # How a model is computed (Experiment.execution) may change from one start to the next.
    old, new = _with_defaults(meta["experiment"]), registry.to_json(experiment)
    result = [f"model.{d}" for d in registry.differences(old["model"], new["model"])]
    result += [f"data.{d}" for d in registry.differences(old["data"], new["data"])]
    differences = registry.differences(old["train"], new["train"])
    result += [f"train.{d}" for d in differences if f"{d.partition(':')[0]}.".startswith(_FIXED)]
    kinds = [{"class": e["optimizer"].get("class")} for e in (old, new)]
    result += [f"optimizer.{d}" for d in registry.differences(*kinds)]
    if not result and meta["data"] != fingerprint:
        result.append(f"the prepared data changed: fingerprint {meta['data'][:12]} -> {fingerprint[:12]}")
    return result


def _with_defaults(experiment: dict[str, Any]) -> dict[str, Any]:
    """Returns an experiment's JSON values, in which fields that were added since have their defaults.

    A part with fields that were removed since stays as it is: they count as differences.
    """
    values, kinds = registry.modernized(experiment), typing.get_type_hints(Experiment)
    for part in _PARTS:
        with contextlib.suppress(registry.ConfigError):
            values[part] = registry.to_json(registry.from_json(values[part], kinds[part], part))
    return values


def newest_step(workdir: Path) -> int | None:
    """Returns the step of a run's newest checkpoint, which `read_params` reads by default; None where there is none.

    Raises:
      BucketError, StoreReadError: the place of the checkpoints cannot be read.
    """
    folder = folder_of(workdir)
    if not bucket.is_folder(folder):
        return None
    with _reader(folder) as manager:
        return manager.latest_step()


def begun(workdir: Path) -> Experiment | None:
    """Returns the experiment of a run's newest checkpoint; None where there is none, or it is damaged.

    Raises:
      BucketError, StoreReadError: the place of the checkpoints cannot be read.
    """
    folder = folder_of(workdir)
    if not bucket.is_folder(folder):
        return None
    with _reader(folder) as manager, contextlib.suppress(DamageError, registry.ConfigError):
        if (step := manager.latest_step()) is not None:
            return registry.from_json(_meta(manager, step)["experiment"])
    return None


def _none_yet(workdir: Path, folder: epath.Path) -> str:
    """Returns why a run has no checkpoint, and what can be done."""
    with bucket.answers(folder):
        parts = [p for p in folder.iterdir() if _UNFINISHED in p.name or (p.name.isdigit() and not bucket.whole(p))]
    unfinished = sorted(path.name.partition(".")[0] for path in parts)
    if unfinished:
        return (
            f"no checkpoint of {workdir} is finished: the save of step {unfinished[-1]} is under way, or was cut off; wait a "
            "moment, or, if the run has ended, start it again with the same command"
        )
    return (
        f"{workdir} has no checkpoint yet: its run has not come to its first save, or ended before it; wait, or start it again "
        "with the same command, which saves at the end and every --train.checkpoint.every steps"
    )


def read_params(workdir: Path, step: int | None = None) -> tuple[Experiment, int, dict[str, Any], str]:
    """Returns (experiment, step, parameters on the host, data fingerprint) of a run's newest checkpoint, or of a given step.

    Adapters are merged into the matrices they change, and the experiment that is returned has none.

    Raises:
      CheckpointError: there is no such checkpoint, or it is damaged.
      BucketError, StoreReadError: the place of the checkpoints cannot be read.
    """
    experiment, at, stored, data = read_stored(workdir, step)
    experiment, params = lora.plain(experiment, stored)
    return experiment, at, params, data


def read_stored(workdir: Path, step: int | None = None, *, whole: bool = False) -> tuple[Experiment, int, dict[str, Any], str]:
    """Returns what `read_params` does, with parameters as they are stored: adapters beside them, matrices quantised.

    Args:
      whole: the other arrays, as the optimizer's, are read and compared with their checksums too.
    """
    folder = folder_of(workdir)
    if not bucket.is_folder(folder):
        raise CheckpointError(f"no checkpoints in {workdir}; a run writes them under WORKDIR/checkpoints")
    with _reader(folder) as manager:
        if not (steps := sorted(manager.all_steps())):
            raise CheckpointError(_none_yet(workdir, folder))
        step = steps[-1] if step is None else step
        if step not in steps:
            raise CheckpointError(f"no checkpoint {step} in {folder}; there are {', '.join(map(str, steps))}")
        try:
            meta = _meta(manager, step)
            want = {name: value for name, value in meta["checksums"].items() if whole or name.partition(".")[0] in _READ}
            arrays = _on_host(manager, step, want)
            actual = {name: checksum_on_host(x) for name, x in arrays.items()}
            if reason := _difference(actual, want) or copied(step, arrays):
                raise DamageError(reason)
        except DamageError as error:
            raise CheckpointError(f"checkpoint {folder / str(step)} is damaged ({error})") from error
        except StoreReadError as error:
            raise StoreReadError(f"checkpoint {folder / str(step)} cannot be read for now ({error})") from error
        experiment = registry.from_json(meta["experiment"])
        name = f"{saved.place(workdir.absolute(), folder)}{step}/{saved.META}"
        audit.record_read(workdir, "a run", files=audit.digests(workdir.absolute(), name))
    params = {name.removeprefix("params."): x for name, x in arrays.items() if name.startswith("params.")}
    return experiment, step, params, meta["data"]
