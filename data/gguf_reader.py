"""GGUF files as the `gguf` library reads them, within what the file holds."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from data import untrusted
from models.errors import UserError


class Reader(gguf.GGUFReader):
    """The library's reader, within the file, and fast.

    The library counts on beyond the end of a file whose header names a long array, and makes two mapped arrays for each token
    of a vocabulary, which took 7 of the 17 CPU seconds of a first answer.
    """

    _items = _bytes = 0  # of all lists and texts so far

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        offset, count = int(offset), int(count)
        if offset < 0 or offset + count * kind.itemsize > self.data.nbytes:
            raise ValueError("its header names more than the file holds")
        return np.frombuffer(self.data, kind, count, offset)

    def _build_fields(self, offs: int, count: int) -> int:
        return super()._build_fields(offs, untrusted.bounded(int(count), untrusted.FIELDS, "settings", ValueError, "it"))

    def _build_tensor_info(self, offs: int, count: int) -> tuple[int, list[gguf.ReaderField]]:
        count = untrusted.bounded(int(count), untrusted.FIELDS, "tensors", ValueError, "it")
        return super()._build_tensor_info(offs, count)

    def _get_str(self, offset: int) -> Any:
        length, text = super()._get_str(offset)
        self._count_bytes(len(text))
        return length, text

    def _count_bytes(self, number: int) -> None:
        self._bytes = untrusted.bounded(self._bytes + number, untrusted.TEXT, "bytes of texts", ValueError, "it")

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        """Returns (bytes, parts, which of them are the value, types) of a value; an array's numbers are one part."""
        kind = gguf.GGUFValueType(raw_type)
        if kind != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        raw_item, raw_count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        item, count, begin = gguf.GGUFValueType(raw_item[0]), int(raw_count[0]), int(orig_offs) + 12
        self._items = untrusted.bounded(self._items + count, untrusted.ITEMS, "items in lists", ValueError, "it")
        if item == gguf.GGUFValueType.STRING:
            items, end = self._strings(begin, count)
        elif (numbers := self.gguf_scalar_to_np.get(item)) is not None:
            items = [self._get(begin, numbers, count)] if count else []
            end = begin + sum(part.nbytes for part in items)
        else:
            raise ValueError("its header has an array of arrays")
        places = list(range(2, 2 + len(items)))
        return end - int(orig_offs), [raw_item, raw_count, *items], places, [kind, item] if items else [kind]

    def _strings(self, begin: int, count: int) -> tuple[list[memoryview], int]:
        """Returns the texts of an array, each of which stands behind its length in 64 bits, and where they end."""
        whole, order = self.data.data, "big" if self.endianess == gguf.GGUFEndian.BIG else "little"
        texts, end, most = [], begin, len(whole)
        for _ in range(count):
            start = end + 8
            end = start + int.from_bytes(whole[end:start], order)
            if end > most:
                raise ValueError("its header names more than the file holds")
            texts.append(whole[start:end])
        self._count_bytes(end - begin)
        return texts, end


def opened(path: Path, error: type[UserError]) -> Reader:
    """Returns a file's reader; raises an error of this class where it is damaged or no regular file."""
    untrusted.regular(path, error)
    with untrusted.damage(path, error):
        return Reader(path)


def value(reader: Reader, key: str, error: type[UserError]) -> Any:
    """Returns a value of the file's description; None where it has none."""
    if (field := reader.get_field(key)) is None:
        return None
    with untrusted.damage(key, error):
        return field.contents()
