"""Rows by index, from a prepared cache or random, augmented anew each time. No TensorFlow, no JAX."""

import abc
import bisect
import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np

from data import untrusted
from data.config import DataConfig
from data.features import Example, Feature, joined, stacked
from data.kinds import task_of
from data.reading.caches import cache_folder, check_rows, read_manifest
from data.reading.records import Records
from data.task import DataError, Task
from models.families import ModelConfig


class Source(abc.ABC):
    """An endless sequence of rows.

    Attributes:
      fingerprint: names everything that the rows depend on, besides the index.
    """

    fingerprint: str

    @abc.abstractmethod
    def row(self, index: int) -> Example:
        """Returns the row at a global index: arrays as the features say."""

    def rows(self, indices: Sequence[int]) -> Example:
        """Returns the rows at ascending indices, each another one, in front of each array."""
        return stacked([self.row(index) for index in indices])


class SyntheticSource(Source):
    """Rows of random data: a row depends on the seed and its index alone."""

    def __init__(self, task: Task, model: ModelConfig):
        self.task, self.model, self.seed = task, model, task.data.seed
        self.fingerprint = f"synthetic-{self.seed}-{task.synthetic_key(model)}"

    def row(self, index: int) -> Example:
        return self.task.synthetic(np.random.default_rng((self.seed, index)), self.model)


class CacheSource(Source):
    """Rows of a prepared cache, shuffled anew in every epoch, its parts (languages, sources of text) mixed by their weights
    (data.task.Task.weights), read by Grain."""

    def __init__(self, task: Task, folder: Path):
        import grain

        data, manifest, temperature = task.data, read_manifest(folder), task.temperature
        self.folder, self.stored = folder, data.stored()
        with untrusted.damage(folder / "manifest.json", DataError):
            sizes = task.parts(manifest)
            self.fingerprint = f"{manifest['fingerprint']}-{data.seed}-{temperature:g}"
            weights = np.array(task.weights(sizes), np.float64)
            if not sizes or not (weights > 0).all() or not np.isfinite(weights.sum()):
                raise DataError(f"{folder}: its manifest names no rows, or parts without any")
        rows: list[Any] = []
        for name in sizes:
            path = check_rows(folder, manifest, name)
            with untrusted.damage(path, DataError):
                records = Records(path)
                rows.append(grain.MapDataset.source(cast(Any, records)).seed(_seed(data.seed, name)).shuffle().repeat())
        self._rows = grain.MapDataset.mix(rows, weights=list(weights / weights.sum()))

    def row(self, index: int) -> Example:
        with untrusted.damage(f"a row of {self.folder}", DataError):
            return unpack(np.frombuffer(cast(bytes, self._rows[index]), np.uint8), self.stored)


class AugmentedSource(Source):
    """Rows augmented by their task, and then combined with their neighbours (data.task.Task.combine).

    A row depends on the seed and the index alone. The neighbours that were combined with the last row are kept: read in order,
    each is augmented once.
    """

    def __init__(self, task: Task, source: Source, assets: Any):
        self.task, self.source, self.assets = task, source, assets
        self.fingerprint = f"{source.fingerprint}-{task.augmentation}"
        self._last: tuple[int, Example] = -1, {}

    def row(self, index: int) -> Example:
        return {name: array[0] for name, array in self.rows([index]).items()}

    def rows(self, indices: Sequence[int]) -> Example:
        size, parts, at = self.task.rows_per_group, [], 0
        while at < len(indices):
            group = indices[at] // size
            end = bisect.bisect_left(indices, (group + 1) * size, at)
            whole, places = self._group(group), [index - group * size for index in indices[at:end]]
            parts.append(whole if len(places) == size else {name: array[places] for name, array in whole.items()})
            at = end
        return joined(parts)

    def _group(self, group: int) -> Example:
        """Returns the rows that are combined with each other, in front."""
        if self._last[0] != group:
            size = self.task.group_size
            rows = [self._augmented(i) for i in range(group * size, (group + 1) * size)]
            self._last = group, self.task.combine(rows, _draws(self.task.data.seed, 2, group))
        return self._last[1]

    def _augmented(self, index: int) -> Example:
        row = self.source.row(index)
        try:
            return self.task.augment(row, _draws(self.task.data.seed, 1, index), self.assets)
        except DataError as error:
            raise DataError(f"row {index} of cache {self.task.data.cache!r}: {error}") from None


