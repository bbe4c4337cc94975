"""Every test sees eight simulated devices and compiles cheaply; compiled programs are kept between runs."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",  # the tests compile more than they compute
    ]
)
from data.paths import data_dir

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(data_dir() / "xla-cache-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

from configs import registry
from configs.experiment import Experiment


@pytest.fixture
def float64():
    """Double precision inside the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def m4() -> Experiment:
    """The quickstart experiment, tiny, on one device."""
    return registry.tiny(registry.load("gshard_m4.quickstart"))
