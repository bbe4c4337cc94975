"""Functions of a trained model, compiled once for each shape of batch: evaluators and commands run models through these."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from data import progress
from data.features import Example, Features
from data.reading.batches import held_out_batches
from models.protocol import Model
from models.sharding.params import Params, to_params, with_params
from trainers.plan import input_sharding
from trainers.runtime import xla_flags


def of_params(model: Model, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns a jitted function of (parameters, *arguments), from one of (model, *arguments).

    Args:
      model: with shapes for parameters, on its mesh.
      options: of jax.jit.
    """
    mesh = model.scope.mesh
    # Training steps are as fast on a CPU with these passes of LLVM as with all, and compile in two thirds of the time.
    passes = xla_flags.passes(2, mesh.devices.flat[0].platform if mesh else jax.default_backend())

    def run(params: Params, *args: Any) -> Any:
        return function(with_params(model, params), *args)

    return jax.jit(run, compiler_options=passes, **options)


class Runner:
    """A function of a model and a batch of rows, compiled for the model's mesh.

    Every process reads all outputs, so that scores are the same everywhere.

    Args:
      model: with shapes for parameters, on its mesh.
      features: the arrays of a row; a length that changes from batch to batch is -1.
      rows: the number of rows of a batch.
      function: takes the model with its parameters, a batch and further arguments; returns a pytree of arrays.

    Raises:
      LayoutError: the rows cannot be cut as the layout says.
    """

    def __init__(self, model: Model, features: Features, rows: int, function: Callable[..., Any]):
        self.model, self.features, self.rows, mesh = model, features, rows, model.scope.mesh
        self._shardings = {name: input_sharding(model, name, feature, rows) for name, feature in features.items()}
        self._run = of_params(model, function, out_shardings=mesh and NamedSharding(mesh, PartitionSpec()))

    def __call__(self, params: Params, batch: Example, *args: Any) -> Any:
        """Returns the function of one batch, as NumPy arrays."""
        placed = {name: jax.device_put(array, self._shardings[name]) for name, array in batch.items()}
        return jax.device_get(self._run(params, placed, *args))

    def batches(self, params: Params, examples: Sequence[Example]) -> Iterator[Any]:
        """Yields the function of one batch of examples after the other, the last filled up with rows of `Feature.fill`."""
        with progress.bar("computing", len(examples), "examples") as advance:
            for batch in held_out_batches(examples, self.features, self.rows):
                yield self(params, batch)
                advance(self.rows)

    def map(self, params: Params, examples: Sequence[Example]) -> Any:
        """Returns the function's arrays [N, ...] for N examples, in their order."""
        outputs = list(self.batches(params, examples))
        if not outputs:
            return jax.tree.map(lambda x: np.zeros((0, *x.shape[1:]), x.dtype), self.shapes())
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(examples)], *outputs)

    def shapes(self) -> Any:
        """Returns the shapes of the function's arrays for a batch."""
        batch = {name: jax.ShapeDtypeStruct((self.rows, *f.shape), f.dtype) for name, f in self.features.items()}
        return jax.eval_shape(self._run, to_params(self.model), batch)
