"""Every test sees eight simulated devices and compiles cheaply; compiled programs are kept between runs.

With --fast only tests without a mark run, and one that needs a mark (see pyproject.toml) fails with a line that says so.
"""

import functools
import gc
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["TQDM_DISABLE"] = "1"  # a slow machine would write lines that a fast one does not
from tests.helpers.compiling import CHEAP, DEFAULTS, share_contexts

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {CHEAP}"
from data.paths import data_dir

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(data_dir() / "xla-cache-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

from configs import registry
from configs.experiment import Experiment
from tests.helpers import draws
from trainers import step

if not DEFAULTS:
    draws.install()
share_contexts()
gc.set_threshold(100_000, 50, 100)  # traces make millions of objects that live, and looking through them takes long
NOT_FAST = ("integration", "network", "slow", "nightly")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests without a mark: what make test-fast runs")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.fast:
        sys.addaudithook(_refuse)
        step.train_step = lambda *_: _mark("integration", "compiles a training program")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.fast:
        marked = {item for item in items if any(item.get_closest_marker(name) for name in NOT_FAST)}
        config.hook.pytest_deselected(items=[item for item in items if item in marked])
        items[:] = [item for item in items if item not in marked]


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Drops compiled programs after a module once there are many: each has some hundred mappings of memory, of which Linux gives
    a process 65,530, and a compiler that gets no more of them ends the process with a segmentation fault."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        for name, module in list(sys.modules.items()):
            if name.startswith("tests."):  # runs that tests share hold their programs
                for member in vars(module).values():
                    if isinstance(member, functools._lru_cache_wrapper):
                        member.cache_clear()
        jax.clear_caches()
        gc.collect()


MOST_MAPPINGS = 20_000
_running = False  # a test, not pytest itself
# Started by an import that comes first inside a test: matplotlib lists fonts, once per machine, and h5py asks for the processor.
OF_IMPORTS = ("fc-list", "system_profiler", "uname")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    global _running
    _running = True
    try:
        return (yield)
    finally:
        _running = False


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: Python tells what it is about to do."""
    if not _running:
        return
    if event == "subprocess.Popen" and args[1][0] in OF_IMPORTS:
        return
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec"):
        _mark("integration", "starts a process")
    if event == "import" and args[0].partition(".")[0] in ("tensorflow", "seqio", "tensorflow_datasets"):
        _mark("integration", "imports TensorFlow")
    if event == "socket.connect":
        _mark("network", "opens a connection")


def _mark(mark: str, why: str) -> None:
    pytest.fail(f"this test {why}: mark it with pytest.mark.{mark}")


@pytest.fixture
def real_draws(monkeypatch):
    """JAX's own generator inside the test (tests/helpers/draws.py)."""
    for name, function in draws.REAL.items():
        monkeypatch.setattr(jax.random, name, function)


@pytest.fixture
def float64():
    """Double precision inside the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def m4() -> Experiment:
    """The quickstart experiment, tiny, on one device."""
    return registry.tiny(registry.load("gshard_m4.quickstart"))


@pytest.fixture
def small() -> Experiment:
    """The experiment that compiles fastest, on one device: for what does not depend on the model."""
    return registry.tiny(registry.load("gpt.quickstart"))
