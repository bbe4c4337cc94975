"""The second tier of checkpoints: a run's newest states on each host's own disk, or in its memory, every few steps.

Each process writes the pieces of the state that its devices hold, one file for each save: FOLDER/RUN/STEP.START.PROCESS.npz,
where START names the start of the run that wrote it. No process waits for another, and no file is shared. A file is a zip archive
of NumPy's, whose CRC-32 of every member is compared when it is read; it has its name only once all of it is written.

Orbax's own managers for this (orbax.checkpoint.experimental.emergency, 0.12.8) keep nothing on hosts where the mesh has one copy
of the state, wait for all processes at each save, and read only what the same processes wrote.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import registry
from configs.experiment import LocalTier
from data import paths
from models.errors import told
from trainers import runlog
from trainers.checkpoints.checkpoint import Damaged, Foreign, Outcome, Sound, agreed, copied, mismatches, other_shapes
from trainers.plan import Plan, in_model_form
from trainers.runtime.processes import any_process, gather_names, gather_values, jointly, versions
from trainers.state import State, by_name

FORMAT = "shardzoo-local-1"
IDENTITY = "local_checkpoints"
"""The file in a run's folder with the run's identity. Without it nothing in a host's folder belongs to the run."""

KEPT = 2
"""States that stay while the next one is written. When a process starts save n + 1, every other has started save n, since no
step ends without all of them, and has therefore ended save n - 1: the last two of one process have one that all of them have."""

_NAME = re.compile(r"(\d+)\.([0-9a-f]{8})\.(\d+)\.npz")

Bounds = tuple[tuple[int, int], ...]  # (start, stop) of each dimension
Pieces = Mapping[Bounds, Sequence[tuple[Any, str]]]  # of an array: where each lies, as archives and names of their members


@dataclasses.dataclass(frozen=True, order=True)
class Save:
    """One save of all processes: its step, and the start of the run that made it."""

    step: int
    start: str


@dataclasses.dataclass(frozen=True)
class _Opened:
    """The files of a save on this host: pieces by array, and dtypes of the arrays."""

    pieces: Mapping[str, Pieces]
    dtypes: Mapping[str, str]


