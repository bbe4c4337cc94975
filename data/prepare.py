"""Prepared caches by name, which `data.reading.batches` reads.

A cache is a folder <data>/caches/NAME: `train/PART.array_record` with packed rows, a `SPLIT.jsonl` of raw examples for each
held-out split, the vocabularies, and `manifest.json`. It is reused while its inputs are unchanged.

Its contents depend on its kind: the modules `cache` of `kinds.KINDS`. Each has FORMAT (increased
whenever the same packages would give another cache), `packages_of(settings)`, `depends_on(name, settings, root)` (its other
inputs, as plain values) and `build(settings, root, folder, progress)`, which fills the folder and returns its part of the
manifest. A kind whose caches may be encoded with the vocabulary of released weights also has `adopt(settings, folder, root)`,
which takes it from their folder. A kind that makes caches of a user's own data has `from_source(source)` in its settings.
"""

import dataclasses
import json
import shutil
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from data import kinds, paths
from data.packages import fetch
from data.reading import files
from data.stages import Progress, stage
from data.task import DataError


class Settings(Protocol):
    """The settings of a prepared cache: a frozen dataclass of plain values, whose kind is a key of `kinds.KINDS`."""

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


@runtime_checkable
class MadeFromCaches(Protocol):
    """Settings of a cache that is made from other prepared caches, such as the one whose vocabulary it takes."""

    @property
    def caches(self) -> tuple[str, ...]:
        """Their names, keys of PREPARED."""
        ...


@runtime_checkable
class TakesVocabulary(Protocol):
    """Settings of a cache that may be encoded with the vocabulary of released weights, which its kind's `adopt` takes."""

    @property
    def released(self) -> bool:
        """Whether it is."""
        ...


PREPARED: dict[str, Settings] = {
    name: entry for kind in kinds.KINDS for name, entry in kinds.module(kind, "settings").ENTRIES.items()
}


def settings_from(source: str) -> Settings:
    """Returns the settings of a cache of the user's own data: the first that a kind of data makes of it (`from_source`).

    Args:
      source: a folder, a file, or "tfds:NAME".

    Raises:
      DataError: it does not exist, or no kind of data is made of it.
    """
    for kind in kinds.KINDS:
        made = getattr(kinds.module(kind, "settings"), "from_source", lambda source: None)(source)
        if made is not None:
            return made
    if ":" not in source and not Path(source).exists():
        raise DataError(f"{source!r}: no such file or folder")
    raise DataError(
        f"{source!r}: expected a folder of pictures, DIR/LABEL/*.png, or of sounds with a table of texts, metadata.csv; a "
        "netCDF file or Zarr store; JSON lines of conversations; or tfds:NAME"
    )


def own_settings() -> list[type[Settings]]:
    """Returns the classes of settings of a user's own data: what `from_source` of each kind may return."""
    makers = (getattr(kinds.module(kind, "settings"), "from_source", None) for kind in kinds.KINDS)
    returned = (typing.get_type_hints(maker)["return"] for maker in makers if maker)
    return [cls for union in returned for cls in typing.get_args(union) if cls is not types.NoneType]


def takes_vocabulary(settings: Settings) -> bool:
    """Returns whether a cache is encoded with the vocabulary of released weights."""
    return isinstance(settings, TakesVocabulary) and settings.released


def prepare(
    cache: str,
    settings: Settings | None = None,
    *,
    data_dir: Path | None = None,
    vocabulary: Path | None = None,
    progress: Progress = print,
    beam: Sequence[str] | None = None,
) -> Path:
    """Makes a packed cache, unless it is up to date; first those that it is made from.

    Args:
      cache: its name.
      settings: its settings, those of PREPARED by default.
      data_dir: the data folder, `paths.data_dir()` by default.
      vocabulary: the folder of released weights whose vocabulary encodes the cache, if its settings leave that open.
      progress: called with a line for each stage and its seconds.
      beam: options of Apache Beam, which then reads the items of a public data set (data.reading.beam); None: threads do.

    Returns:
      The cache's folder.

    Raises:
      DataError: the settings name a teacher whose labels are missing, or the cache has a vocabulary of its own.
      FetchError: a package could not be fetched as pinned.
      NotPreparedError: a public data set is not in <data>/tfds.
      ValueError: a vocabulary is too large for the text.
    """
    settings = settings or PREPARED[cache]
    root = data_dir or paths.data_dir()
    folder = root / "caches" / cache
    kind = settings.kind
    maker = kinds.module(kind, "cache")
    for other in settings.caches if isinstance(settings, MadeFromCaches) else ():
        prepare(other, data_dir=root, progress=progress)
    if vocabulary:
        if not takes_vocabulary(settings):
            raise DataError(f"cache {cache!r} has a vocabulary of its own, and takes none from {vocabulary}")
        maker.adopt(settings, vocabulary, root)
    needed = maker.packages_of(settings)
    fields = dataclasses.asdict(settings)
    made_from = [maker.FORMAT, fields, {package.file: package.sha256 for package in needed}]
    made_from += maker.depends_on(cache, settings, root)
    inputs = paths.digest(made_from)
    if _is_made_from(folder, kind, inputs):
        progress(f"{cache}: up to date in {folder}")
        return folder

    with stage("packages", progress):
        fetched = fetch.fetch(needed, root / "packages", progress)
    unfinished = folder.with_name(f".{cache}.beam-{inputs[:16]}")  # kept if this is killed: the next call goes on there
    mapper = None
    if beam is not None:
        from data.reading.beam import BeamMapper

        mapper = BeamMapper(beam, unfinished, progress)
    with paths.new_folder(folder) as new:
        with files.mapped_by(mapper):
            built = maker.build(settings, root, new, progress)
        written = sorted(path for path in new.rglob("*") if path.is_file())
        hashes = {path.relative_to(new).as_posix(): paths.sha256(path) for path in written}
        lengths = [value for name, value in fields.items() if name.endswith("length")]
        manifest = {
            "cache": cache,
            "kind": kind,
            **fields,
            **built,
            "files": hashes,
            "packages": {path.name: paths.sha256(path) for path in fetched},
            "inputs": inputs,
            "fingerprint": paths.digest([hashes, *lengths]),
        }
        (new / "manifest.json").write_text(json.dumps(manifest, indent=1))
    shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _is_made_from(folder: Path, kind: str, inputs: str) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        return False
    same = manifest["inputs"] == inputs and manifest.get("kind") == kind
    return same and all((folder / name).exists() for name in manifest["files"])
