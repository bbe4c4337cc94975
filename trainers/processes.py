"""What the processes of one run agree on. A process that is alone agrees with itself."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils


def anywhere(flag: bool) -> bool:
    """Whether the flag is set on any process; all processes meet here."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def of_all(*values: float) -> np.ndarray:
    """The values of every process, in float32, a row each; all processes meet here."""
    mine = np.array(values, np.float32)
    return multihost_utils.process_allgather(mine) if jax.process_count() > 1 else mine[None]


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
