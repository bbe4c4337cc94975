"""Rows of a reproduction as they were made, in NAME.json beside its page: with the commit, the configurations and the code that
they came from, so that a page can say when it is stale."""

import dataclasses
import datetime
import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import registry
from data.paths import write_whole
from scripts.reproductions.entry import Entry, Row

PACKAGE = __name__.rpartition(".")[0]
COLUMNS = ("label", "paper", "stated", "ours", "error", "same", "deviation", "comes_out", "differs")
UNKNOWN = "its configurations were not recorded, so that nobody can say whether it is stale"


@dataclasses.dataclass(frozen=True)
class Record:
    """The stored rows of an entry, and what they came from.

    Attributes:
      date: the day on which the rows were made, as 2026-11-27.
      commit: the revision of the code, with "-dirty" after it where files had been changed since; "" outside a repository.
      configurations: hashes of the experiments that the entry loaded, by name (trainers.runlog.config_hash).
      code: a digest of the entry's functions; "" of rows that were made before digests were.
      rows: a mapping for each row, with the keys COLUMNS.
    """

    date: str
    commit: str
    configurations: Mapping[str, str]
    code: str
    rows: Sequence[Mapping[str, Any]]

    def changes(self, entry: Entry) -> str:
        """Returns what has changed since the rows were made, as a clause; "" where nothing has."""
        if not self.code:
            return UNKNOWN
        known = registry.names()
        changed = [name for name, digest in self.configurations.items() if name not in known or _hash(name) != digest]
        changed += ["the entry's code"] if self.code != digest_of(entry.function) else []
        return f"{', '.join(changed)} changed since" if changed else ""


def made(entry: Entry, folder: Path) -> tuple[list[Row], Record]:
    """Makes an entry's rows, and returns them with what is stored of them.

    Args:
      folder: of what is compiled or trained for them.
    """
    with registry.recording() as loaded:
        rows = list(entry.make(folder))
    configurations = {name: _hash(name) for name in sorted(loaded)}
    today = datetime.date.today().isoformat()
    return rows, Record(today, revision(), configurations, digest_of(entry.function), [as_data(row) for row in rows])


def as_data(row: Row) -> dict[str, Any]:
    """Returns a row as plain values."""
    return {name: getattr(row, name) for name in COLUMNS}


def read(folder: Path, name: str) -> Record | None:
    """Returns what is stored of the entry of this name; None where it has not been made."""
    file = folder / f"{name}.json"
    return Record(**json.loads(file.read_text())) if file.exists() else None


def write(folder: Path, name: str, record: Record) -> None:
    """Stores a record as NAME.json."""
    write_whole(folder / f"{name}.json", json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def _hash(name: str) -> str:
    from trainers.runlog import config_hash

    return config_hash(registry.load(name))


def revision() -> str:
    """Returns the checkout's commit, with "-dirty" after it where a file outside docs/ differs; "" outside a repository."""
    from trainers.runlog import git

    return git("rev-parse", "--short=8", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".", ":!docs") else "")


def digest_of(function: Callable[..., Any]) -> str:
    """Returns sixteen hexadecimal digits that change with a function, and with the functions and constants of its module and of
    other modules of papers that it uses; docstrings and comments do not count."""
    parts: dict[str, str] = {}
    _gather(function, parts)
    return hashlib.sha256("\n".join(f"{name}: {parts[name]}" for name in sorted(parts)).encode()).hexdigest()[:16]


def _gather(function: Any, parts: dict[str, str]) -> None:
    """Adds the source of a function, and of all that it uses, to `parts`."""
    name = f"{function.__module__}.{function.__qualname__}"
    if name in parts:
        return
    text = re.sub(r'"""[\s\S]*?"""|(?m:^\s*#.*$|  # .*$)', "", inspect.getsource(function))
    parts[name] = " ".join(text.split())
    for used, value in _used(inspect.unwrap(function)):
        if isinstance(value, types.FunctionType) or hasattr(value, "__wrapped__"):
            if _counts(value.__module__):
                _gather(inspect.unwrap(value), parts)
        elif isinstance(value, int | float | str | tuple | Mapping):
            parts[f"{function.__module__}: {used}"] = re.sub(r" at 0x\w+", "", repr(value))


def _used(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields the globals that a function uses by name, and the members of papers' modules that it uses."""
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    for name in sorted(names & set(function.__globals__)):
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, types.ModuleType) and _counts(value.__name__):
            yield from ((f"{name}.{member}", getattr(value, member)) for member in sorted(names & set(vars(value))))


def _counts(module: str) -> bool:
    """Returns whether a module says what is reproduced: one of a line of papers, and none of those that all entries share."""
    return module.startswith(PACKAGE) and module.rpartition(".")[2] not in ("entry", "figure", "training", "at_once", "plans")
