"""Batches by index: a batch is a pure function of the data's fingerprint, a seed and the step, on any number of processes.

There is no iterator state but the step. Rows come from a prepared cache (data/prepare.py) through Grain, shuffled anew
in every epoch and mixed over languages at a temperature; nothing here imports TensorFlow.
"""

import hashlib
import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, cast

import jax
import numpy as np

from configs.schema import Data, SyntheticTranslation, TranslationData
from data.paths import data_dir
from models.common.layout import UserError

Row = dict[str, np.ndarray]


class DataError(UserError):
    """Data that is missing or does not fit the experiment; the message is one line that says what to do."""


class Source(Protocol):
    """An endless sequence of rows."""

    fingerprint: str  # what the rows depend on, besides the index

    def row(self, index: int) -> Row:
        """The row at a global index: int32 arrays [L]."""
        ...


def row_shapes(data: Data) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a packed row's arrays, in the order in which the cache stores them."""
    lengths = {"inputs": data.source_length, "targets": data.target_length}
    return {side + part: (n,) for side, n in lengths.items() for part in ("", "_segments", "_positions")}


def batch_shapes(data: Data) -> dict[str, jax.ShapeDtypeStruct]:
    """The abstract global batch: int32 [B, L] each."""
    return {k: jax.ShapeDtypeStruct((data.batch_size, *s), np.int32) for k, s in row_shapes(data).items()}


class SyntheticSource:
    """Rows of random ids, each one example that fills the row."""

    def __init__(self, data: SyntheticTranslation, vocab: int):
        self.data, self.vocab = data, vocab
        self.fingerprint = f"synthetic-{data.seed}-{vocab}"

    def row(self, index: int) -> Row:
        rng = np.random.default_rng((self.data.seed, index))
        row: Row = {}
        for name, (length,) in row_shapes(self.data).items():
            if name.endswith("_segments"):
                row[name] = np.ones(length, np.int32)
            elif name.endswith("_positions"):
                row[name] = np.arange(length, dtype=np.int32)
            else:
                row[name] = rng.integers(3, self.vocab, length, dtype=np.int32)
        return row


class CacheSource:
    """Rows of a prepared cache, languages mixed in proportion to n^(1/T)."""

    def __init__(self, data: TranslationData, folder: Path):
        import grain

        self.data = data
        manifest = read_manifest(folder)
        for side in ("source", "target"):
            have, want = manifest[f"{side}_length"], getattr(data, f"{side}_length")
            if have != want:
                raise DataError(f"data.{side}_length={want}: cache {data.cache!r} was packed with {have}")
        self.languages = {name: info for name, info in manifest["languages"].items() if info["rows"]}
        self.fingerprint = f"{manifest['fingerprint']}-{data.seed}-{data.temperature:g}"
        rows: list[Any] = [
            grain.MapDataset.source(
                cast(Any, grain.sources.ArrayRecordDataSource(str(folder / "train" / f"{name}.array_record")))
            )
            .seed(_seed(data.seed, name))
            .shuffle()
            .repeat()
            for name in self.languages
        ]
        weights = np.array([info["pairs"] for info in self.languages.values()], np.float64) ** (1 / data.temperature)
        self._rows = grain.MapDataset.mix(rows, weights=list(weights / weights.sum()))
        self._ends = np.cumsum([shape[0] for shape in row_shapes(data).values()])

    def row(self, index: int) -> Row:
        record = np.frombuffer(cast(bytes, self._rows[index]), "<i4")
        return dict(zip(row_shapes(self.data), np.split(record, self._ends[:-1]), strict=True))


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little")


def read_manifest(folder: Path) -> dict:
    """A cache's manifest; raises DataError where there is none, saying how to make one."""
    path = folder / "manifest.json"
    if not path.exists():
        raise DataError(f"no prepared data at {folder}; run: python -m scripts.prepare_data {folder.name}")
    return json.loads(path.read_text())


def check_vocabulary(model, manifest: dict) -> None:
    """Refuses a model whose vocabularies are smaller than the cache's."""
    for side in ("source", "target"):
        have, want = getattr(model, f"{side}_vocab"), manifest[f"{side}_vocabulary"]
        if have < want:
            raise DataError(f"model.{side}_vocab={have} is too small for cache {manifest['cache']!r}: at least {want}")


def cache_folder(data: Data) -> Path:
    """Where the prepared cache of this data is, or will be; raises DataError for random data."""
    if isinstance(data, SyntheticTranslation):
        raise DataError("the experiment's data is random tokens: there is no prepared cache and nothing held out")
    return data_dir() / "caches" / data.cache


def open_source(data: Data, model) -> Source:
    """The rows of an experiment's data."""
    if isinstance(data, SyntheticTranslation):
        return SyntheticSource(data, min(model.source_vocab, model.target_vocab))
    folder = cache_folder(data)
    check_vocabulary(model, read_manifest(folder))
    return CacheSource(data, folder)


class Batches:
    """Global batches by step, placed on the mesh, the next one read while the current one is used.

    Every process reads only the rows that its devices hold.
    """

    def __init__(self, source: Source, data: Data, sharding: Any):
        self.source, self.data, self.sharding = source, data, sharding
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._next: tuple[int, Future] | None = None
        shape = (data.batch_size, data.target_length)
        self._mine = sorted(
            {
                i
                for index in sharding.addressable_devices_indices_map(shape).values()
                for i in _range(index[0], shape[0])
            }
        )

    def __call__(self, step: int) -> dict[str, jax.Array]:
        """The batch of this step: int32 arrays [B, L], cut over the mesh."""
        if self._next is None or self._next[0] != step:
            self._next = (step, self._reader.submit(self._read, step))
        rows = self._next[1].result()
        self._next = (step + 1, self._reader.submit(self._read, step + 1))

        def place(name: str, shape: tuple[int, ...]) -> jax.Array:
            def piece(index):
                return np.stack([rows[i][name] for i in _range(index[0], self.data.batch_size)])[:, index[1]]

            return jax.make_array_from_callback((self.data.batch_size, *shape), self.sharding, piece)

        return {name: place(name, shape) for name, shape in row_shapes(self.data).items()}

    def ids(self, step: int) -> tuple[int, int]:
        """First and last row index of a step's batch, to find it again."""
        return step * self.data.batch_size, (step + 1) * self.data.batch_size - 1

    def _read(self, step: int) -> dict[int, Row]:
        return {i: self.source.row(step * self.data.batch_size + i) for i in self._mine}

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)


def _range(index: slice, size: int) -> range:
    return range(*index.indices(size))
