"""Who did what: an append-only log of a run or a release, WORKDIR/audit.jsonl, whose lines are chained by digests.

Each line is a JSON object with sorted keys. `before` is the digest of the line before it ("" in the first one), and `digest` the
SHA-256 of the line without it. A line that is changed, removed from the middle, added there or put elsewhere breaks the chain
(trainers/audit/checks.py). Nothing in a file can show that its last lines were cut off, or that somebody wrote all of it anew:
for that the digest of its last line, its head, must be known from elsewhere. run.jsonl has heads, $SHARDZOO_AUDIT does, and a
reader may keep one.

With SHARDZOO_AUDIT=FOLDER in the environment each event also goes to FOLDER/USER@HOST.jsonl, another chain, and only there goes
who read a model. What cannot be logged is not done.

Paths and values of an event:
  time, host, user, pid   the user is the process's owner, whatever $USER says
  files   the SHA-256 of files by their path in the folder, or an address; null of one that was deleted. The newest counts.
  differs   files that were not as the log said when the event happened
  folder, head   of a line in FOLDER: the run or the release, and the digest of the line there
"""

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import pwd
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from data import paths, untrusted
from models.errors import UserError
from trainers.audit.redaction import redacted_values

FILE = "audit.jsonl"
FOLDER = "SHARDZOO_AUDIT"
_MODE = 0o640  # of a new log, less the umask


class AuditError(UserError):
    """A line of a log, or a file that it speaks of, cannot be read; the message is one line."""


def record(event: str, folder: Path | None = None, **fields: Any) -> str:
    """Appends an event to the log of a run or a release, and to the one in $SHARDZOO_AUDIT, without credentials.

    Args:
      folder: the run or the release; None for an event that goes to $SHARDZOO_AUDIT alone.

    Returns:
      The digest of the line in the folder's log; "" where there is none.

    Raises:
      OSError: a log cannot be written.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    who = {"time": now, "host": socket.gethostname(), "user": owner(), "pid": os.getpid()}
    files = {"files": fields["files"]} if "files" in fields else {}  # digests, of names such as SHA256SUMS.sig
    values = redacted_values({"event": event} | fields | who) | files
    head = append(folder / FILE, values) if folder else ""
    if (common := common_log()) is not None:
        common.parent.mkdir(parents=True, exist_ok=True)
        append(common, values | ({"folder": str(folder.resolve()), "head": head} if folder else {}))
    return head


def record_read(path: Path, form: str, **fields: Any) -> None:
    """Appends to the log in $SHARDZOO_AUDIT, if there is one, that a model is read.

    Args:
      form: the form of its files.
      fields: what identifies it: `files`, as of every event, or `listing`, a digest of names, sizes and times alone.
    """
    if common_log() is not None:
        record("read", path=str(path.resolve()), form=form, command=command(), **fields)


def owner() -> str:
    """Returns the name of the user who owns this process, or the number of one without a name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def common_log() -> Path | None:
    """Returns this user's and host's log in $SHARDZOO_AUDIT; None where that is not set."""
    folder = os.environ.get(FOLDER)
    return Path(folder).expanduser() / f"{owner()}@{socket.gethostname()}.jsonl".replace("/", "_") if folder else None


def command() -> list[str]:
    """Returns the arguments of this process without credentials."""
    return redacted_values(sys.orig_argv[1:])


def append(path: Path, values: dict[str, Any]) -> str:
    """Appends a line to a chain and returns its digest. It stays when the power fails after this.

    Behind a line that is not sound a new piece of the chain begins: its line has `broken`, and `before` is the SHA-256 of that
    line's bytes. "cut": it has no end, as a power cut or a full disk leaves it; "changed": it has one.

    Raises:
      OSError: it cannot be written, or the path is a link.
    """
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, _MODE)) as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        last, ended = _last(file)
        line = values | {"before": digest_of(last) if last else ""}
        if last and not sound(last):
            line["broken"] = "changed" if ended else "cut"
        line["digest"] = paths.digest(line)
        file.write((b"" if ended else b"\n") + json.dumps(line, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return line["digest"]


def _last(file: BinaryIO) -> tuple[bytes, bool]:
    """Returns the last line of a file without its end, b"" of an empty file, and whether it has an end."""
    size, span = file.seek(0, os.SEEK_END), 1 << 12
    while True:
        file.seek(max(0, size - span))
        content = file.read()
        ended = content.endswith(b"\n") or not content
        _, start, line = content.removesuffix(b"\n").rpartition(b"\n")
        if start or span >= size:
            return line, ended
        span *= 16


def sound(line: bytes) -> dict[str, Any] | None:
    """Returns the values of a line that is as `append` wrote it, byte for byte; None of any other."""
    try:
        values = untrusted.parsed(line.decode("ascii"), "a line", AuditError)
    except (UnicodeDecodeError, AuditError):
        return None
    same = json.dumps(values, sort_keys=True).encode() == line
    without = {name: value for name, value in values.items() if name != "digest"}
    return values if same and values.get("digest") == paths.digest(without) else None


def digest_of(line: bytes) -> str:
    """Returns what the line behind this one has as `before`."""
    values = sound(line)
    return values["digest"] if values else hashlib.sha256(line).hexdigest()


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the sound lines of a log, in their order; none of a log that is not there."""
    for line, ended in raw_lines(path) if path.exists() else ():
        if ended and (values := sound(line)):
            yield values


def raw_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yields the lines of a log without their ends, each with whether it has one.

    Raises:
      AuditError: it is no regular file.
    """
    with untrusted.opened(path, AuditError) as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)  # nobody is writing a line
        while line := file.readline(untrusted.TEXT):
            yield line.removesuffix(b"\n"), line.endswith(b"\n")


def files_of(path: Path) -> dict[str, str | None]:
    """Returns the digests of files by path that a log gives, the newest of each; None of one that was deleted."""
    files: dict[str, str | None] = {}
    for line in lines(path):
        files |= line["files"] if isinstance(line.get("files"), dict) else {}
    return files


def digests(folder: Path, *names: str) -> dict[str, str | None]:
    """Returns the digests of files in a folder, or at addresses, by path; None of those that are not there.

    Raises:
      AuditError: one of them is no file, or an address cannot be read.
    """
    return {name: digest(folder, name) for name in names}


def digest(folder: Path, name: str) -> str | None:
    """Returns the SHA-256 of a file in a folder, or at an address; None where it is not there."""
    if paths.is_address(name):
        from etils import epath  # with its clients of stores

        with untrusted.damage(name, AuditError):
            place = epath.Path(name)
            return hashlib.sha256(place.read_bytes()).hexdigest() if place.exists() else None
    path = folder / name  # a name that begins with "/" is a path of its own
    if not path.exists():
        return None
    return paths.sha256(untrusted.regular(path, AuditError))


def differing(folder: Path) -> list[str]:
    """Returns the files that are not as a folder's log says: those that are gone, came back or have another content."""
    return [name for name, want in files_of(folder / FILE).items() if digest(folder, name) != want]
