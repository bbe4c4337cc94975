"""Compile-only devices of a TPU slice, and the trainer's step compiled for them by the TPU compiler.

The compiler is PyPI's libtpu, which needs no TPU. `trainers.pods.libtpu.prepare` must be called before this module is imported.
"""

import dataclasses
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from configs.experiment import Experiment
from models.errors import told
from trainers import step
from trainers.hlo import tables
from trainers.plan import Plan, make_plan
from trainers.runtime.chips import Options, PodError, Slice


class DoesNotFit(PodError):
    """Raised for a step that needs more memory than a chip has; `needed` and `limit` are in GiB."""

    def __init__(self, name: str, pod: str, needed: float, limit: float):
        super().__init__(f"{name} does not fit {pod}: {needed:.2f} of {limit:.2f} GiB a chip, {needed - limit:.2f} too much")
        self.needed, self.limit = needed, limit


class RefusedError(PodError):
    """Raised for a step that the compiler refuses, or whose program JAX cannot read."""


def devices(pod: Slice) -> list[Any]:
    """Returns the compile-only devices of all slices' chips; raises PodError for a slice that the compiler does not know."""
    chip, dims = pod.chip, pod.dims
    hosts = (2, 2, 1) if all(d % 2 == 0 for d in dims[:2]) else (1, 1, 1)
    wrap = pod.wrap if chip.torus == 3 else (*pod.wrap, False)
    try:
        description = topologies.get_topology_desc(
            topology_name=pod.name,
            platform="tpu",
            chip_config_name=chip.config,
            chips_per_host_bounds=hosts,
            num_slices=pod.slices,
            wrap=wrap,
        )
    except Exception as error:  # JAX raises the library's errors unchanged
        first, *_ = str(error).splitlines()
        raise PodError(f"--topology {pod}: the compiler has no such slice ({first[:120]})") from None
    return list(description.devices)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step compiled for a slice.

    Attributes:
      text: the scheduled program.
      peak: peak memory of a device in bytes, as the compiler counts it.
      memory: the same by category.
      host: bytes in the host's memory for a device.
      seconds: time that compiling took.
    """

    plan: Plan
    text: str
    peak: int
    memory: dict[str, int]
    host: int
    seconds: float


def compile_for(e: Experiment, pod: Slice, options: Options) -> Compiled:
    """Compiles an experiment's own train step.

    Raises:
      DoesNotFit: the program needs more memory than a chip has.
      RefusedError: the compiler refuses the step, or JAX cannot read the program.
    """
    plan = make_plan(e, devices(pod))
    began = time.time()
    try:
        compiled = step.compile_step(plan, options)
    except jax.errors.JaxRuntimeError as error:
        if not (sizes := parse_out_of_memory(str(error))):
            raise RefusedError(f"{e.name}: the compiler refuses the step on {pod}: {told(error):.300}") from error
        raise DoesNotFit(e.name, str(pod), *(pod.chip.devices * size for size in sizes)) from None
    analysis: Any = compiled.memory_analysis()
    host = analysis.host_argument_size_in_bytes + analysis.host_temp_size_in_bytes
    memory = tables.step_memory(plan, compiled)
    return Compiled(plan, _text(compiled, pod), analysis.peak_memory_in_bytes, memory, host, time.time() - began)


def _text(compiled: jax.stages.Compiled, pod: Slice) -> str:
    try:
        return compiled.as_text() or ""
    except jax.errors.JaxRuntimeError as error:  # it has instructions that the compiler is newer than
        why = f"jax {jax.__version__} cannot read the compiled program: {told(error):.160}"
        raise RefusedError(f"--topology {pod}: {why}") from None


def parse_out_of_memory(message: str) -> tuple[float, float] | None:
    """Returns (needed, limit) in GiB from the compiler's out-of-memory message; None for any other message."""
    match = re.search(r"([\d.]+)([GT])\)? (?:of|exceeds available HBM) \(?([\d.]+)G", message)
    return (float(match[1]) * {"G": 1, "T": 1024}[match[2]], float(match[3])) if match else None
