"""Functions that run as one program each: operations one by one cost a compilation of 25 ms each."""

from collections.abc import Callable
from typing import Any

import jax


def one_program(function: Callable[..., Any], *static: str) -> Callable[..., Any]:
    """Returns the function, jitted; it returns NumPy's arrays, on which no operation is compiled.

    Args:
      static: names of the arguments that are no arrays.
    """
    jitted = jax.jit(function, static_argnames=static)
    return lambda *args, **kwargs: jax.device_get(jitted(*args, **kwargs))
