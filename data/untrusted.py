"""Files that others made: only regular files are opened, only so much of them is read, and what is wrong is one line.

A pipe would be waited for without end and a device has none. A link to a regular file is followed: caches of downloads consist
of such links. The errors are of the class that the caller names.
"""

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.errors import UserError, shortened, told

MOST = 256 << 20  # bytes of a JSON or text file; the largest released vocabulary has 33 MiB
TEMPLATE = 1 << 17  # characters of a chat template; released ones have up to 30,000
RENDERING = 1_000_000  # steps in which it renders a conversation; one of 7,000 characters takes 18,000 for 100 turns
RENDERED = 1 << 23  # characters that it may make on the way, beside 32 for each of the conversation


def regular(path: Path, error: type[UserError]) -> Path:
    """Returns the path; raises an error unless it is a regular file, or a link to one."""
    name = shortened(path.name)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise error(f"{path.parent}: {name} is missing") from None
    except (OSError, ValueError) as problem:  # a link to itself, a name that is too long
        raise error(f"{path.parent}: {name} cannot be opened: {told(problem)}") from None
    if not stat.S_ISREG(mode):
        raise error(f"{path.parent}: {name} is no regular file")
    return path


def member(folder: Path, name: str, error: type[UserError]) -> Path:
    """Returns a file in a folder, or below it, that another file names; raises an error if the name leaves the folder, or is that
    of no regular file."""
    if not is_within(name):
        raise error(f"{folder}: {shortened(name)!r} is no file of the folder")
    return regular(folder / name, error)


def is_within(name: str) -> bool:
    """Returns whether a path is relative and does not lead out of the folder that it is relative to."""
    path = Path(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def bounded(number: int, most: int, unit: str, error: type[UserError], name: object = "") -> int:
    """Returns a number of things in a file, before memory is asked for them; raises an error if there are more than `most`."""
    if number > most:
        raise error(f"{name} has {number:,} {unit}, more than {most:,}".lstrip())
    return number


def read_bytes(path: Path, error: type[UserError], most: int = MOST) -> bytes:
    """Returns the content of a regular file of at most so many bytes."""
    if (size := regular(path, error).stat().st_size) > most:
        raise error(f"{path} has {size:,} bytes, more than {most:,}")
    return path.read_bytes()


def read_text(path: Path, error: type[UserError]) -> str:
    """Returns the content of a regular file of UTF-8."""
    try:
        return read_bytes(path, error).decode()
    except UnicodeDecodeError as problem:
        raise error(f"{path} is damaged: byte {problem.start:,} is no UTF-8") from None


def read_json(path: Path, error: type[UserError], kind: type = dict) -> Any:
    """Returns the JSON value of a regular file, which must be of this kind."""
    return parsed(read_text(path, error), str(path), error, kind)


def parsed(text: str, name: str, error: type[UserError], kind: type = dict) -> Any:
    """Returns the value of a JSON text, which must be of this kind; `name` is for errors."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:  # also numbers of too many digits, and too deep nesting
        raise error(f"{name} is damaged: {shortened(str(problem), 200)}") from None
    if not isinstance(value, kind):
        raise error(f"{name} is damaged: expected {'an object' if kind is dict else 'a list'}")
    return value


@contextlib.contextmanager
def damage(what: object, error: type[UserError]) -> Iterator[None]:
    """Raises whatever a library raises inside the block about a broken file as one line, "WHAT is damaged: ..."."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as problem:
        raise error(f"{what} is damaged: {told(problem)}") from problem
    except BaseException as problem:
        if type(problem).__module__ != "pyo3_runtime":  # a panic of a library in Rust is no Exception
            raise
        raise error(f"{what} is damaged: {told(problem)}") from problem
