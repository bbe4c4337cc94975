"""Flags of XLA that differ by release of jaxlib. They must be set before JAX looks for devices, so this imports no JAX."""

import importlib.metadata
import os

# From 0.12 on, XLA notes shardings by axes of the mesh. Where such a one meets one that is noted by devices, its partitioner
# copies the tensor whole to every device instead of exchanging shards: gradients of embeddings under `two_d`, layers on their way
# to the stages of an interleaved pipeline. The older notation is still there.
# TensorFlow's own XLA reads $XLA_FLAGS, too, and lacks this flag, but only where it compiles something; no preparation does.
_BY_RELEASE = {"0.12": {"xla_enable_hlo_sharding_v3": "false"}}

_LEVEL = "xla_backend_optimization_level"


def wanted(jaxlib: str) -> dict[str, str]:
    """Returns the flags for a version of jaxlib; none for a release that was not tried: XLA ends a process at an unknown flag."""
    return _BY_RELEASE.get(".".join(jaxlib.split(".")[:2]), {})


def add() -> None:
    """Adds the flags for the installed jaxlib to $XLA_FLAGS, except those that are set there."""
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{k}={v}" for k, v in wanted(importlib.metadata.version("jaxlib")).items() if k not in flags]
    if missing:
        os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()


def passes(level: int, platform: str) -> dict[str, str | bool]:
    """Returns the compiler options with which a program is compiled by LLVM's passes of this level, 0 to 3; none where $XLA_FLAGS
    names one, and for other platforms than "cpu". XLA's own choice is 3."""
    given = _LEVEL in os.environ.get("XLA_FLAGS", "")
    return {} if given or platform != "cpu" else {_LEVEL: str(level)}
