"""The real TPU compiler, where it is installed (pip install libtpu), agrees about what expert parallelism exchanges."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses, json
from jax.experimental import topologies
from configs import registry
from data.batches import batch_shapes
from models.gshard_m4 import layouts
from trainers import inspection, state, step

topology = topologies.get_topology_desc(
    topology_name="v4:2x2x2", platform="tpu", chip_config_name="megacore", chips_per_host_bounds=(2, 2, 1),
    num_slices=1, wrap=(False, False, False),
)
e = registry.tiny(registry.load("gshard_m4.moe_128e_12l"))
# Sizes that fill a TPU's tiles, so that the program is like a big one's.
model = dataclasses.replace(e.model, model_dim=128, hidden_dim=256, dtype="bfloat16", group_size=128, experts=16)
data = dataclasses.replace(e.data, batch_size=64)
e = dataclasses.replace(e, model=model, data=data, layout=layouts.expert_parallel(1, 8))
p = state.plan(e, list(topology.devices))
found = inspection.sent(p, step.compile_step(p, batch_shapes(e.data)))
exchanges = [(c.axes, c.times) for c in found if c.kind == "all-to-all"]
print(json.dumps({"exchanges": exchanges, "expert_gathers": inspection.expert_gathers(e, found)}))
"""


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_tpu_exchanges_tokens_and_gathers_no_expert():
    """Compiled for eight TPU-v4 chips the step has all-to-alls in both towers and no all-gather of experts or tokens."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v4-8", "XLA_FLAGS": "",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(found["exchanges"]) >= 8
    assert all(axes == ["expert"] and times for axes, times in found["exchanges"])
    assert found["expert_gathers"] == 0
