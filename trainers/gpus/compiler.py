"""XLA's GPU compiler without a GPU: its environment, compile-only devices, and the trainer's step compiled for them.

The compiler is in JAX's own CUDA plugin, which compiles for a device that a text describes (trainers/gpus/chips.py). What it
chooses by measuring where there is a device, kernels of products and their tiles, stays its first choice.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from models.errors import told
from trainers.gpus.chips import Gpu, GpuError
from trainers.runtime import xla_flags

INSTALL = "XLA's GPU compiler is not installed: run `make setup DEVICE=plan-gpu`"
FOLDER = Path(sys.prefix) / "plan-gpu"  # outside site-packages: where JAX can import its CUDA plugin, it looks for GPUs
PLUGINS = ("xla_cuda13", "xla_cuda12")
HOST = 8  # GPUs of a host, which are joined by NVLink
# Products are cuBLAS's. By default XLA writes each in Triton and then measures both; unmeasured it has one tile for all of them,
# and jaxlib 0.10.2 refuses a program where a product cannot have it (one of Whisper large's convolutions).
OPTIONS = {"xla_gpu_enable_triton_gemm": "False"}
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # programs run on the CPU; GPUs are only compiled for
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def installed() -> bool:
    """Returns whether JAX's CUDA plugin is installed."""
    return any((Path(place) / "jax_plugins" / name).is_dir() for place in (*sys.path, FOLDER) for name in PLUGINS)


def prepare() -> None:
    """Sets the environment and lets Python import the plugin, before JAX is imported; raises GpuError without the plugin."""
    if not installed():
        raise GpuError(INSTALL)
    if FOLDER.exists() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    os.environ.update(ENVIRONMENT)
    xla_flags.add()


def topology_of(devices: int) -> str:
    """Returns "slices x hosts x devices of a host" of a number of GPUs; raises GpuError if they fill no hosts."""
    if devices > HOST and devices % HOST:
        raise GpuError(f"{devices} GPUs do not fill hosts of {HOST}: choose a layout of {devices // HOST * HOST}")
    return f"1x{max(1, devices // HOST)}x{min(devices, HOST)}"


def devices(gpu: Gpu, count: int) -> list[Any]:
    """Returns so many compile-only GPUs; raises GpuError where the plugin has no compiler for them."""
    from jax.experimental import topologies

    topology = topology_of(count)
    try:
        description = topologies.get_topology_desc(platform="cuda", topology=topology, target_config=gpu.target_config())
    except Exception as error:  # JAX raises the plugin's errors unchanged
        raise GpuError(f"{gpu.kind}: JAX's CUDA plugin does not compile for it without one ({told(error):.160})") from None
    return list(description.devices)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step compiled for GPUs.

    Attributes:
      plan: a `trainers.plan.Plan`.
      text: the scheduled program.
      peak: peak memory of a device in bytes, as the compiler counts it.
      memory: the same by category.
      seconds: time that compiling took.
    """

    plan: Any
    text: str
    peak: int
    memory: dict[str, int]
    seconds: float


def compile_for(e: Experiment, gpu: Gpu, options: dict[str, str]) -> Compiled:
    """Compiles an experiment's own train step with these compiler options beside OPTIONS.

    XLA keeps to .8 of a device's memory where it can, if need be by products that it computes again. A step that needs more than
    there is is compiled all the same.

    Raises:
      GpuError: the compiler refuses the program.
    """
    import jax

    from trainers import step
    from trainers.hlo import tables
    from trainers.plan import make_plan

    plan = make_plan(e, devices(gpu, e.layout.devices))
    began = time.time()
    try:
        compiled = step.compile_step(plan, OPTIONS | options)
    except jax.errors.JaxRuntimeError as error:
        raise GpuError(f"{e.name}: XLA's GPU compiler refuses the step: {told(error):.300}") from None
    seconds = time.time() - began
    memory = tables.step_memory(plan, compiled)
    return Compiled(plan, compiled.as_text() or "", sum(memory.values()), memory, seconds)
