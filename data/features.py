"""What a batch is made of: named arrays, each with a shape, logical axes, a dtype and the component that reads it."""

import dataclasses
from typing import Literal

import numpy as np

Example = dict[str, np.ndarray]  # arrays by name; of packed data a row of several examples
DType = Literal["int32", "float32", "bfloat16", "uint8"]


@dataclasses.dataclass(frozen=True)
class Feature:
    """An array of an example, or of a packed row of examples.

    Attributes:
      shape: without the batch.
      axes: the logical name of each dimension; None is never cut.
      dtype: of the elements.
      fill: the element of examples that only fill a batch up.
      component: the component of the model that reads it, whose rules cut it; "" is the whole model.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    dtype: DType = "int32"
    fill: int = 0
    component: str = ""


Features = dict[str, Feature]


def positions(length: int, *names: str, fill: int = 0) -> Features:
    """Returns int32 features of this length along "length", one for each name."""
    return {name: Feature((length,), ("length",), fill=fill) for name in names}


def slots(count: int, *more: int, fill: int = 0) -> Feature:
    """Returns an int32 feature of so many places in a row, with further dimensions, none of which is cut."""
    return Feature((count, *more), (None,) * (1 + len(more)), fill=fill)
