"""Signs of life of a supervised process: a file in $SHARDZOO_ALIVE that it touches, for as long as its threads run.

The supervisor makes the file, called as the process's number in the run, and misses a process that has stopped or whose host is
out of reach. A process whose main thread waits for ever still touches it: the processes of a run look at each other's steps
(trainers/monitoring/stalls.py).
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "SHARDZOO_ALIVE"

_BEAT = 1.0  # seconds


def tell(variables: Mapping[str, str] = os.environ, beat: float = _BEAT) -> threading.Thread | None:
    """Starts the thread that touches this process's file; returns None where no supervisor has made one."""
    file = Path(variables.get(VARIABLE, ""), variables.get("JAX_PROCESS_ID", "0"))
    if VARIABLE not in variables or not file.exists():
        return None
    thread = threading.Thread(target=_touch, args=(file, beat), daemon=True, name="alive")
    thread.start()
    return thread


def _touch(file: Path, beat: float) -> None:
    while True:
        try:
            os.utime(file)
        except FileNotFoundError:  # the supervisor has removed it
            return
        except OSError:  # a file system that does not answer for now
            pass
        time.sleep(beat)


class Signs:
    """The files of a start's processes, as the supervisor sees them.

    Args:
      folder: made anew for each start; a folder that cannot be written has no files, and no process is missed then.
      processes: how many there are.
    """

    def __init__(self, folder: Path, processes: int):
        self.folder = folder
        self._seen: dict[int, int] = {}
        self._silent: dict[int, float] = {}
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(processes):
                (folder / str(number)).touch()
                self._silent[number] = 0.0

    def silent(self, number: int, seconds: float) -> float:
        """Returns for how many seconds a process has given no sign of life; 0 without a file.

        Args:
          seconds: since the last call. They count as one at most: this process may have been stopped itself meanwhile.
        """
        with contextlib.suppress(OSError):
            now = (self.folder / str(number)).stat().st_mtime_ns
            same = now == self._seen.get(number)
            self._seen[number] = now
            self._silent[number] = self._silent.get(number, 0.0) + min(seconds, 1.0) if same else 0.0
            return self._silent[number]
        return 0.0

    def close(self) -> None:
        """Removes the files, and their folder."""
        with contextlib.suppress(OSError):
            for file in self.folder.iterdir():
                file.unlink()
            self.folder.rmdir()
