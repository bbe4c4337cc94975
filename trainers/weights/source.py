"""Weights to start from, in any form: a release, a run, a Hugging Face folder or a GGUF file.

Each is opened as `Weights`, which reads pieces of parameters by our names; `load` places them on a mesh, and neither a
device nor the host ever holds more than it needs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from configs.experiment import FRESH
from data import progress
from models.execution import Dtype
from models.families import ModelConfig, family_of
from models.interchange import Index, InterchangeError, Shape, tensors


class Weights(Protocol):
    """The parameters of a model in a file or in memory.

    Attributes:
      config: the model's configuration.
      shapes: the shape of each parameter that is there, by its dotted name; parameters of a head may be missing.
      vocabulary: a folder with its vocabulary, or with the names of its classes alone; None where there is neither.
      stored: the form of most of its numbers, "float32" or the name of a quantized one.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    @property
    def vocabulary(self) -> Path | None: ...

    @property
    def stored(self) -> str: ...

    def read(self, name: str, index: Index) -> np.ndarray:
        """Returns a piece of a parameter.

        Args:
          index: a slice for each dimension, from the first; those left out are whole.
        """
        ...


def precision(stored: str) -> Dtype:
    """Returns the precision in which weights that are stored so are computed, unless an experiment or the user says otherwise:
    their own. float32 holds the numbers of float16 and of quantized forms as they are."""
    return "bfloat16" if stored == "bfloat16" else "float32"


def most_stored(arrays: Iterable[tuple[str, Shape]]) -> str:
    """Returns the form in which most numbers of a file are stored, of the form and the shape of each array."""
    numbers: Counter[str] = Counter()
    for form, shape in arrays:
        numbers[form] += math.prod(shape)
    return numbers.most_common(1)[0][0] if numbers else "float32"


class Arrays:
    """Parameters in memory as Weights.

    Args:
      params: arrays by name.
    """

    def __init__(self, config: ModelConfig, params: dict[str, Any], vocabulary: Path | None = None):
        self.config, self.vocabulary = config, vocabulary
        self._params = params
        self.shapes = {name: tuple(x.shape) for name, x in self._params.items()}
        self.stored = most_stored((x.dtype.name, x.shape) for x in self._params.values())

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        return np.asarray(self._params[name][index])


class Component:
    """The weights of one component, from a larger model that has it or from a model that is the component itself.

    Args:
      path: the component's path in the model that starts from it.
    """

    def __init__(self, whole: Weights, path: str):
        self.whole, self.config, self.vocabulary, self.stored = whole, whole.config, whole.vocabulary, whole.stored
        inside = {name for name in whole.shapes if name.startswith(f"{path}.")}
        self._theirs = {name: name for name in inside} or {f"{path}.{name}": name for name in whole.shapes}
        self.shapes = {ours: whole.shapes[theirs] for ours, theirs in self._theirs.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        return self.whole.read(self._theirs[name], index)


class Resized:
    """Weights of a model that reads larger or smaller inputs, as those of this one (models.family.Family.resized).

    Args:
      config: of the model that starts from them.
    """

    def __init__(self, weights: Weights, config: ModelConfig):
        self.weights, self.config, self.vocabulary, self.stored = (weights, weights.config, weights.vocabulary, weights.stored)
        same = type(config) is type(weights.config)
        make = family_of(config).resized(config, weights.config) if same else {}
        self._made = {name: np.asarray(f(weights.read(name, ()))) for name, f in make.items() if name in weights.shapes}
        self.shapes = dict(weights.shapes) | {name: array.shape for name, array in self._made.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        return self._made[name][index] if name in self._made else self.weights.read(name, index)


def pieces(weights: Weights, name: str, most: int = 1 << 24) -> Iterator[np.ndarray]:
    """Yields the numbers of a parameter in order, at most so many at a time: all experts may not fit into memory."""
    shape = weights.shapes[name]

    def part(index: Index) -> Iterator[np.ndarray]:
        inner = shape[len(index) :]
        if math.prod(inner) <= most:
            yield weights.read(name, index)
            return
        rows = max(1, most // math.prod(inner[1:]))
        for start in range(0, inner[0], rows):
            yield from part((*index, slice(start, min(start + rows, inner[0]))))

    return part(())


def check(shapes: Mapping[str, Shape], weights: Weights, fresh: Sequence[str] = FRESH) -> None:
    """Raises InterchangeError for weights that lack a parameter, have one more, or one of another shape.

    Args:
      shapes: the shapes of the parameters that are needed, by name.
      fresh: components that may be missing, or left over in the weights.
    """
    wanted, stored = ({k: v for k, v in table.items() if not _within(k, fresh)} for table in (shapes, weights.shapes))
    if wrong := tensors.problems(wanted, stored):
        raise InterchangeError(f"the weights are not those of the model: {wrong}")


def fitting(config: ModelConfig, shapes: Mapping[str, Shape], weights: Weights, fresh: Sequence[str] = FRESH) -> list[str]:
    """Returns the names of a model's parameters that `weights`, once checked, have; others, of fresh components, are created.

    Parameters of a fresh component, a head, are taken from weights whose head has the same meaning and size.

    Args:
      config: the model's configuration.
      shapes: the shapes of the parameters that are needed, by name.

    Raises:
      InterchangeError: the weights are of a model that computes something else with the same shapes.
    """
    family, theirs = family_of(config), weights.config
    same_family = type(theirs) is type(config)
    for field in family.semantic_fields if same_family else ():
        stored, wanted = _setting(theirs, field), _setting(config, field)
        if stored != wanted:
            raise InterchangeError(
                f"the weights are of a model with {field}={stored!r}, this one has {wanted!r}; set "
                f"--model.{field.removesuffix('.class')} {stored}"
            )
    names = [name for name, shape in shapes.items() if weights.shapes.get(name) == shape]
    new = {name for name in shapes if _within(name, fresh)}
    same = new <= set(names) and (not same_family or family.same_outputs(config, theirs))
    return [name for name in names if same or name not in new or name in family.shared]


def _setting(config: Any, path: str) -> Any:
    """Returns a field by its dotted path, of which "class" is the class of a union; None where what it belongs to is left out."""
    for name in path.split("."):
        config = (config and type(config).__name__) if name == "class" else getattr(config, name, None)
    return config


def _within(name: str, components: Sequence[str]) -> bool:
    return any(name == component or name.startswith(f"{component}.") for component in components)


def load(weights: Weights, shardings: dict[str, Any], shapes: Mapping[str, Shape], dtype: Any) -> dict[str, Any]:
    """Returns parameters by name, placed: each device reads only its own piece.

    Args:
      shardings: shardings of at least these parameters, by name.
      shapes: the shapes of the parameters to load, by name.
    """

    def load_one(name: str) -> jax.Array:
        def piece(index: Index | None) -> np.ndarray:
            return np.asarray(weights.read(name, index or ()), dtype)

        return jax.make_array_from_callback(shapes[name], shardings[name], piece)

    return {name: load_one(name) for name in progress.track([*shapes], "reading weights", "tensors")}
