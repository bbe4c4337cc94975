"""TPU generations: the performance of a chip, the network of chips, and the compiler options that are safe on them.

Peaks, memories and bandwidths are Google Cloud's published figures (its TPU pages and JAX's hardware table); clocks are implied
by peaks: v4's 2 cores x 4 matrix units x 128 x 128 x 2 x 1.05 GHz are 275 TFLOP/s, and four units of 256 x 256 in each of the two
devices of a tpu7x reach 1,153.5 at 2.2 GHz. Links to hosts: "How to Scale Your Model" (jax-ml.github.io/scaling-book), part 2:
15 GB/s a chip, 32 GB/s on v6e; that of tpu7x is not published and taken to be the same. The network between hosts: 25 GB/s a host
of 4 chips in each direction, as there; v5e's and v6e's pages have two and four NICs for 8 chips, of 100 and 200 Gbit/s; tpu7x is
taken to be like v5p. Hosts' memories are those of Google's virtual machines with all chips of a host, 407, 384, 448, 1,440 and
960 GB for 4, 8, 4, 8 and 4 chips; all but v5e's and tpu7x's are from memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from configs.experiment import Experiment
from configs.pods import PODS
from models.errors import UserError, nearest
from models.sharding.layout import split_slices
from trainers.runtime import xla_flags

if TYPE_CHECKING:
    import jax

GIB = 2**30
Options = Mapping[str, bool | str]


class PodError(UserError):
    """A pod cannot be planned for; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU generation. All figures but that of links are those of a device: a chip, or one of the two that a tpu7x chip has.

    Attributes:
      peak: bfloat16 FLOP/s of a device.
      clock: Hz of the cycles that the compiler estimates.
      memory: usable bytes of HBM, the compiler's own limit.
      bandwidth: bytes/s of HBM.
      link: bytes/s of one link between chips, in one direction; the devices of a chip share it.
      host_link: bytes/s between a device and its host, in one direction.
      host_memory: bytes of the host's memory for each of its devices.
      network: bytes/s of the data-centre network for each device of a host, in one direction.
      torus: dimensions of the network of chips.
      config: the compiler's name of the chip's configuration: "megacore" for v4 and v5p, whose two cores act as one.
      options: compiler options, by the name of the set.
      devices: devices of a chip.
      quantized: FLOP/s of a device by `Execution.quantization`, where products in 8 bits are faster than in bfloat16.
    """

    name: str
    peak: float
    clock: float
    memory: float
    bandwidth: float
    link: float
    host_link: float
    host_memory: float
    network: float
    torus: int
    config: str
    options: Mapping[str, Options]
    devices: int = 1
    quantized: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def option_set(self, name: str) -> Options:
        """Returns the compiler options of this name; raises PodError."""
        if name not in self.options:
            raise PodError(f"--options {name!r}: no such set for {self.name}{nearest(name, self.options)}")
        return self.options[name]

    def wraps(self, dims: tuple[int, ...]) -> tuple[bool, ...]:
        """Returns which dimensions of a slice are rings: all three of whole cubes of 4 x 4 x 4 chips, and none of smaller slices
        (Google Cloud, TPU v5p); in two dimensions a whole side of 16."""
        if self.torus == 3:
            return (all(d % 4 == 0 for d in dims),) * len(dims)
        return tuple(d == 16 for d in dims)


# Large gathers as products in a loop ("windowed einsum") cost more vector work than they hide: docs/LOG.md.
_UNWOUND = {"xla_tpu_enable_windowed_einsum_for_all_gather": False, "xla_tpu_enable_windowed_einsum_for_reduce_scatter": False}
_ASYNC = {"xla_enable_async_all_gather": "true", "xla_tpu_enable_async_all_to_all": True, "xla_tpu_force_async_all_to_all": True}
# Collectives fused with the products around them: the compiler accepts these options on v5e only.
_FUSED = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
}
_SETS = {
    "overlapped": {**_UNWOUND, **_ASYNC},
    "scatter_windowed": {"xla_tpu_enable_windowed_einsum_for_all_gather": False, **_ASYNC},
    "windowed": _ASYNC,
    "plain": {},
}
# Look-ups, and sums of their gradients, stay on the core: work on a SparseCore has no modelled time, and JAX's own XLA cannot
# read programs that use one.
_UNMOVED_ROWS = {"xla_tpu_offload_gather_to_sparsecore": False, "xla_tpu_enable_offloading_scatter_to_sparsecore": False}
_SPARSE = {name: {**_UNMOVED_ROWS, **options} for name, options in _SETS.items()}
# Memory on the chip for one operation, of 128 MiB: tiles of large products grow with it. Published recipes set it for v6e, and by
# now for v5p; products of 8192^3 are modelled at 823 TFLOP/s on v6e with it, 646 without, and measured at 827 (docs/LOG.md).
_VMEM = {"xla_tpu_scoped_vmem_limit_kib": "98304"}
_V6E = {name: {**options, **_VMEM} for name, options in _SPARSE.items()}
# So does all else that the compiler moves there by default: on v5p work of mixtures (Llama 4 Scout), on tpu7x collectives too.
_WORK = ("copy", "dynamic_padding", "gather", "reduce", "reshape", "scatter", "sort")
_UNMOVED_WORK = {f"xla_tpu_enable_offloading_{kind}_to_sparsecore": False for kind in _WORK}
_V5P = {**_SPARSE, "scoped_vmem": {**_SPARSE["overlapped"], **_VMEM, **_UNMOVED_WORK}}
_GATHERS = ("all_gather", "2d_all_gather", "3d_all_gather")
_COLLECTIVES = (*_GATHERS, "all_reduce", "reduce_scatter", "nd_reduce_scatter", "dense_all_to_all", "ragged_all_to_all")
_UNMOVED = {f"xla_tpu_enable_sparse_core_collective_offload_{kind}": False for kind in _COLLECTIVES}
_V7X = {name: {**options, **_UNMOVED_WORK, **_UNMOVED} for name, options in _SPARSE.items()}
_GATHERED = {"xla_enable_async_all_gather": "true"}  # v5e's compiler refuses an asynchronous all-to-all
_V5E = {"overlapped": {**_UNWOUND, **_GATHERED, **_FUSED}, "windowed": {**_GATHERED, **_FUSED}, "plain": {}}

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 1.05e9, 30.75 * GIB, 1228e9, 45e9, 15e9, 407e9 / 4, 25e9 / 4, 3, "megacore", _SETS),
        Chip("v5e", 197e12, 1.5e9, 15.75 * GIB, 819e9, 45e9, 15e9, 384e9 / 8, 25e9 / 8, 2, "default", _V5E, 1, {"int8": 394e12}),
        Chip(
            "v5p", 459e12, 1.75e9, 95.74 * GIB, 2765e9, 90e9, 15e9, 448e9 / 4, 25e9 / 4, 3, "megacore", _V5P, 1, {"int8": 918e12}
        ),
        Chip("v6e", 918e12, 1.75e9, 31.25 * GIB, 1640e9, 90e9, 32e9, 180e9, 100e9 / 8, 2, "default", _V6E, 1, {"int8": 1836e12}),
        # Half of a chip of 2,307 TFLOP/s (4,614 in fp8), 192 GiB, 7,380 GB/s, and of its link to the host and to the network.
        Chip(
            "tpu7x", 1153.5e12, 2.2e9, 94.74 * GIB, 3690e9, 90e9, 16e9, 120e9, 25e9 / 8, 3, "default", _V7X, 2, {"fp8": 2307e12}
        ),
    )
}

# The generation of a device, by JAX's `device_kind`.
KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice of a pod, chips of one generation in a torus, or several equal ones, which the data-centre network joins.

    `str()` is its name: "v4:8x16x16", or "2xv6e:16x16" of two slices. `name` is that of one of them.
    """

    chip: Chip
    dims: tuple[int, ...]
    slices: int = 1

    def __str__(self) -> str:
        return f"{self.slices}x{self.name}" if self.slices > 1 else self.name

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.dims))}"

    @property
    def chips(self) -> int:
        """Returns the number of chips of all slices."""
        return self.slices * math.prod(self.dims)

    @property
    def devices(self) -> int:
        return self.chips * self.chip.devices

    @property
    def places(self) -> tuple[int, ...]:
        """Returns the dimensions of the torus, and the devices of a chip where these are several: where a mesh lies."""
        return self.dims if self.chip.devices == 1 else (*self.dims, self.chip.devices)

    @property
    def wrap(self) -> tuple[bool, ...]:
        return self.chip.wraps(self.dims)


