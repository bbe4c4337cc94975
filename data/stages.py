"""What the stages of a preparation have in common: how they tell what they do, and how they use TensorFlow."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

Progress = Callable[[str], Any]  # is told a line


@contextlib.contextmanager
def stage(name: str, progress: Progress) -> Iterator[None]:
    """Tells that a stage begins, and when it has ended, after how many seconds."""
    start = time.monotonic()
    progress(f"{name} ...")
    yield
    progress(f"{name}: {time.monotonic() - start:.1f} s")


def quiet_tensorflow() -> None:
    """Imports TensorFlow, made to say nothing and to leave the accelerator to JAX. The first of its imports."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
