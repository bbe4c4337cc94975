"""The real TPU compiler, where it is installed (make setup DEVICE=plan), agrees about what layouts exchange."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import libtpu

START = """
import dataclasses, json
from trainers.pods import libtpu
libtpu.prepare()
from configs import registry
from data.reading.batches import batch_shapes
from models.sharding.layouts import sequence_parallel
from models.sharding import expert_layouts as layouts
from models.execution import Execution
from models.parts.moe.config import ExpertsConfig, MoeConfig
from models.parts.nested import changed
from trainers import state, step
from trainers.plan import make_plan
from trainers.pods import topology
from trainers.runtime.chips import parse_slice
from trainers.hlo import tables

devices = topology.devices(parse_slice("v4:2x2x2"))
"""
EXPERTS = """
e = registry.tiny(registry.load("gshard_m4.moe_128e_12l"))
# Sizes that fill a TPU's tiles, so that the program is like a big one's.
moe = MoeConfig(experts=ExpertsConfig(count=16), group_size=128)
model = changed(e.model, {"model_dim": 128, "feed_forward.hidden_dim": 256, "moe": moe})
data = dataclasses.replace(e.data, batch_size=64)
e = dataclasses.replace(e, model=model, data=data, layout=layouts.expert_parallel(1, 8), execution=Execution(dtype="bfloat16"))
p = make_plan(e, devices)
found = tables.compiled_collectives(p, step.compile_step(p))
exchanges = [(c.axes, c.times) for c in found if c.kind == "all-to-all"]
print(json.dumps({"exchanges": exchanges, "expert_gathers": tables.expert_gathers(e, found)}))
"""
SEQUENCE = """
import re
e = registry.tiny(registry.load("gpt.gpt2_124m"))
sizes = {"model_dim": 512, "feed_forward.hidden_dim": 2048, "attention.heads": 4, "attention.head_dim": 128}
model = changed(e.model, sizes | {"positions.rows": 512})
data = dataclasses.replace(e.data, batch_size=16, length=512)
found = {}
for form in ("none", "int8"):
    execution = Execution(dtype="bfloat16", quantization=form)
    e = dataclasses.replace(e, model=model, data=data, layout=sequence_parallel(2, 4), execution=execution)
    text = step.compile_step(make_plan(e, devices)).as_text()
    whole = [len(dims.split(",")) for dims in re.findall(r"= s32\\[([\\d,]*)\\]\\S* all-reduce\\(", text)]
    found[form] = text.count("calls=%all-reduce-scatter"), max(whole, default=0)
print(json.dumps(found))
"""
KERNEL = """
import collections, re
from models.sharding.layouts import tensor_parallel
e = registry.tiny(registry.load("gpt.gpt2_124m"))
sizes = {"model_dim": 256, "feed_forward.hidden_dim": 512, "attention.heads": 4, "attention.head_dim": 64}
model = changed(e.model, sizes | {"positions.rows": 1024, "dropout": 0.0})
data = dataclasses.replace(e.data, batch_size=4, length=1024)
execution = Execution(dtype="bfloat16", remat="full")
p = make_plan(dataclasses.replace(e, model=model, data=data, layout=tensor_parallel(2, 4), execution=execution), devices)
compiled = step.compile_step(p)
kernels = collections.Counter(re.findall(r"%splash_mha_(fwd|dq|dkv)_[\\w.]+ = ", compiled.as_text()))
gathers = sum(c.kind == "all-gather" and c.times > 1 for c in tables.compiled_collectives(p, compiled))
print(json.dumps({"kernels": kernels, "gathers_in_loops": gathers}))
"""
OPTIONS = """
import contextlib, io
from models.sharding.layouts import fsdp_within_data
from trainers.runtime.chips import options_for
e = registry.tiny(registry.load("gpt.gpt2_124m"))
sizes = {"model_dim": 512, "feed_forward.hidden_dim": 2048, "attention.heads": 4, "attention.head_dim": 128}
model = changed(e.model, sizes | {"positions.rows": 256})
data = dataclasses.replace(e.data, batch_size=16, length=256)
execution = dataclasses.replace(e.execution, dtype="bfloat16")
e = dataclasses.replace(e, model=model, data=data, execution=execution, layout=fsdp_within_data(2, 4))
p = make_plan(e, devices)
options = dict(options_for(e, devices))

def gathers(*options):
    text = step.compile_step(p, *options).as_text()
    return text.count(" all-gather-start("), text.count(" all-gather(")
