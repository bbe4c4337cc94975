"""Batches by index: a batch is a pure function of the data's fingerprint, a seed and the step, on any number of processes.

There is no iterator state but the step. Where rows come from is data/reading/examples.py; nothing here imports TensorFlow.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from configs.experiment import Data
from data.reading.examples import Row, Source


def batch_shapes(data: Data) -> dict[str, jax.ShapeDtypeStruct]:
    """The abstract global batch: int32 arrays with rows in front."""
    return {k: jax.ShapeDtypeStruct((data.batch_size, *a.shape), np.int32) for k, a in data.arrays().items()}


class Batches:
    """Global batches by step, placed on the mesh; the next one is read and placed while the current one is used.

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
            self._next = (step, self._reader.submit(self._batch, step))
        batch = self._next[1].result()
        self._next = (step + 1, self._reader.submit(self._batch, step + 1))
        return batch

    def ids(self, step: int) -> tuple[int, int]:
        """First and last row index of a step's batch, to find it again."""
        return step * self.data.batch_size, (step + 1) * self.data.batch_size - 1

    def _batch(self, step: int) -> dict[str, jax.Array]:
        rows = self._read(step)

        def place(name: str, shape: tuple[int, ...]) -> jax.Array:
            def piece(index):
                return np.stack([rows[i][name] for i in _range(index[0], shape[0])])[:, *index[1:]]

            return jax.make_array_from_callback(shape, self.shardings[name], piece)

        return {name: place(name, shape) for name, shape in self._shapes.items()}

    def _read(self, step: int) -> dict[int, Row]:
        return {i: self.source.row(step * self.data.batch_size + i) for i in self._mine}

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)


def _range(index: slice, size: int) -> range:
    return range(*index.indices(size))
