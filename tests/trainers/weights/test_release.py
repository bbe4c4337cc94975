"""A release's checksums: whatever is read of it was compared with one."""

import os
from pathlib import Path

import pytest

from data import paths
from tests.helpers.signatures import keys
from trainers.weights import release, signing

CONTENT = {"model.safetensors": b"weights", "experiment.json": b"{}", "tokenizer.json": b"words"}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A sound release, as far as checksums can tell."""
    folder = tmp_path / "release"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    (folder / release.SUMS).write_text("".join(f"{paths.sha256(folder / name)}  {name}\n" for name in CONTENT))
    return folder


def test_a_sound_release_is_accepted(folder):
    """Every file has its checksum; a file that is never read, such as notes, needs none."""
    (folder / "notes.txt").write_text("mine")
    release.verify(folder)


@pytest.mark.parametrize("name", [*CONTENT, "manifest.json", "source.model"])
def test_a_file_that_is_read_must_be_listed(folder, name):
    """Else flipped bits, or a vocabulary that somebody added, would be believed."""
    sums = folder / release.SUMS
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if not line.endswith(f"  {name}\n")))
    (folder / name).write_bytes(b"anything")
    with pytest.raises(release.ReleaseError, match=f"SHA256SUMS does not list {name}"):
        release.verify(folder)


@pytest.mark.parametrize("name", ["/dev/zero", "../release/model.safetensors", ".", "sub/model.safetensors"])
def test_only_files_of_the_folder_can_be_listed(folder, name):
    """An absolute name or one that leaves the folder is refused before anything is read: /dev/zero has no end."""
    with (folder / release.SUMS).open("a") as file:
        file.write(f"{'0' * 64}  {name}\n")
    with pytest.raises(release.ReleaseError, match="which is no file of the folder"):
        release.verify(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "SHA256SUMS"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_only_regular_files_are_read(folder, make, name):
    """A pipe would wait for ever and a link to /dev/zero has no end: neither is opened."""
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(release.ReleaseError, match="is no regular file"):
        release.verify(folder)


@pytest.mark.parametrize(
    "line",
    [b"no checksum", b"0" * 63 + b"  README.md", b"0" * 64 + b" README.md", b"\xff\xfe", b"", b"0" * 64 + b"  experiment.json"],
)
def test_a_damaged_list_is_one_line(folder, line):
    """A line that is no checksum and name, bytes that are no UTF-8, and a file with two checksums are refused by their place."""
    with (folder / release.SUMS).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(release.ReleaseError, match=r"line 4 of SHA256SUMS is damaged|is no UTF-8") as caught:
        release.verify(folder)
    assert "\n" not in str(caught.value)


def test_a_signature_is_its_owners_and_of_these_files(folder, tmp_path, monkeypatch):
    """Who has the public key sees that another has signed, or that the checksums were changed together with a file."""
    private, public = keys(tmp_path, "own")
    _, others = keys(tmp_path, "others")
    with pytest.raises(signing.SignatureError, match=r"SHA256SUMS\.sig is missing"):
        release.verify(folder, public)
    signing.sign(folder / release.SUMS, private)
    release.verify(folder, public)
    for wrong in (others, private):
        with pytest.raises(signing.SignatureError, match=r"is not what the owner of|is damaged"):
            release.verify(folder, wrong)
    (folder / "model.safetensors").write_bytes(b"others")
    lines = (f"{paths.sha256(folder / name)}  {name}\n" for name in CONTENT)
    (folder / release.SUMS).write_text("".join(lines))
    release.verify(folder)
    monkeypatch.setenv(release.KEY, str(public))
    with pytest.raises(signing.SignatureError, match="is not what the owner of"):
        release.Release(folder)
