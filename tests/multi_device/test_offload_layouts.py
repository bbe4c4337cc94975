"""Arrays that wait in the host's memory come back as they were: the first steps are, bit for bit, those of an execution that
keeps the same on the device, under layouts of every kind, and those of one device to 1e-9.

CPUs move nothing, but they compile the same program; what the TPU compiler makes of it is in test_tpu_compile.py.
"""

import dataclasses

import jax
import numpy as np
import pytest

from models.families import family_of
from models.sharding import params
from models.sharding.stacks import layer_scan
from tests.helpers.layouts import case_id, experiment, initial, reference, run
from tests.helpers.models import varied
from trainers.hlo import equality
from trainers.plan import make_plan

pytestmark = pytest.mark.integration

CASES = [
    ("gpt.quickstart", "two_d_sequence", (2, 4), "full", "layer_in+optimizer"),
    ("gpt.quickstart", "pipeline_interleaved", (2, 2, 2), "full", "layer_in"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("gpt.quickstart", "context_ring_balanced", (2, 4), "attention_out", "gate+context"),
            ("gpt.moe_quickstart", "expert_fsdp", (2, 4), "attention_out", "layer_in+mixture_out+optimizer"),
            ("t5.quickstart", "tensor_parallel", (2, 4), "full", "layer_in"),
        )
    ),
    # The same places in the host's memory as the first two.
    pytest.param("gpt.quickstart", "zero1", (2, 4), "full", "optimizer", marks=pytest.mark.nightly),
    pytest.param("gpt.quickstart", "gpipe", (2, 2, 2), "full", "layer_in+optimizer", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("name", "layout", "mesh", "kept", "offload"), CASES, ids=case_id)
def test_numbers_are_those_without(name, layout, mesh, kept, offload, monkeypatch):
    """Losses, gradients and parameters; the optimizer's state is in the host's memory before and after."""
    # Loops that offload activations are JAX's own, whose sums may differ from ours in the last bit.
    monkeypatch.setattr(params, "layer_scan", lambda *arguments, recomputes, **more: layer_scan(*arguments, **more))
    e = experiment(name)
    e = dataclasses.replace(e, layout=family_of(e.model).layouts[layout](*mesh))
    offloaded = varied(e, remat=kept, offload=offload)
    of_layers = [kept if kept != "full" else "", *offloaded.execution.offloaded]
    on_device = varied(e, remat="+".join(name for name in of_layers if name not in ("", "layer_in")) or "full")
    actual, want = run(offloaded, initial(name)), run(on_device, initial(name))
    for step, (a, b) in enumerate(zip(actual.metrics, want.metrics, strict=True)):
        assert a["loss"] == b["loss"], step
    for kind in ("gradients", "parameters"):
        for path, array in getattr(want, kind).items():
            np.testing.assert_array_equal(getattr(actual, kind)[path], array, err_msg=f"{kind}: {path}")
    far = equality.differences(actual, reference(name))
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9, far
    places = {s.memory_kind for s in jax.tree.leaves(make_plan(offloaded, jax.devices()).shardings.optimizer)}
    assert ("pinned_host" in places) is offloaded.execution.offloads_optimizer
