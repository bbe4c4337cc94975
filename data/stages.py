"""Stages of a preparation: reports of their progress; and the libraries' own lines, which are not for users."""

import contextlib
import faulthandler
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Progress = Callable[[str], Any]  # called with each line of a report


@contextlib.contextmanager
def stage(name: str, progress: Progress) -> Iterator[None]:
    """Reports the start of a stage, and its seconds when it ends."""
    start = time.monotonic()
    progress(f"{name} ...")
    yield
    progress(f"{name}: {time.monotonic() - start:.1f} s")


def quiet_libraries() -> None:
    """Silences what libraries log: XLA's alarms about slow compilation and signals, and Orbax's and asyncio's pages of traceback
    about a save that fails, which is one line of `trainers.checkpoints.manager.Checkpoints`.

    Errors still arrive as exceptions, and what ends a process is still written. Must be called before JAX is imported, which
    reads $TF_CPP_MIN_LOG_LEVEL then; a level that the user sets stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def quiet_tensorflow() -> None:
    """Imports TensorFlow without log output, and leaves the accelerator to JAX; must be its first import."""
    quiet_libraries()
    # From 2.21 on, TensorFlow's libraries write lines about processors and drivers as they are loaded, whatever is set.
    with output_held_back() if "tensorflow" not in sys.modules else contextlib.nullcontext():
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")


@contextlib.contextmanager
def output_held_back() -> Iterator[None]:
    """Drops what libraries write to the process's standard error inside the block; if the block fails, it is shown.

    Python still says where a signal ends the process, as an instruction that the processor lacks does."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as written, open(os.dup(2), "wb", buffering=0) as terminal:
        os.dup2(written.fileno(), 2)
        watching = not faulthandler.is_enabled()
        if watching:
            faulthandler.enable(terminal)
        try:
            yield
        except BaseException:
            terminal.write(os.pread(written.fileno(), 1 << 20, 0))
            raise
        finally:
            if watching:
                faulthandler.disable()
            os.dup2(terminal.fileno(), 2)


_dropping = threading.Lock()
_droppers: list[int] = []  # the descriptors that are put back, by each block that is under way


@contextlib.contextmanager
def output_dropped() -> Iterator[None]:
    """Drops what is written to the process's standard error inside the block, in which several threads may be.

    For calls whose failure is an exception, and that end within milliseconds: lines of other threads are dropped too.
    """
    with _dropping:
        if not _droppers:
            sys.stderr.flush()
            with open(os.devnull, "wb") as nowhere:
                _droppers.append(os.dup(2))
                os.dup2(nowhere.fileno(), 2)
        else:
            _droppers.append(_droppers[0])
    try:
        yield
    finally:
        with _dropping:
            terminal = _droppers.pop()
            if not _droppers:
                os.dup2(terminal, 2)
                os.close(terminal)
