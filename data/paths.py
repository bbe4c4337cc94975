"""Where data lives, and how a file gets there: complete, or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def data_dir() -> Path:
    """The folder of everything fetched or prepared: $SHARDZOO_DATA, or .data/ in the checkout."""
    return Path(os.environ.get("SHARDZOO_DATA") or ROOT / ".data").expanduser()


@contextlib.contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A temporary folder on the same file system as `beside`, so that a rename out of it is atomic."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{beside.name}.", dir=beside.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` (in place of an older one) when the block ends without error."""
    with scratch(path) as folder:
        new, old = folder / "new", folder / "old"
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 of a JSON-able value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