class LocalCheckpoints:
    """The states of one run on this host. Every process must construct it.

    Args:
      say: prints a line on process 0.

    Raises:
      StoreError: the folder cannot be written.
      LinkError: the folder is a link, or holds one.
    """

    def __init__(self, workdir: Path, settings: LocalTier, say: Callable[[str], Any] = print):
        self._say, self._me = say, jax.process_index()
        self._identity = workdir.absolute() / IDENTITY
        run = gather_names(jointly(self._read_identity))[0]
        # The path is part of the name: a copy of a run's folder is another run.
        digest = paths.digest([run, str(workdir.absolute())])[:16]
        self.folder = Path(settings.folder).expanduser().absolute() / f"{workdir.absolute().name}-{digest}"
        self.start = gather_names(secrets.token_hex(4))[0]
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "local-checkpoint")
        self._writing: concurrent.futures.Future[str] | None = None
        self._failing = False
        jointly(self._make_folder)

    def _read_identity(self) -> str:
        if self._me:
            return ""
        with runlog.names_full_disks(self._identity):
            if not self._identity.is_file():
                paths.write_whole(self._identity, secrets.token_hex(8) + "\n")
            return self._identity.read_text().strip()

    def _make_folder(self) -> None:
        with runlog.names_full_disks(self.folder):
            paths.owned_folder(self.folder)
            self.folder.chmod(0o700)  # a place in memory is everybody's, weights are not

    def _files(self) -> Iterator[tuple[Save, int, Path]]:
        """Yields each file's save and process."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if match := _NAME.fullmatch(path.name):
                yield Save(int(match[1]), match[2]), int(match[3]), path

    # --- writing -----------------------------------------------------------------------------------------------------

    def save(self, plan: Plan, state: State, fingerprint: str, owed: Mapping[str, float] | None, pinned: int | None) -> None:
        """Waits for the save before, copies the state off the devices, and writes it in a thread; a line says where that fails.

        Args:
          owed: the scores with which the store's checkpoint of this step is being written; None where none is.
          pinned: the step of a state that stays although it is old.
        """
        self.wait()
        step = int(state.step)
        pieces = {name: _distinct(x) for name, x in by_name(in_model_form(plan, state)).items()}
        for piece in [piece for own in pieces.values() for piece in own.values()]:
            piece.copy_to_host_async()
        members: dict[str, np.ndarray] = {}
        dtypes, places = {}, {}
        for name, own in pieces.items():
            dtypes[name], places[name] = "", []
            for bounds, piece in own.items():
                dtypes[name] = str(piece.dtype)
                places[name].append([bounds, member := str(len(members))])
                # A copy, since the next step is given the memory of this one's state.
                members[member] = np.array(piece, order="C").reshape(-1).view(np.uint8)
        meta = {
            "format": FORMAT,
            "experiment": registry.to_json(plan.experiment),
            "versions": versions(),
            "data": fingerprint,
            "shapes": {name: x.shape for name, x in by_name(plan.model_form).items()},
            "dtypes": dtypes,
            "pieces": places,
            "owed": None if owed is None else dict(owed),
        }
        self._writing = self._pool.submit(self._write, step, meta, members, pinned)

    def _write(self, step: int, meta: dict[str, Any], members: dict[str, np.ndarray], pinned: int | None) -> str:
        """Writes a file in place of the oldest; returns why it could not, or ""."""
        path = self.folder / f"{step}.{self.start}.{self._me}.npz"
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            self._drop_old(pinned)
            self.folder.mkdir(exist_ok=True)
            with unfinished.open("wb") as file:
                np.savez(file, **members, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))  # pyright: ignore[reportArgumentType]
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            return told(error)
        return ""

    def _drop_old(self, pinned: int | None) -> None:
        own = sorted(save.step for save, number, _ in self._files() if (save.start, number) == (self.start, self._me))
        for save, number, path in list(self._files()) if len(own) >= KEPT else ():
            if save.step < own[-KEPT] and save.step != pinned and (save.start != self.start or number == self._me):
                path.unlink(missing_ok=True)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the save under way, without an end by default; says once whether saves fail or succeed again."""
        if self._writing is None:
            return
        with contextlib.suppress(TimeoutError):
            why, self._writing = self._writing.result(seconds), None
            if bool(why) != self._failing:
                self._failing = bool(why)
                line = f"a local save failed ({self.folder}: {why}); training goes on" if why else "local saves succeed again"
                self._say(line) if not self._me else print(f"process {self._me}: {line}", file=sys.stderr, flush=True)

    # --- reading -----------------------------------------------------------------------------------------------------

    def saves(self) -> list[Save]:
        """Returns the saves of which any process holds a part, the newest first. Every process must call this."""
        held = [dataclasses.astuple(save) for save in {save for save, _, _ in self._files()}]
        return sorted({Save(*save) for process in gather_values(held) for save in process}, reverse=True)

    def newest(self) -> int | None:
        """Returns the step of this process's newest file; None where it has none."""
        return max((save.step for save, number, _ in self._files() if number == self._me), default=None)

    def owed(self, save: Save) -> Mapping[str, float] | None:
        """Returns the scores of a checkpoint that was being written to the store meanwhile; None if none was.

        Every process must call this.
        """
        mine = None
        for path in self._of(save):
            with contextlib.suppress(Exception), np.load(path) as archive:  # damage, which `read` names
                mine = _meta(archive)["owed"]
                break
        values = [value for value in gather_values(mine) if value is not None]
        return values[0] if values else None

    def _of(self, save: Save) -> list[Path]:
        """Returns the files of a save on this host, this process's own first."""
        return [path for _, path in sorted((number != self._me, path) for s, number, path in self._files() if s == save)]

    def read(self, save: Save, plan: Plan, fingerprint: str) -> Outcome:
        """Reads a save, of any mesh and number of processes, if every process has all that it needs of it on its own host.

        The processes agree on the outcome: every process must call this.
        """
        with contextlib.ExitStack() as stack:
            opened = agreed(self._opened(save, plan, fingerprint, stack))
            if not isinstance(opened, _Opened):
                return opened
            try:
                form = by_name(plan.model_form)
                arrays = {name: _array(x, opened.pieces[name], opened.dtypes[name]) for name, x in form.items()}
                why = copied(save.step, arrays)
            except Exception as error:  # damage: exceptions of NumPy, zipfile and zlib
                why, arrays = told(error), {}
            outcome = agreed(Damaged(why) if why else Sound(arrays, {}))
        return outcome

    def _opened(self, save: Save, plan: Plan, fingerprint: str, stack: contextlib.ExitStack) -> "Outcome | _Opened":
        """Returns the files of a save, if they are of this experiment and hold all that this process's devices need."""
        pieces: dict[str, dict[Bounds, list[tuple[Any, str]]]] = {}
        meta, why = None, f"process {self._me} has no file of it"
        for path in self._of(save):
            try:
                archive = stack.enter_context(np.load(path))
                meta, places = _meta(archive), _places(archive)
            except Exception as error:
                why = f"{path.name}: {told(error)}"
                continue
            for name, bounds, member in places:
                pieces.setdefault(name, {}).setdefault(bounds, []).append((archive, member))
        if meta is None:
            return Damaged(why)
        shapes = {name: tuple(shape) for name, shape in meta["shapes"].items()}
        if different := mismatches(meta, plan.experiment, fingerprint) or other_shapes(shapes, plan):
            return Foreign("; ".join(different))
        for name, form in by_name(plan.model_form).items():
            if not all(_is_covered(bounds, pieces.get(name, {})) for bounds in _needed(form)):
                return Damaged(f"process {self._me} has not all of {name} on its host")
        return _Opened(pieces, meta["dtypes"])

    # --- deleting ----------------------------------------------------------------------------------------------------

    def forget(self, but: Save | None = None) -> None:
        """Deletes all that hosts hold of the run, except for one save. Every process must call this."""
        self.wait()
        any_process(False)  # waits until no process is reading
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if not (match and Save(int(match[1]), match[2]) == but):
                path.unlink(missing_ok=True)
        any_process(False)  # nothing is left anywhere before the run goes another way

    def remove(self) -> None:
        """Removes the folder, since the run has ended. Every process must call this."""
        self.forget()
        with contextlib.suppress(OSError):  # a process of the same host was faster
            shutil.rmtree(self.folder)
        if not self._me:
            self._identity.unlink(missing_ok=True)

    def close(self) -> None:
        """Waits for the save under way."""
        self.wait()
        self._pool.shutdown()


