"""Memory kept between runs of a program: pages that the kernel clears, counted by the kernel."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from trainers import host_memory
if sys.argv[1] == "kept":
    host_memory.keep()
import jax, jax.numpy as jnp

def step(x):  # 64 MiB between two products
    return jnp.tanh(x @ x.T[:, :2048]) @ x[:2048]

x = jnp.ones((8192, 16), jnp.float32)
compiled = jax.jit(step).lower(x).compile()
host_memory.make_room(compiled)
for run in range(8):
    if run == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    compiled(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> int:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | {"JAX_PLATFORMS": "cpu"} | environment
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], env=env, capture_output=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_program_runs_again_in_the_memory_it_had_unless_glibcs_own_variables_speak():
    mapped, kept, told = faults("mapped"), faults("kept"), faults("kept", MALLOC_MMAP_MAX_="1000")
    if mapped < 30_000:  # three times 64 MiB in pages of 4 KiB are 49,152
        pytest.skip(f"the kernel clears huge pages here: {mapped} faults")
    assert kept < mapped / 10
    assert told > mapped / 2
