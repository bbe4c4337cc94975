"""Files that others made: only regular files are opened, only so much of them is read, and what is wrong is one line.

A pipe would be waited for without end and a device has none. A link to a regular file is followed: caches of downloads consist
of such links. The errors are of the class that the caller names. All bounds are here; with them a file takes at most 2 GiB of
memory and 10 seconds until it is read or refused, however it was made (docs/WEIGHTS.md and docs/DATA.md state them).
"""

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from models.errors import UserError, shortened, told

# Bytes of a JSON or text file, and of a line of one. A list of empty lists becomes 27 times as large in memory. The largest
# released vocabulary has 33 MiB.
TEXT = 48 << 20
TEMPLATE = 1 << 17  # characters of a chat template; released ones have up to 30,000
RENDERING = 1_000_000  # steps in which it renders a conversation; one of 7,000 characters takes 18,000 for 100 turns
RENDERED = 1 << 23  # characters that it may make on the way, beside 32 for each of the conversation
NESTING = 100  # levels of lists and objects in JSON
PIXELS = 120_000_000  # of a picture; over a white ground, three copies of four bytes each are made
PICTURE = 4 * PIXELS  # bytes of its file
SAMPLES = 1 << 27  # of a sound that is read whole, at 16 kHz: 2 h 19 min
STREAMED = 24 * 3600 * 16_000  # of a sound that is read a block at a time: a day
FRAME = 1 << 26  # numbers of one time of a gridded series
TIMES = 1 << 24  # of a gridded series: 160 years at five minutes
ITEMS = 1 << 21  # items of all lists of a GGUF file; four lists make up a vocabulary, of Gemma 1.3 million
FIELDS = 1 << 16  # settings of a GGUF file, and tensors of one
SENTENCEPIECE = 8 << 20  # bytes of a model; the largest that is read here has 5 MiB
PIECES = 1 << 20  # of a vocabulary, and merges; Gemma's has a quarter of a million pieces and half a million merges
PIECE = 1 << 12  # characters of a piece
ADDED = 1 << 22  # characters of all tokens that a vocabulary adds to its pieces
MARKS = 1 << 14  # of spans in a vocabulary of bytes
RULES = 64  # of a vocabulary: what it makes of a text before and behind its pieces
GROWTH = 256  # times that these rules may make a text longer; with NFKC in SentencePiece's tables and a blank it is 36
DIRECTORY = 32 << 20  # bytes of a zip archive's list of files, each of which becomes 13 in memory
DICTIONARY = 192 << 20  # bytes of memory that an .xz file may ask for; xz -9 asks for 65 MiB
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")  # endings of files that are decompressed while they are read

_STDERR = threading.RLock()  # held while it leads elsewhere


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


def regular_below(path: Path, error: type[UserError]) -> Path:
    """Returns the path of a file or a folder; raises an error unless it, or each file below it, is a regular file."""
    for folder, _, names in os.walk(path) if path.is_dir() else ():
        for name in names:
            regular(Path(folder, name), error)
    return path if path.is_dir() else regular(path, error)


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


