"""Experiments of a user's own, in files anywhere: `path/to/mine.py:name`, a function that returns one, and `path/to/mine.json`.

A Python file may register families and kinds of data of its own. Code runs only when a command is given its file: no stored run
or release names a file that is then run. The classes that such a file brings are noted in the data folder, by which a run of its
experiments is opened later.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data import untrusted
from data.kinds import KINDS, module
from data.paths import data_dir, write_whole
from models.errors import UserError, nearest, told
from models.families import FAMILIES

NOTED = "own_classes.json"  # in the data folder: the file that brings each class

_PYTHON = re.compile(r"(?P<file>.+\.py)(:(?P<function>.*))?", re.DOTALL)


class FileError(UserError):
    """A file with an experiment is missing, or is none; the message is one line and names the nearest."""


def is_file(name: str) -> bool:
    """Returns whether an experiment is named by a file: FILE.py:FUNCTION or FILE.json."""
    return name.endswith(".json") or _PYTHON.fullmatch(name) is not None


def absolute(name: str) -> str:
    """Returns the name of an experiment as it is understood in every folder."""
    return str(Path(name).expanduser().absolute()) if is_file(name) else name


def read_json(name: str) -> dict[str, Any]:
    """Returns the values of an experiment in a JSON file: all of it, or its "experiment", as `scripts.show --json` prints it."""
    values = untrusted.read_json(_existing(name), FileError)
    return values["experiment"] if isinstance(values.get("experiment"), dict) else values


def function_of(name: str) -> tuple[str, Callable[[], Any]]:
    """Returns an experiment's name, without folders, and its function, which raises a FileError in place of other exceptions.

    Args:
      name: FILE.py:FUNCTION.

    Raises:
      FileError: there is no such file or function, or the file raises an exception.
    """
    match = _PYTHON.fullmatch(name)
    assert match
    path = _existing(match["file"])
    loaded, wanted = _module(path), match["function"] or ""
    function = getattr(loaded, wanted, None)
    if not isinstance(function, types.FunctionType):
        if not (known := _experiments(loaded)):
            raise FileError(f"{match['file']} has no function that returns an Experiment")
        if not wanted:
            raise FileError(f"{name}: which of its experiments? {name}:NAME with NAME from {', '.join(known)}")
        raise FileError(f"{match['file']}: no experiment {wanted!r}{nearest(wanted, known)}")

    def guarded() -> Any:
        with _one_line(path):
            return function()

    guarded.__doc__ = function.__doc__
    return f"{path.relative_to(_root(path)).as_posix()}:{wanted}", guarded


def bring(name: str) -> bool:
    """Loads the file that brought a class of this name before; returns whether there is one.

    Raises:
      FileError: it has gone.
    """
    file = _noted().get(name)
    if file is None:
        return False
    path = Path(file)
    if not path.is_file():
        raise FileError(f"{name} is a class of {file}, which is not there any more")
    _module(path)
    return True


def _existing(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        beside = [other.name for other in path.parent.glob(f"*{path.suffix}")]
        raise FileError(f"no file {text}{nearest(path.name, beside)}")
    return path


def _experiments(loaded: types.ModuleType) -> list[str]:
    """Returns the names of a module's own functions that say, or leave open, that they return an experiment."""
    return [
        name
        for name, function in vars(loaded).items()
        if isinstance(function, types.FunctionType)
        and function.__module__ == loaded.__name__
        and not name.startswith("_")
        and getattr(hint := function.__annotations__.get("return", "Experiment"), "__name__", hint) == "Experiment"
    ]


def _root(path: Path) -> Path:
    """Returns the folder from which a file is imported: the first above it that is no package."""
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    return root


def _module(path: Path) -> types.ModuleType:
    """Returns a file's module, whose neighbours it can import; notes the classes that it brings."""
    root = _root(path)
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    if str(root) not in sys.path:
        sys.path.append(str(root))  # behind the checkout's own modules
    importlib.invalidate_caches()
    known = {*FAMILIES}, {*KINDS}
    with _one_line(path):
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec and spec.has_location else None
        if not origin or not path.samefile(origin):
            other = origin or "of Python's own"
            raise FileError(f"{path}: there is another module {name!r} ({other}); rename the file")
        loaded = importlib.import_module(name)
        _note(path, FAMILIES.keys() - known[0], KINDS.keys() - known[1])
    return loaded


def _note(path: Path, families: set[str], kinds: set[str]) -> None:
    """Notes which file brings the classes of these families and kinds of data, where the data folder can be written."""
    classes = [importlib.import_module(f"{FAMILIES[name]}.config").CONFIG for name in families]
    for config in (module(name, "config") for name in kinds):
        classes += [*config.CONFIGS, *config.EVALS]
    before = _noted()
    after = before | {cls.__name__: str(path) for cls in classes}
    if after != before:
        with contextlib.suppress(OSError):
            write_whole(data_dir() / NOTED, json.dumps(after, indent=1, sort_keys=True) + "\n")


def _noted() -> dict[str, str]:
    try:
        return untrusted.read_json(data_dir() / NOTED, FileError)
    except (FileError, OSError):  # the next command that is given the file writes it anew
        return {}


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Raises an exception of the block as one line with the place in the file, or beside it, where it comes from."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        text = told(error, named=not isinstance(error, UserError))
        if isinstance(error, SyntaxError):
            lines.append((error.filename or "", error.lineno))
            text = f"SyntaxError: {error.msg}"
        places = [f"{_shown(Path(file))}:{line}" for file, line in lines if Path(file).parent == path.parent]
        raise FileError(f"{places[-1] if places else _shown(path)}: {text}") from error


def _shown(path: Path) -> str:
    """Returns a path as it is best read: from the working folder, where it lies below it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
