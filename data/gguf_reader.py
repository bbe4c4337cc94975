"""GGUF files as the `gguf` library reads them, within what the file holds."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from data import untrusted
from models.errors import UserError


class Reader(gguf.GGUFReader):
    """The library's reader, which alone would count on beyond the end of a file whose header names a long array."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if offset < 0 or int(offset) + int(count) * np.dtype(dtype).itemsize > self.data.nbytes:
            raise ValueError("its header names more than the file holds")
        return super()._get(offset, dtype, count, override_order)


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
