"""What the processes of one run agree on. A process that is alone agrees with itself."""

import collections
import contextlib
import hashlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from models.errors import UserError

T = TypeVar("T")

SHOWN = 4  # differences that an error names


class DisagreementError(UserError):
    """Processes of one run that differ, or one that cannot go on; the message says which, and in what."""


def anywhere(flag: bool) -> bool:
    """Whether the flag is set on any process; all processes meet here."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def of_all(*values: float) -> np.ndarray:
    """The values of every process, in float32, a row each; all processes meet here."""
    mine = np.array(values, np.float32)
    return multihost_utils.process_allgather(mine) if jax.process_count() > 1 else mine[None]


def agree(settings: Mapping[str, str]) -> None:
    """Compares settings with those of the other processes; all processes meet here.

    Only as many bytes as a hash has are exchanged, unless settings differ.

    Args:
      settings: values by name.

    Raises:
      DisagreementError: settings differ. It is raised on every process, with the same message, which names what differs and
        between which processes.
    """
    processes = jax.process_count()
    if processes == 1:
        return
    # Arrays can be gathered only where every process has as many devices as any other, which each sees for itself.
    devices = collections.Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        raise DisagreementError(disagreement([{"devices": str(devices[n])} for n in range(processes)]))
    text = json.dumps(settings, sort_keys=True).encode()
    summaries = _gather(hashlib.sha256(text).digest() + len(text).to_bytes(8))
    if len(set(summaries)) > 1:
        longest = max(int.from_bytes(summary[-8:]) for summary in summaries)
        raise DisagreementError(disagreement([json.loads(other) for other in _gather(text.ljust(longest))]))


def _gather(message: bytes) -> list[bytes]:
    """The messages of all processes, which must be equally long, in order; all processes meet here."""
    rows = multihost_utils.process_allgather(np.frombuffer(message, np.uint8))
    return [row.tobytes() for row in rows]


def disagreement(settings: Sequence[Mapping[str, str]]) -> str:
    """One line that names settings in which processes differ from process 0, for each the first process that does.

    Args:
      settings: of every process, values by name.
    """

    def value(number: int, name: str) -> str:
        text = settings[number].get(name, "none")
        return text if len(text) <= 100 else f"{text[:100]}..."

    found = []
    for name in sorted(set().union(*settings)):
        others = [n for n in range(len(settings)) if settings[n].get(name) != settings[0].get(name)]
        if others:
            found.append(f"process {others[0]} has {name}={value(others[0], name)}, process 0 has {value(0, name)}")
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"the processes of this run differ: {'; '.join(found[:SHOWN])}{more}"


def jointly(function: Callable[..., T], *args: Any) -> T:
    """Returns function(*args) if no process fails in it; all processes meet here, so that none waits for one that failed.

    Raises:
      Exception: the function's own, on a process where it fails.
      DisagreementError: on the other processes; it names one that failed.
    """
    try:
        result = function(*args)
    except Exception:
        of_all(True)
        raise
    failed = np.flatnonzero(of_all(False))
    if len(failed):
        raise DisagreementError(f"process {failed[0]} cannot go on; it says why")
    return result


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Inside, SIGTERM and SIGINT ask for a stop; yields a function, called after every step: whether to stop now.

    A signal to any process stops all of them, after the same step. A second SIGINT interrupts at once.
    """
    several = jax.process_count() > 1
    asked = threading.Event()

    def ask(number, frame):
        del frame
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()
        if several:
            os.kill(os.getpid(), signal.SIGTERM)

    # Of several processes, JAX's coordinator hears SIGTERM, from when they joined, and picks the call at which all stop:
    # one more than the highest number that it was last given. Steps would not do for that; a resumed run's begin late.
    calls = itertools.count(1)

    def picked() -> bool:
        return multihost_utils.reached_preemption_sync_point(next(calls))

    heard = [signal.SIGINT] if several else [signal.SIGINT, signal.SIGTERM]
    if threading.current_thread() is not threading.main_thread():  # Python hears no signals here
        heard = []
    old = {number: signal.signal(number, ask) for number in heard}
    try:
        yield picked if several else asked.is_set
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
