"""CTranslate2's model.bin: variables by name, memory-mapped.

A file is a version, the name of a specification and its revision; the number of variables, each with name, dimensions, type,
bytes and data; and aliases of variables. Numbers are little-endian; a name is its length, 16 bits, and a string that ends in 0.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data import untrusted
from models.errors import shortened
from models.interchange import InterchangeError, Shape

_TYPES = {0: np.dtype("<f4"), 1: np.dtype("i1"), 2: np.dtype("<i2"), 3: np.dtype("<i4"), 4: np.dtype("<f2")}
_VERSION = 6


class CTranslate2File:
    """The variables of a file: `file(name)` is a memory-mapped array.

    Attributes:
      shapes: the shape of each matrix, vector or table of floats, by name; settings, which are integers, are left out.
      dtypes: the dtype of each.
      specification: the kind of model.

    Raises:
      InterchangeError: the file is cut short, damaged, of another version, or its weights are quantized.
    """

    settings: Mapping[str, Any] = {}  # those that it has are told by shapes too

    def __init__(self, path: Path):
        self.path = path
        self._places: dict[str, tuple[np.dtype, Shape, int]] = {}
        try:
            with untrusted.opened(path, InterchangeError) as file:
                self._read_header(file)
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise InterchangeError(f"{path}: damaged or cut short: {shortened(str(error), 200)}") from None
        self.shapes = {name: shape for name, (dtype, shape, _) in self._places.items() if shape and dtype.kind == "f"}
        self.dtypes = {name: self._places[name][0] for name in self.shapes}

    def _read_header(self, file: BinaryIO) -> None:
        if (version := _number(file, "I")) != _VERSION:
            raise InterchangeError(f"{self.path}: no CTranslate2 file of version {_VERSION}: it begins with {version}")
        self.specification = _string(file)
        _number(file, "I")
        size = self.path.stat().st_size
        for _ in range(untrusted.bounded(_number(file, "I"), untrusted.FIELDS, "variables", InterchangeError, self.path)):
            name = _string(file)
            shape = tuple(_number(file, "I") for _ in range(_number(file, "B")))
            kind, length = _number(file, "B"), _number(file, "I")
            if kind not in _TYPES:
                raise InterchangeError(f"{self.path}: {shortened(name)} is of unknown type {kind}")
            if kind == 1 and len(shape) > 1:
                raise InterchangeError(f"{self.path}: {shortened(name)} is quantized: take a float16 or float32 file")
            start = file.tell()
            if start + length > size:
                raise ValueError(f"{name} ends at byte {start + length:,} of {size:,}")
            if math.prod(shape) * _TYPES[kind].itemsize != length:
                raise ValueError(f"{name} has {length:,} bytes, and not those of {list(shape)}")
            self._places[name] = _TYPES[kind], shape, start
            file.seek(length, 1)

    def __call__(self, name: str) -> np.ndarray:
        dtype, shape, start = self._places[name]
        with untrusted.damage(self.path, InterchangeError):  # more dimensions than an array can have
            return np.memmap(self.path, dtype, "r", start, shape) if math.prod(shape) else np.empty(shape, dtype)


def _number(file: BinaryIO, form: str) -> int:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> str:
    return file.read(_number(file, "H")).rstrip(b"\0").decode()
