"""Safetensors files a piece at a time: they are memory-mapped for reading and streamed for writing.

A file is the length of its header (8 bytes), the header (JSON: name -> dtype, shape, place) and the tensors' bytes. The
library of that name only checks headers here. It reads copies of whole tensors, or of slices along a tensor's own dimensions,
but pieces of our parameters are slices of transposed, regrouped and split tensors, which need a view of a mapped tensor. It
writes a file only if all its tensors are in memory.
"""

import abc
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from data import progress, untrusted
from models.errors import shortened
from models.interchange import InterchangeError, Shape

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
_OTHERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}  # buffers beside the weights
DTYPES = {name: np.dtype(dtype) for name, dtype in (_FLOATS | _OTHERS).items()}


class NamedArrays(abc.ABC):
    """An open file: `file(name)` is an array, memory-mapped if possible.

    Attributes:
      path: the file.
      shapes: the shape of each array, by name.
      dtypes: the dtype of each, one of DTYPES.
    """

    path: Path
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, np.dtype]

    @property
    def floats(self) -> dict[str, np.dtype]:
        """The dtypes of the arrays that are no integers: not packed, and no buffers."""
        return {name: dtype for name, dtype in self.dtypes.items() if _letters(dtype) in _FLOATS}

    def require_floats(self, names: Iterable[str]) -> None:
        """Raises InterchangeError if an array holds integers or booleans, as buffers and quantized weights do."""
        for name in names:
            if (dtype := _letters(self.dtypes[name])) not in _FLOATS:
                raise InterchangeError(
                    f"{self.path}: {shortened(name)} holds {dtype}, weights are {', '.join(_FLOATS)}; quantized ones are "
                    "not supported"
                )

    @abc.abstractmethod
    def __call__(self, name: str) -> np.ndarray: ...


def _letters(dtype: np.dtype) -> str:
    """Returns the name of a dtype in safetensors files."""
    return {known: name for name, known in DTYPES.items()}[dtype]


class TensorFile(NamedArrays):
    """The tensors of a safetensors file: `file(name)` is a memory-mapped array.

    Raises:
      InterchangeError: the file is cut short, damaged, or holds numbers of an unknown dtype.
    """

    def __init__(self, path: Path):
        self.path = path
        with untrusted.opened(path, InterchangeError) as file:
            length = int.from_bytes(file.read(8), "little")
            untrusted.bounded(length, untrusted.TEXT, "bytes of header", InterchangeError, path)
            text = file.read(length)
        try:
            with safe_open(path, framework="numpy"):  # sizes fit shapes; no hole, no overlap, nothing behind the last
                pass
        except SafetensorError as error:
            raise InterchangeError(f"{path}: damaged or cut short: {shortened(str(error), 200)}") from None
        header: dict[str, Any] = json.loads(text, object_pairs_hook=self._unique)
        header.pop("__metadata__", None)
        for name, at in header.items():
            if at["dtype"] not in DTYPES:
                raise InterchangeError(f"{path}: {shortened(name)} holds {at['dtype']}; known are {', '.join(DTYPES)}")
        self._header = header
        self._begin = 8 + length
        self.shapes = {name: tuple(at["shape"]) for name, at in header.items()}
        self.dtypes = {name: DTYPES[at["dtype"]] for name, at in header.items()}

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):
            raise InterchangeError(f"{self.path}: damaged, its header names a tensor twice")
        return names

    def __call__(self, name: str) -> np.ndarray:
        at, dtype = self._header[name], self.dtypes[name]
        begin, end = at["data_offsets"]
        with untrusted.damage(self.path, InterchangeError):  # more dimensions than an array can have
            if begin == end:
                return np.empty(at["shape"], dtype)
            # A map for each tensor, not one for the file: its pages are given back with the tensor.
            return np.memmap(self.path, np.uint8, "r", self._begin + begin, end - begin).view(dtype).reshape(at["shape"])


def write(
    path: Path, shapes: Mapping[str, Shape], tensors: Iterable[tuple[str, Iterable[np.ndarray]]], metadata: Mapping[str, str]
) -> None:
    """Writes tensors as float32, a piece at a time, so that only one piece is in memory.

    Args:
      shapes: the shapes of all tensors, in their order.
      tensors: the name of each, and its numbers in order, in pieces of any shape.
    """
    ends = np.cumsum([0, *(4 * math.prod(shape) for shape in shapes.values())]).tolist()
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for (name, shape), begin, end in zip(shapes.items(), ends[:-1], ends[1:], strict=True):
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8, as the format requires
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        with progress.bar(f"writing {path.name}", ends[-1], "B") as advance:
            for (name, pieces), expected, end in zip(tensors, shapes, ends[1:], strict=True):
                assert name == expected
                for piece in pieces:
                    np.ascontiguousarray(piece, "<f4").tofile(file)
                    advance(4 * piece.size)
                assert file.tell() == 8 + len(text) + end
