"""Batches by index: a batch is a pure function of the data's fingerprint, a seed and the step, on any number of processes.

There is no iterator state but the step. Where rows come from is data/rows.py; nothing here imports TensorFlow.
"""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from configs.schema import Data
from data.paths import data_dir
from models.common.layout import UserError

Row = dict[str, np.ndarray]


class DataError(UserError):
    """Data that is missing or does not fit the experiment; the message is one line that says what to do."""


class Source(Protocol):
    """An endless sequence of rows."""

    @property
    def fingerprint(self) -> str:
        """What the rows depend on, besides the index."""
        ...

    def row(self, index: int) -> Row:
        """The row at a global index: int32 arrays [L]."""
        ...


def batch_shapes(data: Data) -> dict[str, jax.ShapeDtypeStruct]:
    """The abstract global batch: int32 arrays with rows in front."""
    return {k: jax.ShapeDtypeStruct((data.batch_size, *a.shape), np.int32) for k, a in data.arrays().items()}


def read_manifest(folder: Path) -> dict:
    """A cache's manifest; raises DataError where there is none, saying how to make one."""
    path = folder / "manifest.json"
    if not path.exists():
        raise DataError(f"no prepared data at {folder}; run: python -m scripts.prepare_data {folder.name}")
    return json.loads(path.read_text())


def check_model(model: Any, manifest: dict) -> None:
    """Refuses a model whose vocabularies are smaller than the cache's, or whose classes are not as many."""
    for key, field in model.vocabularies.items():
        have, want = getattr(model, field), manifest[key]
        if have < want:
            raise DataError(f"model.{field}={have} is too small for cache {manifest['cache']!r}: at least {want}")
    have, want = getattr(model, "labels", 0), len(manifest.get("labels", ()))
    if have and have != want:
        raise DataError(f"model.head.labels={have}: cache {manifest['cache']!r} has {want} labels")


def cache_folder(data: Data) -> Path:
    """Where the prepared cache of this data is, or will be; raises DataError for random data."""
    if not data.cache:
        raise DataError("the experiment's data is random tokens: there is no prepared cache and nothing held out")
    return data_dir() / "caches" / data.cache


def open_source(data: Data, model: Any) -> Source:
    """The rows of an experiment's data: stored or random ones, masked where the data says so."""
    from data import rows  # which imports this module

    if not data.cache:
        return rows.finished(data, rows.SyntheticSource(data, model), None)
    folder = cache_folder(data)
    check_model(model, read_manifest(folder))
    return rows.finished(data, rows.CacheSource(data, folder), folder)


class Batches:
    """Global batches by step, placed on the mesh, the next one read while the current one is used.

    Every process reads only the rows that its devices hold.

    Args:
      shardings: of each array, by name.
    """

    def __init__(self, source: Source, data: Data, shardings: dict[str, Any]):
        self.source, self.data, self.shardings = source, data, shardings
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._next: tuple[int, Future] | None = None
        self._shapes = {name: (data.batch_size, *array.shape) for name, array in data.arrays().items()}
        name, shape = next(iter(self._shapes.items()))
        indices = shardings[name].addressable_devices_indices_map(shape).values()
        self._mine = sorted({i for index in indices for i in _range(index[0], shape[0])})

    def __call__(self, step: int) -> dict[str, jax.Array]:
        """The batch of this step: int32 arrays with rows in front, cut over the mesh."""
        if self._next is None or self._next[0] != step:
            self._next = (step, self._reader.submit(self._read, step))
        rows = self._next[1].result()
        self._next = (step + 1, self._reader.submit(self._read, step + 1))

        def place(name: str, shape: tuple[int, ...]) -> jax.Array:
            def piece(index):
                return np.stack([rows[i][name] for i in _range(index[0], shape[0])])[:, *index[1:]]

            return jax.make_array_from_callback(shape, self.shardings[name], piece)

        return {name: place(name, shape) for name, shape in self._shapes.items()}

    def ids(self, step: int) -> tuple[int, int]:
        """First and last row index of a step's batch, to find it again."""
        return step * self.data.batch_size, (step + 1) * self.data.batch_size - 1

    def _read(self, step: int) -> dict[int, Row]:
        return {i: self.source.row(step * self.data.batch_size + i) for i in self._mine}

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)


def _range(index: slice, size: int) -> range:
    return range(*index.indices(size))
