"""NVIDIA GPUs that a step is compiled for without one: what XLA's GPU compiler asks about a device. No JAX.

All figures are printed. Of a compute capability: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
and "Arithmetic Instructions". Of a GPU: NVIDIA A100 Tensor Core GPU Architecture (2020), NVIDIA H100 Tensor Core GPU
Architecture (2022), and the data sheets of A100, H100 and H200. H100's clock is derived: its peak of 989.4 TFLOP/s in bfloat16 is
that of 132 multiprocessors with 4096 FLOPs a clock.
"""

import dataclasses

from models.errors import UserError, nearest

KIB, MIB = 2**10, 2**20


class GpuError(UserError):
    """A step cannot be compiled for GPUs; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Capability:
    """A compute capability.

    Attributes:
      shared: bytes of shared memory of a multiprocessor; a block of threads has 1 KiB less at most.
      lanes: float32 operations of a multiprocessor in a clock.
    """

    major: int
    minor: int
    shared: int
    lanes: int


AMPERE, HOPPER = Capability(8, 0, 164 * KIB, 64), Capability(9, 0, 228 * KIB, 128)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
      kind: its name in JAX (trainers/measure/peaks.py has its peak under it).
      cores: streaming multiprocessors.
      clock: Hz, the highest.
      memory: bytes, as printed, of 1e9 a GB. Devices have a little more, of which JAX takes three quarters unless
        $XLA_PYTHON_CLIENT_MEM_FRACTION says more.
      bandwidth: bytes/s of the memory.
      cache: bytes of the second level.
    """

    kind: str
    capability: Capability
    cores: int
    clock: float
    memory: float
    bandwidth: float
    cache: int

    def target_config(self) -> str:
        """Returns the text of XLA's message `GpuTargetConfigProto` (xla/stream_executor/device_description.proto).

        Limits that all capabilities since 3.0 share are written here: threads, dimensions of grids, registers, and the shared
        memory that a block has without asking for more.
        """
        c = self.capability
        device = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "threads_per_core_limit": 2048,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "registers_per_core_limit": 2**16,
            "registers_per_block_limit": 2**16,
            "shared_memory_per_block": 48 * KIB,
            "shared_memory_per_block_optin": c.shared - KIB,
            "shared_memory_per_core": c.shared,
            "core_count": self.cores,
            "fpus_per_core": c.lanes,
            "clock_rate_ghz": self.clock / 1e9,
            "memory_bandwidth": int(self.bandwidth),
            "l2_cache_size": self.cache,
            "device_memory_size": int(self.memory),
        }
        lines = [f"  {name}: {value}" for name, value in device.items()]
        lines.append(f"  cuda_compute_capability {{ major: {c.major} minor: {c.minor} }}")
        version = "dnn_version_info { major: 9 minor: 10 }"  # of cuDNN; XLA asks for a recent one
        end = ["}", 'platform_name: "CUDA"', version, f'device_description_str: "{self.kind}"']
        return "\n".join(["gpu_device_info {", *lines, *end, ""])


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", AMPERE, 108, 1.41e9, 80e9, 2.039e12, 40 * MIB),
    "h100": Gpu("NVIDIA H100 80GB HBM3", HOPPER, 132, 1.83e9, 80e9, 3.35e12, 50 * MIB),
    "h200": Gpu("NVIDIA H200", HOPPER, 132, 1.83e9, 141e9, 4.8e12, 50 * MIB),
}


def parse_gpu(name: str) -> Gpu:
    """Returns a GPU by its short name; raises GpuError for an unknown one."""
    if name not in GPUS:
        raise GpuError(f"--gpu {name!r}: no such GPU{nearest(name, GPUS)}")
    return GPUS[name]
