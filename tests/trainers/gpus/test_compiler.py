"""The GPU compiler: refused where it is not installed (make setup DEVICE=plan-gpu); where it is, it compiles without a GPU."""

import json
import os
import re
import subprocess
import sys

import pytest

from data.paths import ROOT
from trainers.gpus import compiler
from trainers.gpus.chips import GpuError

NEEDED = pytest.mark.skipif(not compiler.installed(), reason="XLA's GPU compiler is not installed: make setup DEVICE=plan-gpu")


@pytest.mark.parametrize(("count", "topology"), [(1, "1x1x1"), (4, "1x1x4"), (8, "1x1x8"), (16, "1x2x8"), (64, "1x8x8")])
def test_hosts_have_eight_gpus(count, topology):
    assert compiler.topology_of(count) == topology


def test_gpus_that_fill_no_hosts_are_refused():
    with pytest.raises(GpuError, match="12 GPUs do not fill hosts of 8: choose a layout of 8"):
        compiler.topology_of(12)


def test_without_the_plugin_it_is_refused_and_nothing_is_set(monkeypatch):
    """The line says what to install; the environment stays as it was."""
    monkeypatch.setattr(compiler, "PLUGINS", ("xla_of_nobody",))
    before = dict(os.environ)
    with pytest.raises(GpuError, match="run `make setup DEVICE=plan-gpu`"):
        compiler.prepare()
    assert dict(os.environ) == before


@NEEDED
@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "layout", "gpu", "kernel"),
    [
        ("gpt.quickstart", "data_parallel:1x1", "a100", "cuBLAS product"),
        ("gpt.quickstart", "fully_sharded:2x4", "h100", "cuBLAS product"),
        pytest.param("metnet2.quickstart", "spatial:1x1x1", "h200", "cuDNN convolution", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_compiled_without_a_gpu(name, layout, gpu, kernel):
    """Its memory is that of its parts, its products are about the model's, and only a layout of several GPUs communicates."""
    line = ["-m", "scripts.lab.gpu_compile", name, "--tiny", "--layout", layout, "--gpu", gpu, "--json"]
    settings = ["--execution.dtype", "bfloat16", "--execution.remat", "full" if name.startswith("gpt") else "none"]
    done = subprocess.run([sys.executable, *line, *settings], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["fits"] and result["peak_gib"] == pytest.approx(sum(result["memory"].values()))
    assert min(result["memory"][part] for part in ("parameters", "optimizer", "batch")) > 0
    assert 0.8 < result["program_flops"] / result["model_flops"] < 1.5
    kinds = {row["kind"] for row in result["collectives"]}
    assert {"all-gather", "all-reduce"} <= kinds if result["devices"] > 1 else not kinds
    kernels = {row["kind"] for row in result["kernels"]}
    assert kernel in kernels and "AllocateBuffer" not in kernels and not result["notes"]


def test_the_locked_compiler_is_of_jaxlib_s_release():
    """JAX takes no plugin of another release, so that both locks name the same one for each Python."""
    locks = [(ROOT / f"requirements{part}.lock").read_text() for part in ("", "-plan-gpu")]
    of_jaxlib, of_plugin = (
        re.findall(rf"^{name}==(.*) \\$", lock, re.M) for name, lock in zip(("jaxlib", "jax-cuda12-pjrt"), locks, strict=True)
    )
    assert of_jaxlib == of_plugin and of_jaxlib
