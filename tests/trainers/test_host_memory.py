"""Memory kept between runs of a program: pages that the kernel clears, counted by the kernel."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from models.sharding.layouts import ONE_DEVICE
from scripts import cli
cli.use_devices(ONE_DEVICE)
import jax, jax.numpy as jnp
from trainers import host_memory
if sys.argv[1] == "kept":
    host_memory.keep()

def step(x):  # 64 MiB that come before their sum and are needed after it
    y = jnp.sin(x)
    return (y / y.sum())[:1]

x = jnp.ones((4096, 4096), jnp.float32)
compiled = jax.jit(step).lower(x).compile()
for run in range(30):
    if run == 10:  # until then the room grows to what alignment and small pieces take beside it
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    compiled(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> int:
    ours = ("MALLOC_", "XLA_FLAGS")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {"JAX_PLATFORMS": "cpu"} | environment
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], env=env, capture_output=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, which is left as it is")
def test_a_program_runs_again_in_the_memory_it_had_unless_glibcs_own_variables_speak():
    mapped, kept, told = faults("mapped"), faults("kept"), faults("kept", MALLOC_MMAP_MAX_="1000")
    if mapped < 300_000:  # twenty times 64 MiB in pages of 4 KiB are 327,680
        pytest.skip(f"the kernel clears huge pages here: {mapped} faults")
    assert kept < mapped / 10
    assert told > mapped / 2
