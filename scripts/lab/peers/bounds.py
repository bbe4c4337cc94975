"""The bounds of a machine: its fastest matrix product on all cores, and the bandwidth of its memory.

    python -m scripts.lab.peers.bounds numpy        # or jax, or torch: prints one JSON object

A product is of two square float32 matrices, as large as takes a tenth of a second; the best of all counts. Bandwidth is that of
STREAM's copy and triad (McCalpin 1995), a = b and a = b + s c, by NumPy in a thread for each CPU, in bytes that the operation
reads and writes. Processes inherit what holds them to an instruction set (scripts/lab/peers/machine.py).

This module needs the standard library and the library that it measures.
"""

import concurrent.futures
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

LONG, TIMES = 0.1, 5  # seconds of the largest product; how often each is computed
ELEMENTS, BLOCK = 1 << 25, 1 << 15  # of an array, more than caches hold, and of a part that a first-level cache holds

Make = Callable[[int], Callable[[], Any]]  # a product of matrices of so many rows, which returns when it is done


def fastest(make: Make, long: float = LONG) -> float:
    """Returns the FLOP/s of the fastest product: of 512 rows, 1024, ... until one takes `long` seconds."""
    size, best, seconds = 512, 0.0, 0.0
    while seconds < long:
        product = make(size)
        for _ in range(TIMES):
            began = time.perf_counter()
            product()
            seconds = time.perf_counter() - began
            best = max(best, 2.0 * size**3 / seconds)
        size *= 2
    return best


def bandwidth(elements: int = ELEMENTS) -> dict[str, float]:
    """Returns bytes per second of "copy" and "triad", the best of some runs, on float32 arrays of so many elements."""
    import numpy as np

    threads = os.cpu_count() or 1
    a, b, c = (np.ones(elements, np.float32) for _ in range(3))

    def copy(at: slice) -> None:
        a[at] = b[at]

    def triad(at: slice) -> None:  # NumPy has no such operation: of a block the product is still in the cache for the sum
        for start in range(at.start, at.stop, BLOCK):
            part = slice(start, min(start + BLOCK, at.stop))
            np.multiply(c[part], np.float32(3), out=a[part])
            np.add(a[part], b[part], out=a[part])

    shares = [slice(elements * i // threads, elements * (i + 1) // threads) for i in range(threads)]
    result = {}
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for name, operation, arrays in (("copy", copy, 2), ("triad", triad, 3)):
            seconds = []
            for _ in range(TIMES):
                began = time.perf_counter()
                list(pool.map(operation, shares))
                seconds.append(time.perf_counter() - began)
            result[name] = arrays * a.nbytes / min(seconds)
    return result


def _numpy() -> dict[str, Any]:
    import numpy as np

    def make(size: int) -> Callable[[], Any]:
        x = np.ones((size, size), np.float32)
        out = np.empty_like(x)
        return lambda: np.matmul(x, x, out=out)

    return {"flops": fastest(make), **bandwidth(), "version": np.__version__}


def _jax() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    def make(size: int) -> Callable[[], Any]:
        x = jnp.ones((size, size), jnp.float32)
        product = jax.jit(jnp.matmul).lower(x, x).compile()
        return lambda: product(x, x).block_until_ready()

    return {"flops": fastest(make), "version": jax.__version__}


def _torch() -> dict[str, Any]:
    import torch  # pyright: ignore[reportMissingImports]

    def make(size: int) -> Callable[[], Any]:
        x = torch.ones(size, size)
        out = torch.empty_like(x)
        return lambda: torch.matmul(x, x, out=out)

    capability = torch.backends.cpu.get_cpu_capability()
    return {"flops": fastest(make), "version": torch.__version__, "capability": capability}


MEASURED = {"numpy": _numpy, "jax": _jax, "torch": _torch}

if __name__ == "__main__":
    print(json.dumps(MEASURED[sys.argv[1]]()))
