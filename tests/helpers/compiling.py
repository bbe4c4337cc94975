"""How tests compile: they compile more than they compute.

With $SHARDZOO_DEFAULTS set (make test-defaults) they compile as users do, and draw with JAX's own generator.
"""

import itertools
import os
import subprocess
import sys

from trainers.runtime import xla_flags

# The fusions of XLA's CPU compiler go through MLIR, whose passes take about half of the time of a training step's compilation.
_WISHES = ("--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false")
_SHARED = 64  # programs a context; what a program leaves in one is not freed before it


def known_flags(flags: tuple[str, ...]) -> str:
    """Returns those of these flags that the installed jaxlib has, as a text for $XLA_FLAGS.

    XLA ends the process at a flag that it does not know, and releases of jaxlib drop flags: a process of its own asks for each.
    """
    program = "from jaxlib import _jax; _jax.CompileOptions().executable_build_options.debug_options"
    asked = [
        subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"XLA_FLAGS": flag}, stderr=subprocess.DEVNULL)
        for flag in flags
    ]
    return " ".join(flag for flag, process in zip(flags, asked, strict=True) if process.wait() == 0)


DEFAULTS = bool(os.environ.get("SHARDZOO_DEFAULTS"))
# Asked once: workers of pytest-xdist, and processes that tests start, inherit the answer.
CHEAP = "" if DEFAULTS else os.environ.get("SHARDZOO_CHEAP_FLAGS") or known_flags(_WISHES)
os.environ["SHARDZOO_CHEAP_FLAGS"] = CHEAP
xla_flags.add()  # as commands do


def share_contexts() -> None:
    """Lowers programs in an MLIR context that others used before. A context of its own takes a program 6 ms, a fifth of the
    compilation of one operation, as tests call thousands. JAX has no option for it; where its function has another name, each
    program has its own."""
    from jax._src.interpreters import mlir

    make, calls, context = getattr(mlir, "make_ir_context", None), itertools.count(), None
    if make is None:
        return

    def shared():
        nonlocal context
        if next(calls) % _SHARED == 0:
            context = make()
        return context

    mlir.make_ir_context = shared
