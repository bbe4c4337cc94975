"""The data folder, and writes into it that are complete or have no effect."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from models.errors import UserError

ROOT = Path(__file__).resolve().parent.parent

_UNFINISHED = ".unfinished"  # ends the names of temporary folders, which no user's folder should have


def data_dir() -> Path:
    """Returns the folder of all fetched and prepared data: $SHARDZOO_DATA, or .data/ in the checkout."""
    return Path(os.environ.get("SHARDZOO_DATA") or ROOT / ".data").expanduser()


def environment(name: str) -> Path:
    """Returns the environment that `make` sets up for others' programs beside the one that runs: .venv-parity beside .venv."""
    return Path(f"{sys.prefix}-{name}")


def is_address(text: str) -> bool:
    """Returns whether a text is an address, as s3://BUCKET/FOLDER, which would be a strange path: a folder "s3:" and so on."""
    return re.match(r"[A-Za-z][\w+.-]+:/", text) is not None


@contextlib.contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Yields a temporary folder on the same file system as `beside`, so that a rename out of it is atomic.

    What killed processes have left for the same `beside` is removed first. The owner of such a folder holds a lock on it, which
    the kernel lets go however the process ends.
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    # Inside a temporary folder nobody else looks for what is left, and its own lock would be waited for without an end.
    is_own = beside.parent.name.endswith(_UNFINISHED)
    with contextlib.ExitStack() as closing:
        # Without this lock another process might take a folder for left before it is locked.
        with contextlib.nullcontext() if is_own else _held(beside.parent, wait=True):
            _remove_left(beside)
            folder = Path(tempfile.mkdtemp(prefix=f".{beside.name}.", suffix=_UNFINISHED, dir=beside.parent))
            closing.enter_context(_held(folder))
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def _held(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Locks a folder; yields whether it is locked: not where another process holds it, or a file system has no such locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        held = True
    except OSError:
        held = False
    try:
        yield held
    finally:
        os.close(descriptor)


def _remove_left(beside: Path) -> None:
    """Removes temporary folders of `beside` that no living process holds, and puts back what one had taken away."""
    name = re.compile(rf"\.{re.escape(beside.name)}\.\w{{8}}{re.escape(_UNFINISHED)}")
    for left in [entry for entry in beside.parent.iterdir() if name.fullmatch(entry.name) and not entry.is_symlink()]:
        with contextlib.suppress(OSError), _held(left) as dead:
            if dead and (left / "old").exists() and not beside.exists():  # killed between the renames of `new_folder`
                (left / "old").rename(beside)
            if dead:
                shutil.rmtree(left)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `path` (and replaces an older one) when the block ends without error.

    Raises:
      LinkError: `path` is a link.
    """
    refuse_link(path)
    with scratch(path) as folder:
        new, old = folder / "new", folder / "old"
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file so that nobody sees a part of it, and a kill leaves the file that was there before."""
    with scratch(path) as folder:
        (folder / "new").write_text(text, encoding="utf-8")
        (folder / "new").replace(path)


class LinkError(UserError):
    """Something that is to be written is a link; the message is one line."""


def refuse_link(path: Path) -> None:
    """Raises LinkError for a link, even one to nowhere: it might lead to files that nobody meant. Links above it are followed."""
    if path.is_symlink():
        raise LinkError(f"{path} is a link, and nothing is written through a link: name the folder that it leads to")


def owned_folder(path: Path) -> None:
    """Makes a folder, if there is none, whose files will be changed; raises LinkError if it or one of its entries is a link."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)
    for entry in sorted(path.iterdir()):
        refuse_link(entry)


def sha256(path: Path) -> str:
    """Returns the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """Returns a digest of the names, sizes and times of all files below a folder."""
    return _digest_of_files(folder.rglob("*"), folder)


def pattern_digest(pattern: Path) -> str:
    """Returns a digest of the names, sizes and times of the files that a pattern matches, and of those below folders."""
    matches = [Path(match) for match in glob.glob(str(pattern), recursive=True)]
    return _digest_of_files({file for match in matches for file in ([match] if match.is_file() else match.rglob("*"))})


def _digest_of_files(files: Iterable[Path], folder: Path = Path("/")) -> str:
    stats = [(file.relative_to(folder).as_posix(), file.stat()) for file in sorted(files) if file.is_file()]
    return digest([[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats])


def digest(value: Any) -> str:
    """Returns the hexadecimal SHA-256 of a JSON-able value; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