class _Draws:
    """A generator that is made when something is drawn from it: that takes 12 us, and many tasks draw nothing."""

    def __init__(self, *seed: int):
        self._seed = seed

    @functools.cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self._seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def _draws(*seed: int) -> np.random.Generator:
    return cast(np.random.Generator, _Draws(*seed))


def open_source(data: DataConfig, model: ModelConfig) -> Source:
    """Returns the rows of an experiment's data, stored or random, as the model gets them.

    Raises:
      DataError: there is no such cache, or the model cannot take it.
    """
    task, folder = task_of(data), cache_folder(data) if data.cache else None
    if folder is None:
        source: Source = SyntheticSource(task, model)
    else:
        with untrusted.damage(folder / "manifest.json", DataError):
            task.check(read_manifest(folder), model)
        source = CacheSource(task, folder)
    return AugmentedSource(task, source, task.assets(folder, model)) if task.augmentation else source


class StoredExamples(Sequence[Example]):
    """The first rows of a file of records as a model gets them, made when they are asked for: a slice by several threads.

    Args:
      stored: the arrays of a record.
      make: returns what a model gets of a stored row.
      threads: that make the rows of a slice; 1 makes them one after the other.
    """

    def __init__(
        self, file: Path, stored: Mapping[str, Feature], make: Callable[[Example], Example], size: int, threads: int = 1
    ):
        self.stored, self.make, self.size, self.threads = stored, make, size, threads
        self.file = untrusted.regular(file, DataError)
        with untrusted.damage(file, DataError):
            self._records = Records(file)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        places = range(self.size)[at]
        if isinstance(places, int):
            return self._made(places, self.row(places))
        rows = list(map(self.row, places))
        if self.threads == 1:
            return list(map(self._made, places, rows))
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(self._made, places, rows))

    def _made(self, at: int, row: Example) -> Example:
        try:
            return self.make(row)
        except DataError as error:
            raise DataError(f"{self.file}, row {at}: {error}") from None

    def row(self, at: int) -> Example:
        """Returns a row as it is stored."""
        with untrusted.damage(self.file, DataError):
            return unpack(np.frombuffer(self._records[at], np.uint8), self.stored)


def record_of(row: Example, stored: Mapping[str, Feature]) -> bytes:
    """Returns a row as it is stored: the inverse of `unpack`."""
    arrays = (np.asarray(row[name], np.dtype(feature.dtype).newbyteorder("<")) for name, feature in stored.items())
    return b"".join(array.tobytes() for array in arrays)


def unpack(record: np.ndarray, stored: Mapping[str, Feature]) -> Example:
    """Returns the arrays of a stored record: their bytes, little-endian, one after the other."""
    raw, at, row = record.view(np.uint8), 0, {}
    dtypes = {name: np.dtype(feature.dtype).newbyteorder("<") for name, feature in stored.items()}
    sizes = {name: math.prod(feature.shape) * dtypes[name].itemsize for name, feature in stored.items()}
    for name, size in sizes.items():
        if size < 0:  # the one that takes what is left
            sizes[name] = max(raw.size - sum(sizes.values()) + size, 0)
    if raw.size != sum(sizes.values()):
        raise ValueError(f"a record of {raw.size} bytes, where the features {list(stored)} have {sum(sizes.values())}")
    for name, feature in stored.items():
        row[name] = raw[at : at + sizes[name]].view(dtypes[name]).reshape(feature.shape)
        at += sizes[name]
    return row


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little")
