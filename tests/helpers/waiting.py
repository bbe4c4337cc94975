"""Waiting for other processes, without a deadline that a loaded machine could reach."""

import time
from collections.abc import Callable

HANGS = 3600  # seconds without an end after which a process hangs, whatever the load


def wait_until(happened: Callable[[], object], what: str | Callable[[], str], *, every: float = 0.02) -> None:
    """Returns once `happened` is true; fails with `what` after HANGS."""
    deadline = time.monotonic() + HANGS
    while not happened():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(every)
