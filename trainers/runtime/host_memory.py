"""Keeps a process's memory from one training step to the next, on CPUs.

XLA allocates a program's temporary memory anew at every run. glibc maps large allocations afresh and returns them afterwards,
so each step waits for the kernel to clear some gigabytes, page by page: a fifth of its time (docs/LOG.md). glibc can keep
the memory instead, but only for the thread that started the process; scripts.cli.use_devices therefore has programs of one
device run in the calling thread.
"""

import ctypes
import math
import os
import platform
import resource

import jax

# Options of mallopt (from <malloc.h>) that keep memory: how many allocations may be mapped, free bytes at which to return them.
KEPT = {-4: 0, -1: -1}  # M_MMAP_MAX: none; M_TRIM_THRESHOLD: never


def keep() -> None:
    """Tells glibc to keep freed memory, where the devices are CPUs.

    Does nothing under other C libraries, nor where the user has set one of glibc's own variables, such as
    MALLOC_TRIM_THRESHOLD_.
    """
    configured = any(name.startswith("MALLOC_") for name in os.environ)
    if jax.default_backend() == "cpu" and platform.libc_ver()[0] == "glibc" and not configured:
        for option, value in KEPT.items():
            ctypes.CDLL(None).mallopt(option, value)


def memory_gib() -> float:
    """Returns the peak memory in GiB of the fullest local device, or of this process where the backend does not report it."""
    peaks = [peak for peak in device_gib() if not math.isnan(peak)]
    return max(peaks, default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def device_gib() -> list[float]:
    """Returns the peak memory in GiB of each local device, NaN where the backend does not report it."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return [s.get("peak_bytes_in_use", math.nan) / 2**30 for s in stats]
