"""Batches by index: a batch is a pure function of the data's fingerprint, a seed and the step, on any number of processes.

The step is the only iterator state. data/reading/examples.py reads the rows; nothing here imports TensorFlow.
"""

import bisect
import functools
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from data.config import DataConfig
from data.features import Example, Feature, joined
from data.reading.examples import Source

ENDLESS = 2**62
_LEAVE = functools.partial(os._exit, 1)
_SENT = 8  # rows that a worker sends together, at most


def batch_shapes(data: DataConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the abstract global batch: the features with rows in front."""
    return {k: jax.ShapeDtypeStruct((data.batch_size, *f.shape), f.dtype) for k, f in data.features().items()}


class Batches:
    """Global batches by step, placed on the mesh; the next one is read and placed while the current one is used.

    Every process reads only the rows that its devices hold, and what those are finished together with. Arrays of a row may be cut
    differently.

    Args:
      shardings: the sharding of each array, by name; None without a mesh.
      workers: processes that read and augment rows ahead of time, by Grain; 0 does it in a thread of this process.

    Attributes:
      waited: seconds spent waiting for batches so far.
    """

    def __init__(self, source: Source, data: DataConfig, shardings: Mapping[str, Sharding | None], workers: int = 0):
        self.source, self.data, self.workers = source, data, workers
        self.waited = 0.0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._next: tuple[int, Future] | None = None
        self._shapes = {name: (data.batch_size, *f.shape) for name, f in data.features().items()}
        alone = SingleDeviceSharding(jax.local_devices()[0])
        self._shardings = {name: shardings[name] or alone for name in self._shapes}
        self._local_rows = sorted({i for name in self._shapes for i in self._rows_of(name)})
        self._ahead: tuple[int, Iterator[Example]] | None = None  # from workers, and the step that they read next

    def __call__(self, step: int) -> dict[str, jax.Array]:
        """Returns the batch of this step: arrays with rows in front, cut over the mesh."""
        if self._next is None or self._next[0] != step:
            self._next = (step, self._reader.submit(self._batch, step))
        began = time.perf_counter()
        batch = self._next[1].result()
        self.waited += time.perf_counter() - began
        self._next = (step + 1, self._reader.submit(self._batch, step + 1))
        return batch

    def ids(self, step: int) -> tuple[int, int]:
        """Returns the first and the last row index of a step's batch."""
        return step * self.data.batch_size, (step + 1) * self.data.batch_size - 1

    def _rows_of(self, name: str) -> set[int]:
        """Returns the rows of an array, by their place in the batch, that devices of this process hold."""
        shape = self._shapes[name]
        indices = self._shardings[name].addressable_devices_indices_map(shape).values()
        return {i for index in indices if index is not None for i in _range(index[0], shape[0])}

    def _batch(self, step: int) -> dict[str, jax.Array]:
        rows = self._read(step)

        def place(name: str, shape: tuple[int, ...]) -> jax.Array:
            def shard(index):
                wanted = _range(index[0], shape[0])
                first = bisect.bisect_left(self._local_rows, wanted.start)
                return rows[name][first : first + len(wanted), *index[1:]]

            return jax.make_array_from_callback(shape, self._shardings[name], shard)

        return {name: place(name, shape) for name, shape in self._shapes.items()}

    def _read(self, step: int) -> Example:
        """Returns the rows of this process, in front of each array."""
        if not self.workers:
            first = _index(step, 0, self.data.batch_size)
            return self.source.rows([first + i for i in self._local_rows])
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = step, _read_ahead(self.source, self._local_rows, step, self.data.batch_size, self.workers)
        rows = next(self._ahead[1])
        self._ahead = step + 1, self._ahead[1]
        return rows

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._ahead = None


def _read_ahead(source: Source, local_rows: list[int], step: int, batch_size: int, workers: int) -> Iterator[Example]:
    """Yields this process's rows of each step from one on, read by Grain's worker processes."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # Grain's workers read absl's flags, which only an absl program has parsed
        flags.FLAGS.mark_as_parsed()
    # A worker reads and sends some rows at a time: every array that is sent has a cost of its own, and neighbours, which a
    # task may finish together, are then read by one worker. An even number keeps pairs.
    size = max(2, min(_SENT, len(local_rows) // workers) // 2 * 2)
    parts = [local_rows[start : start + size] for start in range(0, len(local_rows), size)]
    n = len(parts)

    def read(at: int) -> Example:
        end_with_parent()
        return source.rows([_index(at // n, place, batch_size) for place in parts[at % n]])

    stacks: Any = grain.MapDataset.range(step * n, ENDLESS).map(read)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=max(1, 2 * n // workers))
    stacks = iter(stacks.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)).mp_prefetch(options))
    while step_of := list(itertools.islice(stacks, n)):
        yield joined(step_of)


@functools.cache
def end_with_parent(end: Callable[[], object] = _LEAVE) -> None:
    """Has this worker end, if it is one, when the process that started it has: Grain's workers wait for a killed one for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        end()

    threading.Thread(target=wait, daemon=True, name="parent").start()


def held_out_batches(rows: Sequence[Example], features: Mapping[str, Feature], size: int) -> Iterator[Example]:
    """Yields held-out rows in batches of `size`, the last one padded with rows of each feature's `fill`."""
    for start in range(0, len(rows), size):
        chosen = [*rows[start : start + size]]
        chosen += [{k: np.full_like(chosen[0][k], f.fill) for k, f in features.items()}] * (size - len(chosen))
        yield {k: np.stack([row[k] for row in chosen]) for k in features}


def _index(step: int, place: int, batch_size: int) -> int:
    return step * batch_size + place


def _range(index: slice, size: int) -> range:
    return range(*index.indices(size))
