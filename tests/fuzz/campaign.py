"""Runs a reader on many mutated files, in a process of its own with bounded address space and time, and counts what happens.

    refused     one line of the project's own error classes
    accepted    the file is still a sound one, as far as it can tell
    traceback   any other exception, or an error of more than one line or of more than a thousand characters
    memory      it asked for more memory than it is given
    hang        no answer within the time
    crash       the process ended
    escape      a file was written outside the target, a program started, a connection opened, or code run

Escapes are seen by an audit hook (PEP 578), and by a look at the files around the target after each run of the process.
"""

import collections
import dataclasses
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from data import kinds
from data.packages.fetch import FetchError
from data.paths import ROOT
from models.errors import UserError
from tests.fuzz.mutations import Files, Mutate

OUTCOMES = ("refused", "accepted", "traceback", "memory", "hang", "crash", "escape")
_LONGEST_LINE = 1000  # characters
_GRACE = 20  # seconds that a process may take to start, and to answer once its time is over
_MOST_LOST = 20  # processes that are started anew for one reader
_NAMED = 5  # failures of each kind that are listed


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of files that others made.

    Attributes:
      name: as in the table.
      make: writes a sound folder.
      read: reads a folder as the commands do, to its last number.
      mutate: changes some of its files.
      compiles: names of code that its library itself makes of a file and runs in a sandbox.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    mutate: Mutate
    compiles: tuple[str, ...] = ()


@dataclasses.dataclass
class Tally:
    """The outcomes of the mutations of a reader; failures by outcome and reason, with the numbers of the first ones."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: dict[tuple[str, str], list[int]] = dataclasses.field(default_factory=dict)
    slowest: float = 0.0  # seconds
    memory: float = 0.0  # MiB above what the process had after the sound folder

    def add(self, number: int, outcome: str, reason: str, seconds: float) -> None:
        self.outcomes[outcome] += 1
        self.slowest = max(self.slowest, seconds)
        if outcome not in ("refused", "accepted"):
            self.failures.setdefault((outcome, reason), []).append(number)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds for one mutation: seconds, and MiB of address space beyond what the process has after the sound folder."""

    seconds: float
    mib: int


def run(reader: Reader, first: int, count: int, seed: int, limits: Limits) -> Tally:
    """Reads mutations `first` to `first + count` of a reader; a mutation depends on the seed and its number alone."""
    tally, at, end, lost = Tally(), first, first + count, 0
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="shardzoo-fuzz-") as text:
        room = Path(text)
        (room / "sample").mkdir()
        (room / "outside").write_text("untouched")
        reader.make(room / "sample")
        known = {"target", "data", *os.listdir(room)}
        while at < end and lost < _MOST_LOST:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(reader, room, at, end, seed, limits, theirs), daemon=True)
            process.start()
            theirs.close()
            started = False
            while True:
                try:
                    if not ours.poll(limits.seconds + _GRACE if started else 3 * _GRACE):
                        tally.add(at, "hang", "no answer, in native code", limits.seconds)
                        break
                    message = ours.recv()
                except EOFError:
                    process.join()
                    if at < end:
                        tally.add(at, "crash", f"exit code {process.exitcode}", 0)
                    break
                if message is None:
                    started = True
                elif isinstance(message, float):
                    tally.memory = max(tally.memory, message)
                else:
                    number, outcome, reason, seconds = message
                    tally.add(number, outcome, reason, seconds)
                    at = number + 1
            process.kill()
            process.join()
            if at < end:
                at, lost = at + 1, lost + 1
            if strangers := _strangers(room, known):
                tally.add(at, "escape", f"files beside the target: {', '.join(strangers)}", 0)
                known.update(strangers)
                (room / "outside").write_text("untouched")
    return tally


def _strangers(room: Path, known: set[str]) -> list[str]:
    """Returns what is beside the target that was not there before, or is no longer what it was."""
    return sorted((set(os.listdir(room)) - known) | ({"outside"} if (room / "outside").read_text() != "untouched" else set()))


