"""Peak FLOP/s of the devices of a run: the denominator of MFU and HFU.

Accelerators have their makers' published peak for bfloat16 products without sparsity, in whatever dtype the experiment computes:
TPUs from trainers.runtime.chips; H100 and H200 (989.4 TFLOP/s as SXM, 756 and 835 as PCIe and NVL) and A100 (312) from NVIDIA's
data sheets, which give twice that, with sparsity, for H100 and H200. No usable peak is published for hosts, so theirs is
measured.
"""

import functools
import time

import jax
import jax.numpy as jnp

from trainers.runtime import processes
from trainers.runtime.chips import CHIPS, KINDS

PUBLISHED = {kind: CHIPS[name].peak for kind, name in KINDS.items()} | {
    "NVIDIA H200": 989.4e12,
    "NVIDIA H200 NVL": 835.5e12,
    "NVIDIA H100 80GB HBM3": 989.4e12,
    "NVIDIA H100 NVL": 835.5e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
}


def peak(devices: int, dtype: str) -> tuple[float | None, str]:
    """Returns (FLOP/s of all devices together, their description); None for unknown devices.

    Simulated devices have the peak of their host. All processes measure it at the same time, and their results are summed,
    whether or not they share a host.

    Args:
      dtype: dtype of the products that a host is measured with.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        processes.gather(0.0)  # so that they begin together
        total = float(processes.gather(measured(dtype)).sum())
        return total, f"the host's fastest {dtype} matrix product, measured in this run"
    if device.device_kind not in PUBLISHED:
        return None, f"no peak is known of a {device.device_kind!r}; known are {', '.join(sorted(PUBLISHED))}"
    per_device = PUBLISHED[device.device_kind]
    return (devices * per_device, f"{devices} x {per_device / 1e12:,.1f} TFLOP/s, published for {device.device_kind}, bfloat16")


@functools.cache
def measured(dtype: str, long: float = 0.1, times: int = 5) -> float:
    """Measures the FLOP/s of this host's fastest square matrix product: of 512 rows, 1024, ... until one takes `long` s."""
    size, best, seconds = 512, 0.0, 0.0
    while seconds < long:
        x = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices()[0])
        product = jax.jit(jnp.matmul).lower(x, x).compile()
        for _ in range(times):
            began = time.perf_counter()
            product(x, x).block_until_ready()
            seconds = time.perf_counter() - began
            best = max(best, 2.0 * size**3 / seconds)
        size *= 2
    return best