def parse_slice(text: str) -> Slice:
    """Reads "v4:8x16x16" or, in two dimensions, "v5e:16x16", or of several slices "2xv6e:16x16"; raises PodError."""
    slices, one = split_slices(text)
    name, _, shape = one.partition(":")
    if name not in CHIPS:
        raise PodError(f"--topology {text!r}: no TPU generation {name!r}{nearest(name, CHIPS)}")
    chip = CHIPS[name]
    form = "x".join(["4"] * chip.torus)
    dims = shape.split("x")
    if len(dims) != chip.torus or not all(d.isdecimal() and int(d) for d in dims):
        raise PodError(f"--topology {text!r}: a {name} slice has {chip.torus} dimensions, as {name}:{form}")
    return Slice(chip, tuple(int(d) for d in dims), slices)


def usual_slice(chip: Chip, devices: int, slices: int = 1) -> Slice:
    """Returns the slice of this many devices nearest to a cube, with multiples of 4 if there are enough, or so many slices that
    have these devices together; raises PodError."""
    chips, remainder = divmod(devices // slices, chip.devices)
    unit = 4 if chips >= 4**chip.torus else 1
    sides = [d for d in range(1, chips + 1) if chips % d == 0 and (d % unit == 0 or d == 1)]
    shapes = (
        [
            (a, b, c)
            for a in sides
            for b in sides
            if b >= a and chips % (a * b) == 0 and (c := chips // (a * b)) >= b and c in sides
        ]
        if chip.torus == 3
        else [(a, chips // a) for a in sides if a <= chips // a and chips // a in sides]
    )
    if not shapes or remainder:
        raise PodError(f"no {chip.name} slice of {devices // slices} devices; name one with --topology")
    return Slice(chip, min(shapes, key=sum), slices)


# --- compiler options ---------------------------------------------------------------------------------------------

USUAL = "overlapped"


def planned_chip(e: Experiment) -> Chip:
    """Returns the generation that an experiment is planned for: its pod's, else TPU v4."""
    return parse_slice(PODS[e.name].slice).chip if e.name in PODS else CHIPS["v4"]


def set_for(e: Experiment, chip: Chip) -> str:
    """Returns the name of the experiment's set of options; the usual one where it has none, or none for this chip."""
    name = PODS[e.name].options if e.name in PODS else USUAL
    return name if name in chip.options else USUAL


def options_for(e: Experiment, devices: Sequence[Any]) -> Options:
    """Returns the options for an experiment on these devices: none for GPUs and TPUs of an unknown generation."""
    device = devices[0]
    if device.platform == "cpu":  # a step is as fast as with XLA's own level, 3, whose compilation takes 1.5 times as long
        return xla_flags.passes(2, device.platform)
    if device.platform != "tpu" or device.device_kind not in KINDS:
        return {}
    chip = CHIPS[KINDS[device.device_kind]]
    return chip.option_set(set_for(e, chip))


def compile_with(lowered: jax.stages.Lowered, options: Options, say: Callable[[str], None]) -> jax.stages.Compiled:
    """Compiles a program with these options, except those that the installed compiler refuses by name.

    Args:
      say: called with a line for each option that is left out.
    """
    accepted = dict(options)
    while True:
        try:
            return lowered.compile(accepted or None)
        except Exception as error:
            # The longest first: names of options begin with names of others.
            refused = next((name for name in sorted(accepted, key=len, reverse=True) if name in str(error)), None)
            if refused is None:
                raise
            why = str(error).partition("\n")[0]
            say(f"compiler option {refused}={accepted.pop(refused)} is left out, the compiler refuses it: {why:.160}")
