"""Flax's msgpack files: arrays by name, memory-mapped. A file is walked once for names and places, and no array is read then.

A file is one map of names to maps and values, as flax.serialization writes it. An array is an extension of type 1, which holds a
list: its shape, the name of its dtype, its bytes; a scalar is one of type 3. An array of more than 2^30 bytes is a map of its
shape and of pieces of one dimension. Numbers of msgpack are big-endian, those of arrays little-endian.
"""

import dataclasses
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data import untrusted
from models.errors import shortened
from models.interchange import InterchangeError, Shape
from trainers.weights.tensor_files import DTYPES, NamedArrays

_ARRAYS = (1, 3)  # types of extensions
_PIECES = "__msgpack_chunked_array__"
_DTYPES = {dtype.name: dtype for dtype in DTYPES.values()}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(zip((0xCA, 0xCB, *range(0xCC, 0xD4)), "fdBHIQbhiq", strict=True))
_SIZED = {
    code: (kind, form)
    for kind, codes, forms in (
        ("bytes", range(0xC4, 0xC7), "BHI"),
        ("extension", range(0xC7, 0xCA), "BHI"),
        ("text", range(0xD9, 0xDC), "BHI"),
        ("list", range(0xDC, 0xDE), "HI"),
        ("map", range(0xDE, 0xE0), "HI"),
    )
    for code, form in zip(codes, forms, strict=True)
}


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file.

    Attributes:
      shape, dtype: its own.
      places: the first byte and the number of bytes of each of its pieces, one behind the other.
    """

    shape: Shape
    dtype: np.dtype
    places: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class _Bytes:
    start: int
    length: int


class _Walk:
    """Reads the structure of a file, from its first byte to its last."""

    def __init__(self, path: Path, file: BinaryIO):
        self._path, self._file, self._size = path, file, path.stat().st_size
        self._values = 0

    def whole(self) -> dict[str, Any]:
        """Returns the file's map: of maps, of arrays as `Stored`, and of other values."""
        value = self._value(0)
        if not isinstance(value, dict) or self._file.tell() != self._size:
            raise self._damaged(f"expected one map, which ends at byte {self._size:,}")
        return value

    def _value(self, level: int) -> Any:
        self._values += 1
        untrusted.bounded(self._values, untrusted.ITEMS, "values", InterchangeError, self._path)
        untrusted.bounded(level, untrusted.NESTING, "levels of maps", InterchangeError, self._path)
        kind, size = self._head()
        match kind:
            case "value":
                return size
            case "text":
                return self._taken(
                    untrusted.bounded(size, untrusted.PIECE, "bytes in a name", InterchangeError, self._path)
                ).decode()
            case "bytes":
                start = self._file.tell()
                self._pass(size)
                return _Bytes(start, size)
            case "list":
                return [self._value(level + 1) for _ in range(size)]
            case "map":
                return self._map(size, level)
            case _:
                return self._extension(size, level)

    def _head(self) -> tuple[str, Any]:
        """Returns the kind of the next value, and how long it is, or the value itself."""
        (code,) = self._taken(1)
        if code in _SIZED:
            kind, form = _SIZED[code]
            return kind, self._number(form)
        if code in _NUMBERS:
            return "value", self._number(_NUMBERS[code])
        if code in _CONSTANTS:
            return "value", _CONSTANTS[code]
        if 0xD4 <= code <= 0xD8:
            return "extension", 1 << code - 0xD4
        if code == 0xC1:
            raise self._damaged(f"byte {self._file.tell() - 1:,} begins no value")
        for start, kind, bits in ((0xE0, "value", -32), (0xA0, "text", 31), (0x90, "list", 15), (0x80, "map", 15)):
            if code >= start:
                return kind, code - 256 if bits < 0 else code & bits
        return "value", code

    def _map(self, size: int, level: int) -> Any:
        pairs: dict[str, Any] = {}
        for _ in range(size):
            name = self._value(level + 1)
            if not isinstance(name, str) or name in pairs:
                raise self._damaged(
                    f"a map has the name {shortened(repr(name))} " + ("twice" if isinstance(name, str) else "in it")
                )
            pairs[name] = self._value(level + 1)
        return self._joined(pairs) if _PIECES in pairs else pairs

    def _extension(self, size: int, level: int) -> Stored:
        (code,) = self._taken(1)
        end = self._file.tell() + size
        if code not in _ARRAYS:
            raise self._damaged(f"an extension of type {code} is no array of floats or integers")
        match self._value(level + 1):
            case [list(shape), str(name), _Bytes(start, length)] if self._file.tell() == end:
                return self._checked(Stored(tuple(shape), self._dtype(name), ((start, length),)))
        raise self._damaged(f"the array that ends at byte {end:,} is not of the form [shape, dtype, bytes]")

    def _joined(self, pairs: dict[str, Any]) -> Stored:
        shape, pieces = pairs.get("shape"), pairs.get("chunks")
        if not isinstance(shape, dict) or not isinstance(pieces, dict):
            raise self._damaged("an array in pieces lacks its shape or its pieces")
        parts = [pieces.get(str(i)) for i in range(len(pieces))]
        sizes = tuple(shape.get(str(i), -1) for i in range(len(shape)))
        arrays = [part for part in parts if isinstance(part, Stored)]
        dtypes = {part.dtype for part in arrays}
        if len(arrays) < len(parts) or len(dtypes) != 1:
            raise self._damaged("an array in pieces has no dtype, several, or a piece that is no array")
        return self._checked(Stored(sizes, dtypes.pop(), tuple(part.places[0] for part in arrays)))

    def _checked(self, stored: Stored) -> Stored:
        """Returns the array; raises an error unless it has the bytes of its shape."""
        sizes = all(type(size) is int and size >= 0 for size in stored.shape)
        length = sum(length for _, length in stored.places)
        if not sizes or math.prod(stored.shape) * stored.dtype.itemsize != length:
            raise self._damaged(f"{length:,} bytes are not those of {stored.dtype} {shortened(str(list(stored.shape)))}")
        return stored

    def _dtype(self, name: str) -> np.dtype:
        if name not in _DTYPES:
            raise self._damaged(f"an array is of {shortened(repr(name))}; known are {', '.join(_DTYPES)}")
        return _DTYPES[name]

    def _number(self, form: str) -> Any:
        form = f">{form}"
        return struct.unpack(form, self._taken(struct.calcsize(form)))[0]

    def _taken(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise self._damaged("it is cut short")
        return content

    def _pass(self, size: int) -> None:
        if self._file.tell() + size > self._size:
            raise self._damaged("it is cut short")
        self._file.seek(size, 1)

    def _damaged(self, why: str) -> InterchangeError:
        return InterchangeError(f"{self._path} is damaged: {why}")


def structure(path: Path) -> dict[str, Any]:
    """Returns what a file holds: maps by name, arrays as `Stored`, other values as they are.

    Raises:
      InterchangeError: the file is cut short or damaged, or has more values than a model's.
    """
    with untrusted.opened(path, InterchangeError) as file, untrusted.damage(path, InterchangeError):
        return _Walk(path, file).whole()


def flattened(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values that are no maps, each with its names joined by dots."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def mapped(path: Path, stored: Stored) -> np.ndarray:
    """Returns an array of a file, memory-mapped unless it is in several pieces."""
    with untrusted.damage(path, InterchangeError):  # more dimensions than an array can have
        pieces = [np.memmap(path, np.uint8, "r", start, length) for start, length in stored.places if length]
        if not pieces:
            return np.empty(stored.shape, stored.dtype)
        flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return flat.view(stored.dtype).reshape(stored.shape)


# The last names of Flax's parameters, and what PyTorch calls them.
_PYTORCH = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def pytorch_name(flax: str) -> str:
    """Returns PyTorch's name of a parameter that Flax's classes of `transformers` call so, with dots or slashes between."""
    *modules, last = flax.replace("/", ".").split(".")
    return ".".join([*modules, _PYTORCH.get(last, last)])


class FlaxFile(NamedArrays):
    """The arrays of a flax_model.msgpack under PyTorch's names and in its layout: `file(name)` is a memory-mapped array.

    Flax's classes of `transformers` 4 name modules as PyTorch's do. A kernel is [*window, in, out], and [out, in, *window] there.
    """

    def __init__(self, path: Path):
        self.path, self._stored = path, dict[str, tuple[Stored, tuple[int, ...]]]()
        for flax, stored in flattened(structure(path)):
            name = pytorch_name(flax)
            if not isinstance(stored, Stored):
                raise InterchangeError(f"{path} is damaged: {shortened(flax)} is no array")
            if name in self._stored:
                raise InterchangeError(f"{path}: {shortened(name)} is there twice")
            n = len(stored.shape)
            turned = flax.endswith(".kernel") and n > 1
            self._stored[name] = stored, (n - 1, n - 2, *range(n - 2)) if turned else tuple(range(n))
        self.shapes = {name: tuple(stored.shape[i] for i in order) for name, (stored, order) in self._stored.items()}
        self.dtypes = {name: stored.dtype for name, (stored, _) in self._stored.items()}

    def __call__(self, name: str) -> np.ndarray:
        stored, order = self._stored[name]
        return mapped(self.path, stored).transpose(order)
