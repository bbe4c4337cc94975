"""The environment in which PyPI's libtpu compiles without TPUs. It must be set before JAX is imported, so this imports no JAX."""

import functools
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from trainers.runtime import xla_flags
from trainers.runtime.chips import PodError

INSTALL = "the TPU compiler is not installed: run `make setup DEVICE=plan`"
FOLDER = Path(sys.prefix) / "plan"  # outside site-packages: where JAX can import libtpu, it looks for TPUs
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # programs run on the CPU; TPUs are only compiled for
    "TPU_SKIP_MDS_QUERY": "1",  # there is no cloud metadata server to query
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock protects chips, which compiling does not use
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def installed() -> bool:
    """Returns whether libtpu is installed, and lets Python import it."""
    if FOLDER.exists() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.util.find_spec("libtpu") is not None


def prepare() -> None:
    """Sets the environment; raises PodError without libtpu."""
    if not installed():
        raise PodError(INSTALL)
    os.environ.update(ENVIRONMENT)
    xla_flags.add()


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions of JAX and of the TPU compiler; "" for one that is not installed."""
    by_package = {}
    for name in ("jax", "libtpu"):
        try:
            by_package[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            by_package[name] = ""
    return by_package
