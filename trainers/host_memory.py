"""Memory that a process on CPUs keeps from one training step to the next.

XLA asks for a program's temporary memory anew at every run. glibc maps what is large afresh and returns it afterwards, so that
each step waits for the kernel to clear some gigabytes, page by page: a fifth of a step's time (docs/LOG.md). Here glibc is told
to keep what it has, and given holes into which a program's memory fits each time. Nothing changes under another C library, nor
where one of glibc's own variables, MALLOC_ARENA_MAX and the like, says what is wanted.
"""

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

SLACK = 2**20  # beyond what a program asks for: aligning it costs some bytes, which small pieces then take
_library: ctypes.CDLL | None = None  # once it has been told


def keep() -> None:
    """Has freed memory stay with the process. Comes before its threads start: each would map large pieces for itself."""
    global _library
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    # <malloc.h>'s M_ARENA_MAX, M_MMAP_MAX and M_TRIM_THRESHOLD (never).
    for option, value in ((-8, 1), (-4, 0), (-1, -1)):
        library.mallopt(option, value)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    _library = library


def make_room(compiled: "jax.stages.Compiled", runs: int = 2) -> None:
    """Where memory is kept, sets aside room for so many runs at once of a compiled program on each of the process's devices.

    Without it, each run that finds its room too small by a few bytes takes new memory. Room takes none until it is used.
    """
    if _library:
        import jax

        _dig(_library, 256, 2**22)  # for all smaller pieces, which would otherwise settle in the large ones
        memory = compiled.memory_analysis()
        assert memory is not None
        _dig(_library, runs * jax.local_device_count(), memory.temp_size_in_bytes + SLACK)


def _dig(library: ctypes.CDLL, holes: int, size: int) -> None:
    """Leaves free holes of a size, with a small piece after each that keeps them apart."""
    found = [(library.malloc(size), library.malloc(64))[0] for _ in range(holes)]
    for hole in found:
        library.free(hole)
