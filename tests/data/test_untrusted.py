"""Files that others made: opened only where they are files, and refused in one line."""

import os
import zipfile
from pathlib import Path

import pytest

from data import paths, untrusted
from data.reading.caches import cache_folder
from data.task import DataError
from data.text.config import TextData
from models.errors import UserError


class OddError(UserError):
    """The caller's own class."""


@pytest.mark.parametrize("name", ["../secret", "/dev/zero", "a/../../secret", "", ".", "a\0b"])
def test_a_name_that_leaves_its_folder_is_refused(tmp_path, name):
    """Whatever file stands there: it is not opened."""
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "folder" / "a").mkdir(parents=True)
    with pytest.raises(OddError, match=r"is no file of the folder$"):
        untrusted.member(tmp_path / "folder", name, OddError)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.mkdir(), "is no regular file"),
        (lambda path: path.symlink_to("f"), "cannot be opened"),
        (lambda path: None, "is missing"),
        (lambda path: path.write_bytes(b"[" * 100_000 + b"]" * 100_000), "is damaged: it is nested more than 100 deep"),
        (lambda path: path.write_bytes(b'{"a": ' * 101 + b"{}" + b"}" * 101), "is damaged: it is nested more than 100 deep"),
        (lambda path: path.write_bytes(b"\xff{}"), "is damaged: byte 0 is no UTF-8"),
        (lambda path: path.write_bytes(b'{"a": ' + b"1" * 5000 + b"}"), "is damaged: Exceeds the limit"),
        (lambda path: path.write_bytes(b"[]"), "is damaged: expected an object"),
    ],
)
def test_what_is_no_sound_json_file_is_refused(tmp_path, make, reason):
    """A pipe is not waited for and a device not read; the error is one line of the class that was asked for."""
    make(tmp_path / "f")
    with pytest.raises(OddError, match=reason) as caught:
        untrusted.read_json(tmp_path / "f", OddError)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    """Its size is known before it is opened."""
    (tmp_path / "f").write_bytes(b"12345")
    assert untrusted.read_bytes(tmp_path / "f", OddError, most=5) == b"12345"
    with pytest.raises(OddError, match="has 5 bytes, more than 4"):
        untrusted.read_bytes(tmp_path / "f", OddError, most=4)


def test_lines_are_read_one_at_a_time_and_no_longer_than_the_bound(tmp_path):
    """Only a line feed ends one; a line that is too long is not read to its end, and the error names it."""
    (tmp_path / "f").write_bytes("\ufeffa\u2028b\r\n\nlast".encode())
    assert list(untrusted.lines(tmp_path / "f", OddError)) == [(1, "a\u2028b\r\n"), (2, "\n"), (3, "last")]
    (tmp_path / "f").write_bytes(b"[1]\n\n[2]\n[3" + b" " * 100)
    read = untrusted.json_lines(tmp_path / "f", OddError, list)
    assert [next(read), next(read)] == [(1, [1]), (3, [2])]
    with pytest.raises(OddError, match=r"f, line 4 is damaged: Expecting"):
        next(read)
    with pytest.raises(OddError, match=r"f, line 4 has more than 50 bytes$"):
        list(untrusted.lines(tmp_path / "f", OddError, most=50))
    (tmp_path / "f").write_bytes(b"a\n\xff")
    with pytest.raises(OddError, match=r"f, line 2 is damaged: byte 0 is no UTF-8$"):
        list(untrusted.lines(tmp_path / "f", OddError))


def test_a_file_without_a_size_is_not_read_without_end():
    """Files of /proc say that they have 0 bytes, and some have no end."""
    with pytest.raises(OddError, match=r"^/proc/self/status has more than the 0 bytes that it says$"):
        untrusted.read_bytes(Path("/proc/self/status"), OddError)


@pytest.mark.parametrize("comment", [b"", b"a comment"])
@pytest.mark.parametrize("count", [3, 70_000])
def test_a_list_of_more_files_than_any_has_is_not_read(count, comment, tmp_path, monkeypatch):
    """With and without a comment behind it, and as one of 64 bits."""
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        for number in range(count):
            archive.writestr(str(number), b"")
        archive.comment = comment
    size = sum(46 + len(str(number)) for number in range(count))
    assert untrusted.zipped(tmp_path / "f.zip", OddError) == tmp_path / "f.zip"
    monkeypatch.setattr(untrusted, "DIRECTORY", size - 1)
    with pytest.raises(OddError, match=rf"f\.zip has {size:,} bytes in its list of files, more than {size - 1:,}$"):
        untrusted.zipped(tmp_path / "f.zip", OddError)


def test_the_bounds_are_those_of_the_documents():
    """docs/WEIGHTS.md lists what a file may have."""
    text = (paths.ROOT / "docs" / "WEIGHTS.md").read_text()
    values = [value for name, value in vars(untrusted).items() if name.isupper() and isinstance(value, int)]
    assert len(values) > 12 and not [value for value in values if f"{value:,}" not in text]


def test_errors_are_one_line_of_bounded_length():
    """Whatever they quote: line breaks become blanks, and the middle of what is too long is left out."""
    text = str(OddError("first\nsecond\u2028" + "x" * 10_000 + "last"))
    assert text.startswith("first second xxx") and text.endswith("last") and len(text) < 5000


def test_a_cache_of_a_foreign_experiment_is_looked_for_among_the_caches_alone():
    """The name of a cache may come from somebody's release."""
    with pytest.raises(DataError, match=r"data\.cache='\.\./\.\.' is no name of a cache"):
        cache_folder(TextData(cache="../..", batch_size=1, length=1))


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_nothing_is_written_through_a_link(tmp_path, target):
    """Neither a new folder, nor a run's, nor a file in it, though the link leads to a folder, or to nothing yet."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(paths.LinkError, match="link is a link"), paths.new_folder(tmp_path / "link"):
        pass
    with pytest.raises(paths.LinkError, match="link is a link"):
        paths.owned_folder(tmp_path / "link")
    paths.owned_folder(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / target)
    with pytest.raises(paths.LinkError, match=r"metrics\.jsonl is a link"):
        paths.owned_folder(tmp_path / "run")
    assert not list((tmp_path / "elsewhere").iterdir()) and not (tmp_path / "nowhere").exists()
