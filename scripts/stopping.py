"""Ends a command with one line and code 75 where SIGTERM or SIGINT comes before it listens to them by itself.

It is imported before everything else, because imports alone take seconds. Python calls handlers between two of its own
instructions: a signal that comes while it waits for the other processes to start is heard when they have.

The process ends within the handler. An exception would be lost where Python or a library catches all of them: in callbacks, as
importlib has for every module, in finalizers, and in C code that imports a module. What a preparation had begun is left behind,
for the next one to remove (data/paths.py, `scratch`).
"""

import contextlib
import os
import signal
import sys
from typing import Any, NoReturn


def stop(number: int, frame: Any) -> NoReturn:
    del frame
    line = f"error: stopped by {signal.Signals(number).name}; run the same command again\n"
    with contextlib.suppress(Exception):  # a print may be interrupted in its middle, and then cannot be ended
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
    os._exit(75)


def listen() -> None:
    """Begins to listen, for as long as nothing else does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
