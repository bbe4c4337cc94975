"""Stages of a preparation: reports of their progress, and the set-up of TensorFlow."""

import contextlib
import faulthandler
import os
import sys
import tempfile
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


def quiet_tensorflow() -> None:
    """Imports TensorFlow without log output, and leaves the accelerator to JAX; must be its first import."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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
