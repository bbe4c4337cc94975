"""GPUs that are only compiled for: their figures agree with each other, and the compiler's text has them."""

import re

import pytest

from trainers.gpus.chips import AMPERE, GPUS, HOPPER, GpuError, parse_gpu
from trainers.measure import peaks


@pytest.mark.parametrize("name", GPUS)
def test_cores_and_clock_make_the_published_peak(name):
    """A multiprocessor does 2,048 FLOPs a clock in bfloat16 (A100) or 4,096 (H100, H200): its share of the peak of MFU."""
    gpu = GPUS[name]
    per_clock = {AMPERE: 2048, HOPPER: 4096}[gpu.capability]
    assert gpu.cores * gpu.clock * per_clock == pytest.approx(peaks.PUBLISHED[gpu.kind], rel=1e-3)


def test_the_compiler_s_text_has_each_figure_once():
    """H100's text names its multiprocessors, its memory and its shared memory, of which a block has 227 KB at most."""
    text = GPUS["h100"].target_config()
    numbers = dict(re.findall(r"^  (\w+): (\S+)$", text, re.M))
    assert len(numbers) == len(re.findall(r"^  \w+:", text, re.M))
    assert numbers["core_count"] == "132" and numbers["device_memory_size"] == "80000000000"
    assert numbers["shared_memory_per_core"] == "233472" and numbers["shared_memory_per_block_optin"] == "232448"
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text and 'device_description_str: "NVIDIA H100 80GB HBM3"' in text
    assert text.count("{") == text.count("}")


def test_an_unknown_gpu_is_refused_with_the_nearest():
    with pytest.raises(GpuError, match="--gpu 'h10': no such GPU; did you mean 'h100'"):
        parse_gpu("h10")