def opened(path: Path, error: type[UserError]) -> BinaryIO:
    """Returns a regular file, open for reading: it is neither waited for nor exchanged for a pipe in between."""
    regular(path, error)
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except OSError as problem:
        raise error(f"{path} cannot be opened: {told(problem)}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise error(f"{path} is no regular file")
    return cast(BinaryIO, file)


@contextlib.contextmanager
def decompressed(path: Path, error: type[UserError]) -> Iterator[BinaryIO]:
    """Opens a regular file for reading, and decompresses it on the way where its name ends with one of COMPRESSED.

    Memory is bounded, the length of what is read is not. Damage shows as one error while it is read.
    """
    with opened(path, error) as file, contextlib.ExitStack() as closing:
        if path.suffix not in COMPRESSED:
            yield file
            return
        closing.enter_context(damage(path, error))
        match path.suffix:
            case ".gz":
                raw: Any = gzip.GzipFile(fileobj=file)
            case ".bz2":
                raw = bz2.BZ2File(file)
            case ".xz":
                raw = _Xz(file)
            case _:
                import pyarrow  # takes a third of a second

                raw = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
        yield cast(BinaryIO, closing.enter_context(io.BufferedReader(raw, 1 << 16)))


class _Xz(io.RawIOBase):
    """The content of an .xz file, as lzma.LZMAFile reads it, but in bounded memory."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file, self._decoder = file, lzma.LZMADecompressor(memlimit=DICTIONARY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder.eof:  # files may be several, one behind the other
                left = self._decoder.unused_data.lstrip(b"\0") or self._file.read(1 << 16).lstrip(b"\0")
                if not left:
                    return 0
                self._decoder = lzma.LZMADecompressor(memlimit=DICTIONARY)
            else:
                left = self._file.read(1 << 16) if self._decoder.needs_input else b""
                if not left and self._decoder.needs_input:
                    raise EOFError("it ends before its end-of-stream marker")
            content = self._decoder.decompress(left, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)


def bounded(number: int, most: int, unit: str, error: type[ValueError], name: object = "") -> int:
    """Returns a number of things in a file, before memory is asked for them; raises an error if there are more than `most`."""
    if number > most:
        raise error(f"{name} has {number:,} {unit}, more than {most:,}".lstrip())
    return number


def zipped(path: Path, error: type[UserError]) -> Path:
    """Returns the path of a zip archive; raises an error if its list of files is longer than any.

    The list's size stands in the last record of the file, or in one of 64 bits before it. Whatever looks like one is taken for
    one, so that none can be hidden behind another.
    """
    with opened(path, error) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 17)))
        tail = file.read()
    for mark, start, end in ((b"PK\5\6", 12, 16), (b"PK\6\6", 40, 48)):
        for record in re.finditer(mark, tail):
            size = int.from_bytes(tail[record.start() + start : record.start() + end], "little")
            if size != 0xFFFFFFFF:  # the one of 64 bits has it
                bounded(size, DIRECTORY, "bytes in its list of files", error, path)
    return path


def read_bytes(path: Path, error: type[UserError], most: int = TEXT) -> bytes:
    """Returns the content of a regular file of at most so many bytes."""
    with opened(path, error) as file:
        size = bounded(os.fstat(file.fileno()).st_size, most, "bytes", error, path)
        content = file.read(size + 1)
    if len(content) > size:  # files of /proc say that they have no bytes, and may have no end
        raise error(f"{path} has more than the {size:,} bytes that it says")
    return content


def read_text(path: Path, error: type[UserError], most: int = TEXT) -> str:
    """Returns the content of a regular file of UTF-8."""
    return _decoded(read_bytes(path, error, most), str(path), error)


def lines(path: Path, error: type[UserError], most: int = TEXT) -> Iterator[tuple[int, str]]:
    """Yields the lines of a regular file of UTF-8, each with its number from 1 and with what ends it; decompresses the file.

    Only "\n" ends one, as U+2028 may be inside a string. A byte order mark before the first is left out.
    """
    with decompressed(path, error) as file:
        for number in itertools.count(1):
            name = f"{path}, line {number}"
            line = file.readline(most + 1)
            if not line:
                return
            if len(line) > most:
                raise error(f"{name} has more than {most:,} bytes")
            yield number, _decoded(line, name, error).removeprefix("\ufeff" if number == 1 else "")


def json_lines(path: Path, error: type[UserError], kind: type = dict) -> Iterator[tuple[int, Any]]:
    """Yields the JSON values of a file's lines, which must be of this kind, each with its line's number; not of blank ones."""
    for number, line in lines(path, error):
        if line := line.strip():
            yield number, parsed(line, f"{path}, line {number}", error, kind)


def _decoded(content: bytes, name: str, error: type[UserError]) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as problem:
        raise error(f"{name} is damaged: byte {problem.start:,} is no UTF-8") from None


def read_json(path: Path, error: type[UserError], kind: type = dict) -> Any:
    """Returns the JSON value of a regular file, which must be of this kind."""
    return parsed(read_text(path, error), str(path), error, kind)


def parsed(text: str, name: str, error: type[UserError], kind: type = dict) -> Any:
    """Returns the value of a JSON text, which must be of this kind; `name` is for errors."""
    try:
        value = json.loads(text)
        if depth(value) > NESTING:
            raise RecursionError
    except RecursionError:
        raise error(f"{name} is damaged: it is nested more than {NESTING} deep") from None
    except ValueError as problem:  # also numbers of too many digits
        raise error(f"{name} is damaged: {shortened(str(problem), 200)}") from None
    if not isinstance(value, kind):
        raise error(f"{name} is damaged: expected {'an object' if kind is dict else 'a list'}")
    return value


def depth(value: Any) -> int:
    """Returns how many levels of lists and objects a value has, of which whatever walks through it calls itself for each."""
    level, levels = [value], 0
    while level := [each for each in level if each and isinstance(each, (dict, list))]:
        levels += 1
        level = list(itertools.chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level))
    return levels


@contextlib.contextmanager
def damage(what: object, error: type[UserError], *, quiet: bool = False) -> Iterator[None]:
    """Raises whatever a library raises inside the block about a broken file as one line, "WHAT is damaged: ...".

    Args:
      quiet: the library is one in Rust that may panic, whose own account of a panic does not reach standard error.
    """
    try:
        with _without_panics() if quiet else contextlib.nullcontext():
            yield
    except (UserError, MemoryError):
        raise
    except Exception as problem:
        raise error(f"{what} is damaged: {told(problem)}") from problem
    except BaseException as problem:
        if not _is_panic(problem):
            raise
        raise error(f"{what} is damaged: {told(problem)}") from problem


def _is_panic(problem: BaseException) -> bool:
    """Returns whether an exception, which is no Exception, is a panic of a library in Rust."""
    return type(problem).__module__ == "pyo3_runtime"


@contextlib.contextmanager
def _without_panics() -> Iterator[None]:
    """Keeps back what reaches standard error inside the block, and writes it at the end unless a library in Rust panicked."""
    with _STDERR, tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        panicked = False
        try:
            yield
        except BaseException as problem:
            panicked = _is_panic(problem)
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            kept.seek(0)
            if not panicked and (output := kept.read()):
                os.write(2, output)
