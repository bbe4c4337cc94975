"""Features: the named input arrays of a model, each with a shape, logical axes, a dtype and the component that reads it."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a command's --help must not wait for NumPy
    import numpy as np

Example = dict[str, "np.ndarray"]  # arrays by name; of packed data a row of several examples
DType = Literal["int32", "float32", "bfloat16", "uint8", "int16"]


@dataclasses.dataclass(frozen=True)
class Feature:
    """An array of an example, or of a packed row of examples.

    Attributes:
      shape: its shape without the batch axis; -1, of one feature of a stored row alone, is whatever the others leave of a record.
      axes: the logical name of each dimension; None is never cut.
      dtype: the type of its elements.
      fill: the value of every element in rows that pad the last batch.
      component: the component of the model that reads it, whose rules cut it; "" is the whole model.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    dtype: DType = "int32"
    fill: int = 0
    component: str = ""


Features = dict[str, Feature]


def stacked(rows: Sequence[Example]) -> Example:
    """Returns rows in front of each array."""
    import numpy as np

    if len(rows) == 1:
        return {name: np.asarray(array)[None] for name, array in rows[0].items()}  # no copy
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def joined(parts: Sequence[Example]) -> Example:
    """Returns the rows of several arrays, which are in front of each, behind one another."""
    import numpy as np

    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def lengths(features: Features) -> dict[str, int]:
    """Returns how many positions a row has of each feature along "length" alone, by name."""
    return {name: feature.shape[0] for name, feature in features.items() if feature.axes == ("length",)}


def positions(length: int, *names: str, fill: int = 0) -> Features:
    """Returns int32 features of this length along "length", one for each name."""
    return {name: Feature((length,), ("length",), fill=fill) for name in names}


def sides(**lengths: int) -> Features:
    """Returns the features of packed rows of several sides: ids, segments and positions of each, of its length."""
    parts = (positions(n, side, f"{side}_segments", f"{side}_positions") for side, n in lengths.items())
    return {name: feature for part in parts for name, feature in part.items()}


def slots(count: int, *dims: int, fill: int = 0) -> Feature:
    """Returns an int32 feature with `count` places in a row and further dimensions; none of them is cut."""
    return Feature((count, *dims), (None,) * (1 + len(dims)), fill=fill)
