"""Reads the members of a fetched package in place: nothing is unpacked to disk, nothing is installed."""

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path


def members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Returns an iterator of (name, content) over the files of a wheel, an npm tarball or a Debian package.

    Args:
      archive: a `.whl` or `.zip`, a `.tgz`, or a `.deb` file.
      pattern: a regular expression; only names that it matches somewhere are read.

    Raises:
      ValueError: the file is not one of these.
    """
    match archive.suffix:
        case ".whl" | ".zip":
            return zip_members(archive, pattern)
        case ".tgz":
            return _tar_members(archive.read_bytes(), pattern)
        case ".deb":
            return _tar_members(_deb_payload(archive.read_bytes()), pattern)
    raise ValueError(f"{archive.name}: not an archive that is known here (.whl, .zip, .tgz, .deb)")


def zip_members(archive: Path | io.BytesIO, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields what `members` does, from a zip file on disk or, nested in another archive, in memory."""
    with zipfile.ZipFile(archive) as zipped:
        for name in sorted(zipped.namelist()):
            if re.search(pattern, name):
                yield name, zipped.read(name)


def _tar_members(payload: bytes, pattern: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(payload)) as tar:
        for member in tar:
            if member.isfile() and re.search(pattern, member.name):
                content = tar.extractfile(member)
                assert content is not None  # a plain file always has content
                yield member.name, content.read()


def _deb_payload(deb: bytes) -> bytes:
    """Returns the compressed file tree of a Debian package: the `data.tar.*` member of an ar archive (deb(5))."""
    position = len(b"!<arch>\n")
    while position < len(deb):  # 60 bytes of header: name[16] time[12] owner[6] group[6] mode[8] size[10] end[2]
        name, size = deb[position : position + 16].strip(b" /"), int(deb[position + 48 : position + 58])
        position += 60
        if name.startswith(b"data.tar"):
            return deb[position : position + size]
        position += size + size % 2
    raise ValueError("Debian package without a data.tar member")
