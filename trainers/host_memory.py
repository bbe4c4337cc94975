"""Memory that a process on CPUs keeps from one training step to the next.

XLA asks for a program's temporary memory anew at every run. glibc maps what is large afresh and gives it back afterwards, so
that each step waits for the kernel to clear some gigabytes, page by page: a fifth of its time (docs/LOG.md). glibc can keep
what it has instead, but only for the thread that started the process; scripts.cli.use_devices therefore has programs of one
device run in the thread that asks for them.
"""

import ctypes
import os
import platform

import jax

# Options of mallopt, from <malloc.h>, and what keeps memory: pieces that may be mapped, free bytes at which to give back.
KEPT = {-4: 0, -1: -1}  # M_MMAP_MAX: none; M_TRIM_THRESHOLD: never


def keep() -> None:
    """Has memory that is freed stay with the process, where the devices are CPUs.

    Nothing changes under another C library than glibc, nor where one of glibc's own variables, MALLOC_TRIM_THRESHOLD_ and the
    like, says what is wanted.
    """
    told = any(name.startswith("MALLOC_") for name in os.environ)
    if jax.default_backend() == "cpu" and platform.libc_ver()[0] == "glibc" and not told:
        for option, value in KEPT.items():
            ctypes.CDLL(None).mallopt(option, value)
