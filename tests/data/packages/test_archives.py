"""Archives: their members are read in place, and what claims or holds too much is refused before it is read."""

import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from data.packages import archives
from data.packages.archives import ArchiveError

CONTENT = {"package/a.txt": b"first", "package/b.json": b"{}"}


def deb(path: Path, payload: bytes, size: str = "") -> Path:
    """A Debian package with this payload, whose header says another size if one is given."""
    content = b"!<arch>\n"
    for name, data, said in (("debian-binary", b"2.0\n", ""), ("data.tar.xz", payload, size)):
        content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{said or len(data):<10}`\n".encode() + data
    path.write_bytes(content)
    return path


def tar(*members: tarfile.TarInfo) -> bytes:
    """An uncompressed tar archive of CONTENT and further headers, which nothing follows."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in CONTENT.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for member in members:
            made.write(member.tobuf())
    return made.getvalue()


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


def test_members_of_every_form(tmp_path):
    """Names and contents are the same from a zip file, a tarball and a Debian package; a pattern chooses."""
    with zipfile.ZipFile(tmp_path / "p.whl", "w") as zipped:
        for name, data in CONTENT.items():
            zipped.writestr(name, data)
    (tmp_path / "p.tgz").write_bytes(gzip.compress(tar()))
    for path in (tmp_path / "p.whl", tmp_path / "p.tgz", deb(tmp_path / "p.deb", lzma.compress(tar()))):
        assert dict(archives.members(path, "")) == CONTENT
        assert dict(archives.members(path, r"\.json$")) == {"package/b.json": b"{}"}


@pytest.mark.parametrize("size", ["-60", "x", "1 2"])
def test_a_member_of_no_size_is_refused(tmp_path, size):
    """A size of -60 would lead back to the same header, for ever."""
    with pytest.raises(ArchiveError, match=r"p\.deb is damaged: a member of"):
        archives.members(deb(tmp_path / "p.deb", b"", size), "")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_sizes_in_a_tar_archive_are_not_believed(tmp_path, kind):
    """Neither a member's nor a header's: they are compared with what the archive's own size lets expect."""
    (tmp_path / "p.tgz").write_bytes(gzip.compress(tar(header("huge", 1 << 40, kind))))
    with pytest.raises(ArchiveError, match=r"p\.tgz: .* hold more than|p\.tgz is damaged"):
        list(archives.members(tmp_path / "p.tgz", ""))


def test_a_small_archive_of_much_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """A zip file of zeros grows a thousandfold."""
    monkeypatch.setattr(archives, "_ALLOWED", 1 << 10)
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("zeros", bytes(1 << 20))
    with pytest.raises(ArchiveError, match="hold more than"):
        list(archives.members(tmp_path / "p.zip", ""))


@pytest.mark.parametrize("name", ["p.zip", "p.tgz", "p.deb", "p.rar"])
def test_what_is_no_archive_is_refused_in_one_line(tmp_path, name):
    """The line names a file that is no archive of its kind, or of any."""
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(ArchiveError, match=r"^[^\n]*p\.[^\n]*$"):
        list(archives.members(tmp_path / name, ""))
