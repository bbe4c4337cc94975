"""Modules of a user's own files, which a process forgets again."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from configs import registry
from data.kinds import KINDS
from models.families import FAMILIES

_TABLES = (FAMILIES, KINDS, registry.MODULES)


def forget(folder: Path) -> None:
    """Forgets the modules below a folder and what they have registered, as if the process had not imported them."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
            for table in _TABLES:
                for key in [key for key, package in table.items() if package.partition(".")[0] == name]:
                    del table[key]


@contextlib.contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """Forgets at the end what the block imports from below a folder."""
    path = [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = path
        forget(folder)
