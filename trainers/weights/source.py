"""Weights to start from, whatever they lie in: a release, a run, a Hugging Face folder, a GGUF file.

Each is opened as `Weights`, which reads pieces of parameters by our names; `load` puts them onto a mesh without any device,
or the host, ever holding more than it needs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from models import interchange
from models.interchange import Index, InterchangeError, Shape
from models.sharding.params import HEAD, flatten, nest

_POOLER = ("head.pooler", "head.pooler_bias")  # means the same in every head that has it
# Settings that change what a model computes, but none of its shapes.
_MEANING = (
    "order", "norm", "norm_eps", "activation", "positions", "rotary_base", "max_distance", "logit_cap", "softmax_cap",
)  # fmt: skip


class Weights(Protocol):
    """The parameters of a model in a file or in memory.

    Attributes:
      config: the model that they are of.
      shapes: of each parameter, by its dotted name; of a head, only what is there.
      vocabulary: a folder with its vocabulary, None where there is none.
    """

    @property
    def config(self) -> Any: ...

    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    @property
    def vocabulary(self) -> Path | None: ...

    def read(self, name: str, index: Index) -> np.ndarray:
        """A piece of a parameter.

        Args:
          index: a slice for each dimension, from the first; those left out are whole.
        """
        ...


class Arrays:
    """Parameters in memory as Weights.

    Args:
      params: nested dictionaries of arrays.
    """

    def __init__(self, config: Any, params: dict[str, Any], vocabulary: Path | None = None):
        self.config, self.vocabulary = config, vocabulary
        self._params = flatten(params)
        self.shapes = {name: tuple(x.shape) for name, x in self._params.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        return np.asarray(self._params[name][index])


def check(shapes: Mapping[str, Shape], weights: Weights) -> None:
    """Refuses weights that lack a parameter of a model outside its head, have one more, or one of another shape.

    Args:
      shapes: of the model's parameters by name.

    Raises:
      InterchangeError: names them, with the shapes expected and found: eight, and how many more.
    """
    want, found = ({k: v for k, v in of.items() if not k.startswith(HEAD)} for of in (shapes, weights.shapes))
    if wrong := interchange.problems(want, found):
        raise InterchangeError(f"the weights are not those of the model: {wrong}")


def fitting(config: Any, shapes: Mapping[str, Shape], weights: Weights) -> list[str]:
    """Which parameters of a model `weights`, once checked, give; the others, of its head, have to be made.

    Those of a head are taken from weights whose head is of the same kind and size; the pooler from any.

    Args:
      config: the model's.
      shapes: of the model's parameters by name.

    Raises:
      InterchangeError: the weights are of a model that computes something else with the same shapes.
    """
    theirs = weights.config
    for field in _MEANING:
        ours, found = getattr(config, field, None), getattr(theirs, field, None)
        if ours != found:
            raise InterchangeError(
                f"the weights are of a model with {field}={found!r}, this one has {ours!r}; set --model.{field} {found}"
            )
    names = [name for name, shape in shapes.items() if weights.shapes.get(name) == shape]
    head = {name for name in shapes if name.startswith(HEAD)}
    same = type(getattr(config, "head", None)) is type(getattr(theirs, "head", None)) and head <= set(names)
    return [name for name in names if same or name not in head or name in _POOLER]


def load(weights: Weights, shardings: dict[str, Any], shapes: Mapping[str, Shape], dtype: Any) -> dict[str, Any]:
    """Parameters, nested and in place: each device reads its own piece, and only that.

    Args:
      shardings: at least of these parameters, nested or by name.
      shapes: of the parameters to load, by name.
    """
    flat = flatten(shardings)

    def one(name: str) -> jax.Array:
        def piece(index: Index | None) -> np.ndarray:
            return np.asarray(weights.read(name, index or ()), dtype)

        return jax.make_array_from_callback(shapes[name], flat[name], piece)

    return nest({name: one(name) for name in shapes})
