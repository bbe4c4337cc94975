"""The checkpoints of a run in its audit log: which came, which went, and the digest of each one's `meta`.

`meta` holds a checksum of every array of its checkpoint, and of itself (trainers/checkpoints/checkpoint.py).
"""

import contextlib
from pathlib import Path

from etils import epath

from models.errors import UserError
from trainers import runlog
from trainers.audit import log
from trainers.checkpoints import bucket

META = "meta/metadata"


class Saved:
    """Logs what has changed among the checkpoints since the last time, also since the last start.

    A line about the start names the files that are not as the run left them: `differs`.

    Args:
      folder: of the checkpoints.
      leader: whether this process writes the logs.
    """

    def __init__(self, workdir: Path, folder: epath.Path, leader: bool):
        self._workdir, self._leader = workdir, leader
        self._files: dict[str, str | None] = {}
        self._place = place(workdir, folder)
        if leader:
            with contextlib.suppress(UserError, OSError):  # a store that does not answer, which the restore reports
                self._files = log.files_of(workdir / log.FILE)
                self._note("at a start", log.differing(workdir))

    def note(self, why: str) -> None:
        """Logs the checkpoints that came or went, if any did; a store that cannot be read for now is left to the next call.

        Raises:
          StoreError: the log cannot be written.
        """
        if self._leader:
            self._note(why)

    def _note(self, why: str, differs: list[str] | None = None) -> None:
        known = {name for name, digest in self._files.items() if digest and name.startswith(self._place)}
        try:
            with bucket.as_files():
                there = metas(self._workdir, self._place)
            files = {name: digest for name in there - known if (digest := log.digest(self._workdir, name))}
        except (UserError, OSError):
            return
        files |= dict.fromkeys(sorted(known - there))
        changed = [name for name in differs or () if name not in files]
        if files or changed:
            with runlog.names_full_disks(self._workdir / log.FILE):
                log.record("checkpoints", self._workdir, why=why, files=files, **({"differs": changed} if changed else {}))
        self._files |= files


def place(workdir: Path, folder: epath.Path) -> str:
    """Returns the log's name of the folder of a run's checkpoints, with a "/": "checkpoints/", another path, or an address."""
    return "checkpoints/" if Path(folder) == workdir / "checkpoints" else f"{folder}/"


def metas(workdir: Path, place: str) -> set[str]:
    """Returns the names of the `meta` of all checkpoints of a run that are there, and whole.

    Args:
      place: as `place` returns it.
    """
    folder = epath.Path(place) if place != "checkpoints/" else epath.Path(workdir / place)
    return {f"{place}{path.name}/{META}" for path in folder.iterdir() if path.name.isdigit() and bucket.whole(path)}