def disown(workdir: Path) -> None:
    """Leaves all local checkpoints to themselves, so that no later start believes them: this one goes on without them."""
    if jax.process_index() == 0:
        (workdir / IDENTITY).unlink(missing_ok=True)


# --- pieces ----------------------------------------------------------------------------------------------------------


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _distinct(x: jax.Array) -> dict[Bounds, jax.Array]:
    """Returns the pieces of an array that this process holds, each once."""
    return {_bounds(shard.index, x.shape): shard.data for shard in reversed(x.addressable_shards)}


def _needed(form: jax.ShapeDtypeStruct) -> set[Bounds]:
    """Returns the pieces that this process's devices hold of an array of this form."""
    assert form.sharding is not None
    places = form.sharding.addressable_devices_indices_map(form.shape).values()
    return {_bounds(index, form.shape) for index in places if index is not None}


def _overlap(one: Bounds, other: Bounds) -> Bounds | None:
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def _is_covered(bounds: Bounds, pieces: Pieces) -> bool:
    """Returns whether disjoint pieces hold a part of an array between them."""

    def volume(part: Bounds | None) -> int:
        return math.prod(stop - start for start, stop in part) if part is not None else 0

    return sum(volume(_overlap(bounds, piece)) for piece in pieces) == volume(bounds)


def _meta(archive: Any) -> dict[str, Any]:
    meta = json.loads(archive["meta"].tobytes())
    if meta["format"] != FORMAT:
        raise ValueError(f"its format is {meta['format']!r}, not {FORMAT!r}")
    return meta


def _places(archive: Any) -> list[tuple[str, Bounds, str]]:
    """Returns each piece of a file: its array, its place there, and the archive's member."""
    named = _meta(archive)["pieces"].items()
    return [(name, tuple((a, b) for a, b in bounds), member) for name, own in named for bounds, member in own]


def _array(form: jax.ShapeDtypeStruct, pieces: Pieces, dtype: str) -> jax.Array:
    """Returns an array of this form; raises the exception of a piece that is damaged wherever it lies."""

    @functools.cache
    def stored(bounds: Bounds) -> np.ndarray:
        errors: list[Exception] = []
        for archive, member in pieces[bounds]:
            try:
                values = archive[member].view(jnp.dtype(dtype)).reshape([stop - start for start, stop in bounds])
                return values.astype(form.dtype, copy=False)
            except Exception as error:
                errors.append(error)
        raise errors[0]

    @functools.cache
    def part(bounds: Bounds) -> np.ndarray:
        if bounds in pieces:
            return stored(bounds)
        whole = np.empty([stop - start for start, stop in bounds], form.dtype)
        for piece in pieces:
            if (both := _overlap(bounds, piece)) is not None:
                into, out_of = (
                    tuple(slice(start - at, stop - at) for (start, stop), (at, _) in zip(both, origin, strict=True))
                    for origin in (bounds, piece)
                )
                whole[into] = stored(piece)[out_of]
        return whole

    assert form.sharding is not None
    return jax.make_array_from_callback(form.shape, form.sharding, lambda index: part(_bounds(index or (), form.shape)))
