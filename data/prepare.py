"""Prepared caches by name, which `data.reading.batches` reads.

A cache is a folder <data>/caches/NAME, made by the `data.cache_maker.CacheMaker` of its kind. It is reused while its inputs are
unchanged: its settings, its packages, the maker's format, and whatever else the maker names.
"""

import difflib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from data import kinds, paths
from data.cache_maker import maker_of
from data.config import CacheConfig
from data.packages import fetch
from data.reading import files, tables
from data.stages import Progress, stage
from data.task import DataError
from models.errors import nearest, shortened

PREPARED = kinds.prepared()


def settings_from(source: str, columns: str = "", *, kind: str = "") -> CacheConfig:
    """Returns the settings of a cache of the user's own data, by the first class that makes any of it.

    Args:
      source: a folder, a file, a pattern of files, or "tfds:NAME".
      columns: the columns of a table that have other names than the kind's, "text=body,label=topic".
      kind: the kind of data, a key of KINDS; "" takes the first that the source fits.

    Raises:
      DataError: it does not exist, no kind of data is made of it, or `columns` are named of what has none.
    """
    classes = own_settings()
    kinds_of = sorted({cls.kind for cls in classes})
    if kind and kind not in kinds_of:
        raise DataError(f"--kind {kind!r}: no such kind of data of your own{nearest(kind, kinds_of)}")
    classes = [cls for cls in classes if kind in ("", cls.kind)]
    if ":" not in source:
        tables.listed(source)  # it exists
    for cls in classes:
        if settings := cls.from_source(source, columns):
            if columns and not getattr(settings, "columns", ""):
                raise DataError(f"--columns {columns!r}: {source} has no columns; it is {settings.made_of}")
            return settings
    raise DataError(f"{source!r}: {_expected(source, classes)}; docs/DATA.md lists all forms")


def _expected(source: str, classes: Sequence[type[CacheConfig]]) -> str:
    """Returns what is wrong with a source that none of these classes takes, and the nearest of what they take."""
    is_named = ":" in source  # of TFDS
    row = None if is_named else tables.first(source)
    named = [source] if is_named else list(row or sorted({file.suffix for file in tables.listed(source, lambda _: True)}))
    if not named:
        return "no file is there"

    def likeness(cls: type[CacheConfig]) -> float:
        words = re.findall(r"\.?\w+", cls.made_of)
        return sum(max(difflib.SequenceMatcher(None, name.lower(), word).ratio() for word in words) for name in named)

    what = "the columns" if row else "files like"
    listed = shortened(", ".join(map(shortened, named)), 200)
    renamed = " (--columns NAME=COLUMN)" if row else ""
    return f"no kind of data has {what} {listed}; the nearest is {max(classes, key=likeness).made_of}{renamed}"


def own_settings() -> list[type[CacheConfig]]:
    """Returns the classes of settings of a user's own data."""
    return [cls for cls in kinds.cache_classes() if cls.made_of]


def prepare(
    cache: str,
    settings: CacheConfig | None = None,
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
    maker = maker_of(cache, settings, root, progress)
    for other in settings.caches:
        prepare(other, data_dir=root, progress=progress)
    if vocabulary:
        maker.adopt(vocabulary)
    needed, fields = maker.packages(), settings.flat()
    inputs = paths.digest([maker.FORMAT, fields, {package.file: package.sha256 for package in needed}, *maker.inputs()])
    if _is_made_from(folder, settings.kind, inputs):
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
            contents = maker.build(new)
        if mapper is not None and not mapper.sources:
            progress(f"beam: no pipeline reads the source of {cache}; this process has read it")
        written = sorted(path for path in new.rglob("*") if path.is_file())
        hashes = {path.relative_to(new).as_posix(): paths.sha256(path) for path in written}
        lengths = [value for name, value in fields.items() if name.endswith("length")]
        manifest = {
            "cache": cache,
            "kind": settings.kind,
            **fields,
            **contents,
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
    made = manifest.get("kind")
    same = manifest["inputs"] == inputs and kinds.EARLIER.get(made, made) == kind
    return same and all((folder / name).exists() for name in manifest["files"])
