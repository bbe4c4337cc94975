"""Files and folders that are written whole: what a kill leaves, who removes it, and what stays."""

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from data import paths

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")  # the children do what is below alone, and are killed


def killed(work: Callable[[], None]) -> None:
    """Does this in a process of its own that is killed where the work ends, without a chance to clean up."""
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return
    try:
        work()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def left(folder: Path) -> list[str]:
    """Temporary folders in a folder."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def dies_in(context) -> Callable[[], None]:
    """Work that ends inside the context."""
    return lambda: context.__enter__()


@pytest.mark.integration
@pytest.mark.parametrize("make", [paths.scratch, paths.new_folder], ids=["scratch", "new_folder"])
def test_what_a_killed_process_left_is_removed_by_the_next_of_the_same_target(tmp_path, make):
    """A folder of another target stays; once the next one has ended, nothing is left of its own."""
    for name in ("cache", "other"):
        killed(dies_in(make(tmp_path / name)))
    assert len(left(tmp_path)) == 2
    with make(tmp_path / "cache"):
        (mine,) = [name for name in left(tmp_path) if name.startswith(".cache.")]
    (others,) = left(tmp_path)
    assert others.startswith(".other.") and mine != others


def test_a_folder_that_a_living_process_holds_stays(tmp_path):
    """Two that prepare the same target at once do not remove each other's work, and each removes its own."""
    with paths.scratch(tmp_path / "cache") as first:
        (first / "file").write_text("work")
        with paths.scratch(tmp_path / "cache") as second:
            assert (first / "file").read_text() == "work" and first != second
        assert left(tmp_path) == [first.name]
    assert not left(tmp_path)


def test_folders_that_are_no_scratch_stay(tmp_path):
    """Somebody's hidden folder beside the target is not removed, whatever its name looks like."""
    for name in (".cache.abcdefgh", ".cache.12345678.old", ".cache.unfinished", ".cache.abcdefgh.unfinished.d"):
        (tmp_path / name).mkdir()
    (tmp_path / ".cache.abcdefgh.unfinished").symlink_to(tmp_path / ".cache.unfinished")
    with paths.scratch(tmp_path / "cache"):
        pass
    assert len(left(tmp_path)) == 5


@pytest.mark.integration
def test_a_folder_that_was_taken_away_is_put_back(tmp_path, monkeypatch):
    """A process is killed between the renames of a folder that replaces another: the next one has the older, also if it fails."""
    target = tmp_path / "cache"
    target.mkdir()
    (target / "file").write_text("older")
    real = Path.rename

    def dies_second(self: Path, to: Path) -> Path:
        if self.name == "new":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, to)

    def replace() -> None:
        with paths.new_folder(target) as new:
            (new / "file").write_text("newer")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dies_second)
        killed(replace)
    assert not target.exists()
    with pytest.raises(RuntimeError), paths.new_folder(target):
        raise RuntimeError
    assert (target / "file").read_text() == "older" and not left(tmp_path)
    replace()
    assert (target / "file").read_text() == "newer"


@pytest.mark.integration
def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    """On a file system that cannot lock a folder, nobody knows who lives: all that others left stays, and the work is done."""

    def refuses(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    killed(dies_in(paths.scratch(tmp_path / "cache")))
    monkeypatch.setattr(fcntl, "flock", refuses)
    with paths.scratch(tmp_path / "cache") as folder:
        assert folder.is_dir() and len(left(tmp_path)) == 2
    assert len(left(tmp_path)) == 1


@pytest.mark.integration
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """A process that is killed before the last rename leaves the former text; the next one removes the rest."""
    page = tmp_path / "page.md"
    paths.write_whole(page, "first\n")

    def dies(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        killed(lambda: paths.write_whole(page, "second\n"))
    assert page.read_text() == "first\n" and len(left(tmp_path)) == 1
    paths.write_whole(page, "third\n")
    assert page.read_text() == "third\n" and not left(tmp_path)


def test_a_temporary_folder_may_hold_another(tmp_path):
    """Writing inside a temporary folder does not wait for the lock that its process holds."""
    with paths.scratch(tmp_path / "cache") as folder, paths.new_folder(folder / "inner") as new:
        (new / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []
    with paths.scratch(tmp_path / "cache") as folder:
        paths.write_whole(folder / "page", "x")
        assert (folder / "page").read_text() == "x"