def _work(reader: Reader, room: Path, first: int, end: int, seed: int, limits: Limits, answers: Connection) -> None:
    """Reads mutations in this process: sends None once the sound folder is read, an answer for each, and the most memory."""
    target = room / "target"
    os.environ |= {"SHARDZOO_DATA": str(room / "data"), "TMPDIR": str(room / "data"), "HOME": str(room / "data")}
    (room / "data").mkdir(exist_ok=True)
    tempfile.tempdir = None
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(sys.stderr.fileno(), 2)  # of native code
    shutil.rmtree(target, ignore_errors=True)
    sound = contents(room / "sample")
    shutil.copytree(room / "sample", target)
    for _ in range(2):
        reader.read(target)
    kinds.prepared()  # a mutation may name any kind of data, whose modules define classes, which is code that runs
    escapes: list[str] = []
    _watch((room / "target", room / "data"), escapes, reader.compiles)
    start = _status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, ((start + (limits.mib << 10)) << 10, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _late)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers.send(None)
    for number in range(first, end):
        files: Files = dict(sound)
        reader.mutate(files, random.Random(f"{seed} {reader.name} {number}"))
        names = changed(sound, files)
        put(target, names, files)
        escapes.clear()
        began = time.perf_counter()
        result, reason = outcome(reader, target, limits.seconds)
        seconds = time.perf_counter() - began
        if escapes:
            result, reason = "escape", escapes[0]
        put(target, names, sound)
        answers.send((number, result, reason, seconds))
    answers.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    answers.close()
    os._exit(0)


class _Late(BaseException):
    """A mutation's time is over; no handler of Exception takes it."""


def _late(*_: Any) -> None:
    raise _Late


def outcome(reader: Reader, target: Path, seconds: float) -> tuple[str, str]:
    """Returns (outcome, reason) of reading a folder."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            reader.read(target)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return "accepted", ""
    except (UserError, FetchError) as error:
        text = str(error)
        if len(text.splitlines()) != 1 or len(text.replace(str(target), "")) > _LONGEST_LINE:
            return "traceback", f"{_place_of(error)}: {len(text.splitlines())} lines, {len(text)} characters"
        return "refused", ""
    except MemoryError as error:
        return "memory", _place_of(error)
    except _Late as error:
        return "hang", _place_of(error)
    except BaseException as error:  # pyo3's panics are no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return "traceback", f"{_place_of(error)}: {type(error).__name__}"


def _place_of(error: BaseException) -> str:
    """Returns the innermost line of the project's own source in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(str(ROOT)) and "site-packages" not in f.filename]
    frame = [f for f in own if "tests/fuzz" not in f.filename] or own
    return f"{Path(frame[-1].filename).relative_to(ROOT)}:{frame[-1].lineno}" if frame else "?"


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the contents of all files below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(sound: Mapping[str, bytes], files: Files) -> list[str]:
    """Returns the names under which a mutation has other files than the sound folder."""
    return [name for name in {**sound, **files} if files.get(name) is not sound.get(name)]


def put(folder: Path, names: list[str], files: Files | Mapping[str, bytes]) -> None:
    """Puts these files into a folder, in place of what is there."""
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        content = files.get(name)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            content(path)


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.symlink": 2,
    "os.truncate": 1,
}
_PROGRAMS = (
    "ctypes.dlopen",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pickle.find_class",
    "socket.connect",
    "subprocess.Popen",
)


def _watch(allowed: tuple[Path, ...], escapes: list[str], compiles: tuple[str, ...]) -> None:
    """Notes, from now on, what changes files outside some folders, starts programs or runs code that is in no module's file."""
    inside = tuple(str(folder.resolve()) for folder in allowed)

    def outside(path: Any, folder: Any = None) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False  # a descriptor, which was opened before
        if isinstance(folder, int) and folder >= 0:  # a name in a folder that is open
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        return not os.path.realpath(os.fsdecode(path)).startswith((*inside, "/dev/null"))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = bool((flags or 0) & _WRITES) if mode is None else bool(set(mode) & set("wax+"))
            if writes and outside(path):
                escapes.append(f"opens {path} to write")
        elif event in _CHANGES:
            count = _CHANGES[event]
            if any(map(outside, args[:count], args[-count:] if len(args) > count else ())):
                escapes.append(f"{event} {args[: _CHANGES[event]]}")
        elif event in _PROGRAMS:
            escapes.append(f"{event} {args}"[:200])
        elif event == "exec":
            file = getattr(args[0], "co_filename", "?")
            if not file.startswith(("<frozen", *compiles)) and not os.path.isfile(file):
                escapes.append(f"runs code of {file}")

    sys.addaudithook(hook)


def _status(name: str) -> int:
    """Returns a size of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def described(tally: Tally) -> Iterator[str]:
    """Yields a line for each kind of failure, with the numbers of the first mutations that show it."""
    for (outcome, reason), numbers in sorted(tally.failures.items(), key=lambda item: -len(item[1])):
        some = ", ".join(map(str, itertools.islice(numbers, _NAMED)))
        yield f"  {outcome} x {len(numbers)}: {reason}  (mutation {some})"
