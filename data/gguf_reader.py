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
    of a vocabulary, which took 5 of the 17 CPU seconds of a first answer.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        offset, count = int(offset), int(count)
        if offset < 0 or offset + count * kind.itemsize > self.data.nbytes:
            raise ValueError("its header names more than the file holds")
        return np.frombuffer(self.data, kind, count, offset)


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