with contextlib.redirect_stderr(io.StringIO()) as lines:
    planned = gathers(options | {"xla_tpu_no_such_option": True})
found = {"lines": lines.getvalue().splitlines(), "options": options, "run": gathers(), "planned": planned, "plain": gathers({})}
print(json.dumps(found))
"""
PARTITIONERS = """
import os, re, tempfile
import jax
jax.config.update("jax_enable_compilation_cache", False)  # a program that is read from the cache runs no pass
e = registry.tiny(registry.load("gpt.gpt2_124m"))
p = make_plan(dataclasses.replace(e, layout=sequence_parallel(2, 4)), devices)
with tempfile.TemporaryDirectory() as folder:
    options = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "shardy-xla|.*propagation|.*partitioning"}
    step.compile_step(p, options)
    files = " ".join(sorted(os.listdir(folder)))
print(json.dumps(re.findall(r"after_(shardy-xla|sharding-propagation|[a-z-]*spmd-partitioning)\\b", files)))
"""
OFFLOAD = """
from models.sharding.layouts import fully_sharded
from trainers.hlo.parsing import HOST, parse
e = registry.tiny(registry.load("gpt.gpt2_124m"))
sizes = {"model_dim": 256, "feed_forward.hidden_dim": 512, "attention.heads": 4, "attention.head_dim": 64, "layers": 4}
model = changed(e.model, sizes | {"positions.rows": 128, "dropout": 0.0})
data = dataclasses.replace(e.data, batch_size=16, length=128)
execution = Execution(dtype="bfloat16", remat="attention_out", offload="layer_in+up+optimizer")
p = make_plan(dataclasses.replace(e, model=model, data=data, layout=fully_sharded(8, 1), execution=execution), devices)
compiled = step.compile_step(p)
memory = compiled.memory_analysis()
moves = [i for c in parse(compiled.as_text()).computations.values() for i in c.instructions if HOST in i.spaces]
print(json.dumps({
    "activations": memory.host_temp_size_in_bytes,
    "state": memory.host_argument_size_in_bytes,
    "optimizer": tables.optimizer_bytes(p),
    "starts": sorted({i.opcode for i in moves if i.opcode.endswith("-start")}),
}))
"""
SLICES = """
from models.sharding.layouts import fully_sharded, over_slices
e = registry.tiny(registry.load("gpt.gpt2_124m"))
sizes = {"model_dim": 512, "feed_forward.hidden_dim": 2048, "attention.heads": 4, "attention.head_dim": 128, "layers": 4}
model = changed(e.model, sizes | {"positions.rows": 256, "dropout": 0.0})
data = dataclasses.replace(e.data, batch_size=16, length=256)
layout, execution = over_slices(fully_sharded(4, 1), 2), Execution(dtype="bfloat16", remat="full")
two = topology.devices(parse_slice("2xv4:2x2x1"))
p = make_plan(dataclasses.replace(e, model=model, data=data, layout=layout, execution=execution), two)
found = tables.compiled_collectives(p, step.compile_step(p))
between = [c for c in found if "slice" in (c.axes or ())]
print(json.dumps({
    "slices": [[d.slice_index for d in block.flat] for block in p.mesh.devices],
    "between": sorted({(c.kind, *c.axes) for c in between}),
    "inside": sorted({(c.kind, *c.axes) for c in found if c not in between}),
    "numbers": sum(shape.size * c.times for c in between for shape in c.shapes),
    "parameters": sum(info.size for info in p.parameters),
}))
"""
UNEVEN = """
from models.sharding.layouts import tensor_parallel
from trainers.pods import report
from trainers.runtime.chips import set_for
pod = parse_slice("v4:2x2x2")
e = registry.tiny(registry.load("gpt.gpt2_124m"))
sizes = {"model_dim": 256, "feed_forward.hidden_dim": 512, "attention.heads": 4, "attention.head_dim": 64, "dropout": 0.0}
layout = dataclasses.replace(tensor_parallel(2, 4), pad=("vocab", "act_vocab"))
e = dataclasses.replace(e, layout=layout, execution=Execution(dtype="bfloat16"))

def planned(vocab):
    model = changed(e.model, sizes | {"vocab": vocab})
    made, _ = report.plan(dataclasses.replace(e, model=model), pod, set_for(e, pod.chip))
    sent = [[c["kind"], c["axes"], c["times"], c["in_loop"]] for c in made["collectives"]]
    return {"padded": made["padded"], "sent": sorted(sent), "parameters": made["memory"]["parameters"]}
