"""The training step for GPUs, as far as it can be made without one: lowered to the program that XLA's GPU compiler is given."""

import dataclasses

import jax
import pytest

from configs import registry
from models.sharding.layouts import ONE_DEVICE
from trainers.plan import make_plan
from trainers.step import train_step

pytestmark = pytest.mark.integration

NAMES = ("gshard_m4.bench_67m", "whisper.bench_tiny", "dlrm.bench_3t")


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_lowered_for_gpus(name):
    """Every operation has a form for CUDA, and products stay products: as many as on CPUs. Nothing waits for a CPU's library."""
    e = registry.tiny(registry.load(name))
    plan = make_plan(dataclasses.replace(e, layout=ONE_DEVICE), jax.devices()[:1])
    traced = train_step(plan).trace(plan.step_form, plan.batch_shapes())
    host, gpu = (traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda"))
    operations = ("stablehlo.dot_general", "stablehlo.convolution")
    assert sum(gpu.count(x) for x in operations) == sum(host.count(x) for x in operations) > 0
    assert "cpu" not in gpu.replace("cpu_", "") and "lapack" not in gpu
