"""Devices of a TPU slice that is not there, and the trainer's step compiled for them by the real compiler.

PyPI's libtpu is that compiler; it needs no TPU. `prepare` must come before JAX is imported.
"""

import dataclasses
import importlib.util
import os
import time
from typing import Any

from configs.schema import Experiment
from trainers.pod.chips import PodError, Slice

INSTALL = "the TPU compiler is not installed: run `make setup DEVICE=plan`"
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # what runs here; TPUs are only compiled for
    "TPU_SKIP_MDS_QUERY": "1",  # no cloud machine to ask about itself
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock is for chips
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def prepare() -> None:
    """Sets the environment that compiling for absent TPUs needs; raises PodError without libtpu."""
    if importlib.util.find_spec("libtpu") is None:
        raise PodError(INSTALL)
    os.environ.update(ENVIRONMENT)


def devices(where: Slice) -> list[Any]:
    """One compile-only device for each chip; raises PodError for a slice that the compiler does not know."""
    from jax.experimental import topologies

    chip, dims = where.chip, where.dims
    hosts = (2, 2, 1) if all(d % 2 == 0 for d in dims[:2]) else (1, 1, 1)
    wrap = where.wrap if chip.torus == 3 else (*where.wrap, False)
    try:
        found = topologies.get_topology_desc(
            topology_name=str(where), platform="tpu", chip_config_name=chip.config, chips_per_host_bounds=hosts,
            num_slices=1, wrap=wrap,
        )  # fmt: skip
    except Exception as error:  # JAX raises what the library says as it comes
        first, *_ = str(error).splitlines()
        raise PodError(f"--topology {where}: the compiler has no such slice ({first[:120]})") from None
    return list(found.devices)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step compiled for a slice: its program's text, its memory in bytes per chip by category, and how long it took."""

    plan: Any
    text: str
    memory: dict[str, int]
    seconds: float


def compile_for(e: Experiment, where: Slice, options: Any) -> Compiled:
    """Compiles an experiment's own train step.

    Raises:
      PodError: the program needs more memory than a chip has; the message says how much.
    """
    from data.batches import batch_shapes
    from trainers import state, step

    p = state.plan(e, devices(where))
    began = time.time()
    compiled = step.compile_step(p, batch_shapes(e.data), options)
    return Compiled(p, compiled.as_text(), compiled.memory_analysis(), time.time() - began)