print(json.dumps([planned(5029), planned(5032)]))
"""
pytestmark = [pytest.mark.integration, libtpu.NEEDED]


def said(program: str):
    """Returns what a program prints last, run by itself with TPUs to compile for."""
    env = os.environ | {"XLA_FLAGS": ""}
    command = [sys.executable, "-c", START + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_a_tpu_exchanges_tokens_and_gathers_no_expert():
    """Compiled for eight TPU-v4 chips the step has all-to-alls in both towers and no all-gather of experts or tokens."""
    report = said(EXPERTS)
    assert len(report["exchanges"]) >= 8
    assert all(axes == ["expert"] and times for axes, times in report["exchanges"])
    assert report["expert_gathers"] == 0


@pytest.mark.slow
def test_a_tpu_reduce_scatters_to_a_sequence_sharded_residual():
    """TPUs reduce-scatter where CPUs all-reduce and slice: after attention and feed-forward network, and backward. Products in
    8 bits do so too: no array of whole numbers is summed, as a matrix or a batch would be."""
    for scattered, dimensions in said(SEQUENCE).values():
        assert scattered >= 4 and dimensions <= 1


def test_a_tpu_runs_attention_by_a_kernel():
    """Rows of 1024 go through the kernel, and nothing is gathered for it: once forward and, as layers are computed anew, once
    more backward; then once for the gradients of queries, and once for those of keys and values."""
    assert said(KERNEL) == {"kernels": {"fwd": 2, "dq": 1, "dkv": 1}, "gathers_in_loops": 0}


@pytest.mark.nightly
def test_a_tpu_step_is_compiled_with_its_plans_options():
    """Without being asked a step has the gathers that its plan prices, some of them beside other work, which no options would
    give; the compiler takes all options of the set, and one that it does not know is named in a line."""
    report = said(OPTIONS)
    assert report["options"]["xla_tpu_enable_windowed_einsum_for_all_gather"] is False
    (line,) = (line for line in report["lines"] if line.startswith("compiler option"))
    assert "xla_tpu_no_such_option=True is left out" in line and "No such compile option" in line
    assert report["run"] == report["planned"] and report["run"][0] > 0
    assert report["plain"][0] == 0


@pytest.mark.slow
def test_a_tpu_moves_what_is_offloaded_beside_its_work():
    """The inputs and hidden products of four layers, two rows of 128 tokens a chip, lie in the host's memory, and Adam's moments,
    padded to tiles, before and after a step; all copies are started and waited for."""
    report = said(OFFLOAD)
    assert report["activations"] == 4 * 2 * 128 * (256 + 512) * 2
    assert report["optimizer"] <= report["state"] < 2 * report["optimizer"]
    assert report["starts"] == ["copy-start", "dynamic-slice-start", "dynamic-update-slice-start"]


@pytest.mark.nightly
def test_a_tpu_sends_a_padded_vocabulary_as_a_divisible_one():
    """5,029 ids over four chips are planned as the 5,032 that they are padded to: the same memory of parameters, the same
    collectives, and the report says so."""
    uneven, even = said(UNEVEN)
    rows = [{"name": name, "size": 5029, "padded": 5032, "shards": 4} for name in ("act_vocab", "vocab")]
    assert (uneven.pop("padded"), even.pop("padded")) == (rows, [])
    assert uneven == even and even["sent"]


@pytest.mark.slow
def test_shardy_propagates_for_tpus_too():
    """As on CPUs (tests/trainers/hlo/test_partitioner.py), and the TPU compiler's own form of GSPMD's partitioner splits."""
    assert said(PARTITIONERS) == ["shardy-xla", "tpu-spmd-partitioning"]


@pytest.mark.slow
def test_tpus_sum_gradients_inside_a_slice_first():
    """On two slices of four chips only sums go over the network, and of each gradient the quarter that is a chip's after the sum
    inside its slice. Weights are gathered inside a slice."""
    report = said(SLICES)
    assert report["slices"] == [[0] * 4, [1] * 4]
    assert report["between"] == [["all-reduce", "slice"]]
    assert {"all-gather", "reduce-scatter"} <= {kind for kind, *axes in report["inside"] if axes == ["data"]}
    assert report["numbers"] == pytest.approx(report["parameters"] / 4, rel=0.02)
