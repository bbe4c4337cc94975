"""The environment in which PyPI's libtpu compiles for TPUs that are not there. Imports no JAX: it must come before."""

import functools
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from trainers.chips import PodError

INSTALL = "the TPU compiler is not installed: run `make setup DEVICE=plan`"
FOLDER = Path(sys.prefix) / "plan"  # beside the environment's packages: where JAX finds libtpu, it looks for TPUs
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # what runs here; TPUs are only compiled for
    "TPU_SKIP_MDS_QUERY": "1",  # no cloud machine to ask about itself
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock is for chips
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def installed() -> bool:
    """Whether there is a libtpu; from now on Python finds it."""
    if FOLDER.exists() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.util.find_spec("libtpu") is not None


def prepare() -> None:
    """Sets the environment; raises PodError without libtpu."""
    if not installed():
        raise PodError(INSTALL)
    os.environ.update(ENVIRONMENT)


@functools.cache
def versions() -> dict[str, str]:
    """Of JAX and of the TPU compiler, "" where that is not installed."""
    found = {}
    for name in ("jax", "libtpu"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found
