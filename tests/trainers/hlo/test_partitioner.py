"""docs/LAYOUTS.md says how a program is partitioned; here are the compiler's own passes, in the release that is installed."""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.helpers.layouts import without_program_cache


def test_shardy_propagates_and_gspmd_s_partitioner_splits(tmp_path):
    """Shardy decides how each tensor is cut, then GSPMD's partitioner makes the program of one device, with its collectives; the
    pass that GSPMD itself propagates by does not run."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    cut = [NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), (None, "model"), ("model",))]
    lowered = jax.jit(lambda x, w, v: jnp.tanh(x @ w) @ v, in_shardings=cut).lower(
        jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((16, 8))
    )
    with without_program_cache():
        compiled = lowered.compile({"xla_dump_to": str(tmp_path), "xla_dump_hlo_pass_re": "."})
    passes = re.findall(r"after_(shardy-xla|sharding-propagation|spmd-partitioning)\b", " ".join(sorted(os.listdir(tmp_path))))
    assert passes == ["shardy-xla", "spmd-partitioning"]
    assert "sdy.sharding" in lowered.as_text() and "all-reduce" in (compiled.as_text() or "")
