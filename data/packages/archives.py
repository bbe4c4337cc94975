"""Reads the members of a fetched package in place: nothing is unpacked to disk, nothing is installed."""

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from data import untrusted
from models.errors import UserError, shortened

_MOST = 4 << 30  # bytes of an archive
_GROWTH, _ALLOWED = 100, 256 << 20  # an archive may hold so many times its size, and so many bytes whatever its size
_MOST_HEADER = 1 << 20  # bytes of a tar archive's header, names and attributes included
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ": lzma.open, b"BZh": bz2.open}


class ArchiveError(UserError):
    """An archive that cannot be read, or that holds far more than its size lets expect; the message is one line."""


Wanted = Callable[[re.Match[str]], object]  # whether a member is read, by the match of its name


def members(archive: Path, pattern: str, wanted: Wanted = bool) -> Iterator[tuple[str, bytes]]:
    """Returns an iterator of (name, content) over the files of a wheel, an npm tarball or a Debian package.

    Args:
      archive: a `.whl` or `.zip`, a `.tgz`, or a `.deb` file.
      pattern: a regular expression; only names that it matches somewhere are read.
      wanted: called with such a match; where it returns a false value, the member is not read. By default all are.

    Raises:
      ArchiveError: the file is not one of these, is damaged, or holds far more than its size lets expect.
    """
    untrusted.regular(archive, ArchiveError)
    match archive.suffix:
        case ".whl" | ".zip":
            return zip_members(archive, pattern, wanted)
        case ".tgz":
            payload = untrusted.read_bytes(archive, ArchiveError, _MOST)
        case ".deb":
            payload = _deb_payload(archive.name, untrusted.read_bytes(archive, ArchiveError, _MOST))
        case _:
            raise ArchiveError(f"{archive.name}: not an archive that is known here (.whl, .zip, .tgz, .deb)")
    return _tar_members(archive.name, payload, pattern, wanted)


def zip_members(archive: Path | io.BytesIO, pattern: str, wanted: Wanted = bool) -> Iterator[tuple[str, bytes]]:
    """Yields what `members` does, from a zip file on disk or, nested in another archive, in memory."""
    label = archive.name if isinstance(archive, Path) else "a nested archive"
    size = archive.stat().st_size if isinstance(archive, Path) else archive.getbuffer().nbytes
    if isinstance(archive, Path):
        untrusted.zipped(archive, ArchiveError)
    with untrusted.damage(label, ArchiveError), zipfile.ZipFile(archive) as zipped:
        for info in _within(label, size, sorted(zipped.infolist(), key=lambda info: info.filename)):
            if (match := re.search(pattern, info.filename)) and wanted(match):
                yield info.filename, zipped.read(info)


def _within(label: str, archive: int, infos: Iterable[Any]) -> Iterator[Any]:
    """Yields the members of an archive of so many bytes; raises ArchiveError before one that would make their sum too large."""
    total, most = 0, max(_GROWTH * archive, _ALLOWED)
    for info in infos:
        total += info.file_size if isinstance(info, zipfile.ZipInfo) else info.size
        if total > most:
            raise ArchiveError(f"{label}: {archive:,} bytes hold more than {most:,}, as no package does")
        yield info


class _Headers(io.BufferedReader):
    """An uncompressed tar archive, of which a header's size is not believed."""

    most = _MOST_HEADER

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0 or size > self.most:
            raise ValueError(f"a header of {size:,} bytes")
        return super().read(size)


def _tar_members(label: str, payload: bytes, pattern: str, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    opener = next((opener for magic, opener in _OPENERS.items() if payload.startswith(magic)), lambda file: file)
    with untrusted.damage(label, ArchiveError):
        headers = _Headers(opener(io.BytesIO(payload)))
        with tarfile.open(fileobj=headers, mode="r:") as tar:
            for member in _within(label, len(payload), tar):
                if member.isfile() and (match := re.search(pattern, member.name)) and wanted(match):
                    content = tar.extractfile(member)
                    assert content is not None  # a plain file always has content
                    headers.most = max(_MOST_HEADER, member.size)
                    yield member.name, content.read()
                    headers.most = _MOST_HEADER


def _deb_payload(label: str, deb: bytes) -> bytes:
    """Returns the compressed file tree of a Debian package: the `data.tar.*` member of an ar archive (deb(5))."""
    position = len(b"!<arch>\n")
    while position < len(deb):  # 60 bytes of header: name[16] time[12] owner[6] group[6] mode[8] size[10] end[2]
        name, size = deb[position : position + 16].strip(b" /"), deb[position + 48 : position + 58].strip()
        if not size.isdigit():
            raise ArchiveError(f"{label} is damaged: a member of {shortened(str(size))} bytes")
        position += 60
        if name.startswith(b"data.tar"):
            return deb[position : position + int(size)]
        position += int(size) + int(size) % 2
    raise ArchiveError(f"{label}: Debian package without a data.tar member")
