"""Ends a command with one line and code 75 where SIGTERM or SIGINT comes before it listens to them by itself.

It is imported before everything else, because imports alone take seconds. Python calls handlers between two of its own
instructions: a signal that comes while it waits for the other processes to start is heard when they have.
"""

import os
import signal
import sys
from typing import Any, NoReturn


def stop(number: int, frame: Any) -> NoReturn:
    del frame
    line = f"error: stopped by {signal.Signals(number).name}; run the same command again\n"
    os.write(2, line.encode())  # a print may be interrupted in its middle
    sys.exit(75)


def listen() -> None:
    """Begins to listen, for as long as nothing else does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
