"""Stages of a preparation: reports of their progress, and the set-up of TensorFlow."""

import contextlib
import os
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
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
