"""Safetensors files a piece at a time: mapped into memory to be read, streamed to be written.

A file is the length of its header (8 bytes), the header (JSON: name -> dtype, shape, place) and the tensors' bytes. The
library of that name reads and writes the same files, but copies whole tensors in and wants a whole file's in memory at once.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from models.interchange import InterchangeError, Shape

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
_OTHERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}  # buffers beside the weights
_DTYPES = {name: np.dtype(dtype) for name, dtype in (_FLOATS | _OTHERS).items()}
_LONGEST_HEADER = 100_000_000  # the format's own limit


class TensorFile:
    """The tensors of a safetensors file: `file(name)` is an array that reads what is touched of it.

    Attributes:
      shapes: of each tensor, by name.

    Raises:
      InterchangeError: the file is cut short, damaged, or holds numbers of a kind that isn't known here.
    """

    def __init__(self, path: Path):
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
                raise InterchangeError(f"{path}: damaged or cut short, its header does not fit into {size:,} bytes")
            try:
                header: dict[str, Any] = json.loads(file.read(length))
                header.pop("__metadata__", None)
                self._places = {name: self._place(name, at, size - 8 - length) for name, at in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if isinstance(error, InterchangeError):
                    raise
                raise InterchangeError(f"{path}: damaged, its header cannot be read") from None
        self._data = np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.empty(0, np.uint8)
        self.shapes = {name: shape for name, (_, shape, _) in self._places.items()}

    def _place(self, name: str, at: dict[str, Any], size: int) -> tuple[np.dtype, Shape, slice]:
        if at["dtype"] not in _DTYPES:
            raise InterchangeError(f"{self.path}: {name} holds {at['dtype']}; known are {', '.join(_DTYPES)}")
        dtype, shape, (begin, end) = _DTYPES[at["dtype"]], tuple(map(int, at["shape"])), at["data_offsets"]
        if end > size:
            raise InterchangeError(f"{self.path}: cut short, {name} ends {end - size:,} bytes behind the file's end")
        if begin < 0 or end - begin != math.prod(shape) * dtype.itemsize:
            raise InterchangeError(f"{self.path}: damaged, {name} {list(shape)} has {end - begin:,} bytes")
        return dtype, shape, slice(begin, end)

    def __call__(self, name: str) -> np.ndarray:
        dtype, shape, place = self._places[name]
        return self._data[place].view(dtype).reshape(shape)


def write(
    path: Path, shapes: Mapping[str, Shape], tensors: Iterable[tuple[str, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Writes tensors as float32, each as it comes: one is in memory at a time.

    Args:
      shapes: of all tensors, in the order in which they come.
    """
    ends = np.cumsum([0, *(4 * math.prod(shape) for shape in shapes.values())]).tolist()
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for (name, shape), begin, end in zip(shapes.items(), ends[:-1], ends[1:], strict=True):
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8, as the format wants it
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, array), (expected, shape) in zip(tensors, shapes.items(), strict=True):
            assert (name, array.shape) == (expected, shape)
            np.ascontiguousarray(array, "<f4").tofile(file)
