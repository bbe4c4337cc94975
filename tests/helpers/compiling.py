"""How tests compile: they compile more than they compute."""

import itertools

# The fusions of XLA's CPU compiler go through MLIR, whose passes take about half of the time of a training step's compilation.
CHEAP = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
_SHARED = 64  # programs a context; what a program leaves in one is not freed before it


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
