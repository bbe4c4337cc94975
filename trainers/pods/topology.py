"""Devices of a TPU slice that is not there, and the trainer's step compiled for them by the real compiler.

PyPI's libtpu is that compiler; it needs no TPU. `trainers.pods.libtpu.prepare` must come before this module is imported.
"""

import dataclasses
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from configs.experiment import Experiment
from data.reading.batches import batch_shapes
from trainers import step
from trainers.chips import Options, PodError, Slice
from trainers.plan import Plan, make_plan
from trainers.programs import tables


class DoesNotFit(PodError):
    """A step that needs more memory than a chip has; `needed` and `limit` in GiB."""

    def __init__(self, name: str, where: str, needed: float, limit: float):
        super().__init__(
            f"{name} does not fit {where}: {needed:.2f} of {limit:.2f} GiB a chip, {needed - limit:.2f} too much"
        )
        self.needed, self.limit = needed, limit


def devices(where: Slice) -> list[Any]:
    """One compile-only device for each chip; raises PodError for a slice that the compiler does not know."""
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
    """A step compiled for a slice.

    Attributes:
      text: the scheduled program.
      peak: bytes of a chip's memory in use at once, as the compiler counts them.
      memory: the same by category.
      seconds: that compiling took.
    """

    plan: Plan
    text: str
    peak: int
    memory: dict[str, int]
    seconds: float


def compile_for(e: Experiment, where: Slice, options: Options) -> Compiled:
    """Compiles an experiment's own train step.

    Raises:
      DoesNotFit: the program needs more memory than a chip has.
    """
    p = make_plan(e, devices(where))
    began = time.time()
    try:
        compiled = step.compile_step(p, batch_shapes(e.data), options)
    except jax.errors.JaxRuntimeError as error:
        if not (found := too_much(str(error))):
            raise
        raise DoesNotFit(e.name, str(where), *found) from None
    found: Any = compiled.memory_analysis()
    parameters = sum(info.bytes_per_device for info in p.parameters)
    optimizer = tables.optimizer_bytes(p)
    output = found.output_size_in_bytes - found.alias_size_in_bytes
    batch = found.argument_size_in_bytes - parameters - optimizer
    memory = {"parameters": parameters, "optimizer": optimizer, "batch": batch, "other": output}
    memory["temporary"] = found.peak_memory_in_bytes - sum(memory.values())
    return Compiled(p, compiled.as_text() or "", found.peak_memory_in_bytes, memory, time.time() - began)


def too_much(message: str) -> tuple[float, float] | None:
    """(needed, limit) in GiB from what the compiler says of a program that does not fit; None if it says something else."""
    found = re.search(r"([\d.]+)G\)? (?:of|exceeds available HBM) \(?([\d.]+)G", message)
    return (float(found[1]), float(found[2])) if found else None
