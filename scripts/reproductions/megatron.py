"""Megatron-LM's PTD-P (arXiv 2104.04473): sizes, FLOPs, days of training, bubbles of its schedules, and traffic."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs import registry
from configs.experiment import Experiment
from models.parts.nested import changed
from models.sharding.pipelines.schedule import Schedule
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.plans import modelled
from scripts.reproductions.sizes import parameters, step_flops

if TYPE_CHECKING:
    from trainers.hlo.collectives import Collective

PAPER = "PTD-P (arXiv 2104.04473)"
# Billions of parameters: layers, hidden size, batch (Table 1).
MODELS = {
    "1.7": (24, 2304, 512),
    "3.6": (30, 3072, 512),
    "7.5": (36, 4096, 512),
    "18.4": (40, 6144, 1024),
    "39.1": (48, 8192, 1536),
    "76.1": (60, 10_240, 1792),
    "145.6": (80, 12_288, 2304),
    "310.1": (96, 16_384, 2160),
    "529.6": (105, 20_480, 2520),
    "1008.0": (128, 25_600, 3072),
}
LENGTH, VOCAB = 2048, 51_200


def _name(size: str) -> str:
    return f"gpt.megatron_{size.removesuffix('.0').replace('.', '_')}b"


@reproduction(f"{PAPER}, Table 1", unit="parameters")
def table_1_sizes() -> Iterator[Row]:
    """Ten decoders from 1.7 billion to a trillion parameters."""
    for size in MODELS:
        yield Row(size, f"{size}B", parameters(_name(size)))


@reproduction(
    f"{PAPER}, section 5.1, equation 3", "derived", unit="10^15 FLOP of an iteration, recomputation not counted", minutes=1
)
def iteration_flops() -> Iterator[Row]:
    """An iteration has 96 B s l h^2 (1 + s / 6h + V / 16lh) FLOPs, of which a quarter is recomputation of the layers."""
    for size, (layers, hidden, batch) in MODELS.items():
        body = 72 * batch * LENGTH * layers * hidden**2 * (1 + LENGTH / (6 * hidden))
        formula = body + 6 * batch * LENGTH * hidden * VOCAB
        name = _name(size)  # some experiments have another batch than the paper, one that divides by their mesh
        flops = step_flops(name) * batch / registry.load(name).data.batch_size
        yield Row(
            size, formula / 1e15, flops / 1e15, "the printed formula at the printed sizes; ours is counted in the traced loss"
        )


@reproduction(f"{PAPER}, Table 2", kind="consistency", unit="days to 300 billion tokens")
def table_2_days() -> Iterator[Row]:
    """With twice the GPUs PTD-P needs half the days, ZeRO-3 does not: 84 and 43 days, 90 and 74, at 175 billion parameters."""
    for system, size, gpus, rate, days in (
        ("ZeRO-3", 174.6, 384, 144, 90),
        ("ZeRO-3", 174.6, 768, 88, 74),
        ("ZeRO-3", 174.6, 1536, 44, 74),
        ("PTD-P", 174.6, 384, 153, 84),
        ("PTD-P", 174.6, 768, 149, 43),
        ("PTD-P", 174.6, 1536, 141, 23),
        ("ZeRO-3", 529.6, 640, 138, 169),
        ("ZeRO-3", 529.6, 1120, 98, 137),
        ("ZeRO-3", 529.6, 2240, 48, 140),
        ("PTD-P", 529.6, 560, 171, 156),
        ("PTD-P", 529.6, 1120, 167, 80),
        ("PTD-P", 529.6, 2240, 159, 42),
    ):
        by_formula = 8 * 300e9 * size * 1e9 / (gpus * rate * 1e12) / 86_400
        note = "8 T P / (n X) at the table's own TFLOP/s: the paper's figures against each other"
        yield Row(f"{system}, {size}B, {gpus} GPUs", str(days), by_formula, note)


@reproduction(f"{PAPER}, Figure 12", "chart", unit="throughput, interleaved over not")
def interleaving() -> Iterator[Row]:
    """The interleaved schedule is faster, by most at small batches (GPT-3 on 96 GPUs: 12 stages, tensor parallel 8)."""
    read = {12: 119 / 82, 24: 134 / 109, 36: 141 / 122, 48: 143 / 130, 60: 146 / 135}
    for microbatches, paper in read.items():
        plain, interleaved = Schedule(12, 1, microbatches).idle(), Schedule(12, 2, microbatches).idle()
        note = "by the bubble alone, two chunks a stage; the paper's is read off a chart, its exchanges included"
        yield Row(f"batch {microbatches}", paper, (1 + plain) / (1 + interleaved), note)


@reproduction(
    f"{PAPER}, section 1", "memory", unit="throughput over that of the same stages in one chunk", kind="modelled", minutes=25
)
def interleaved_plans(folder: Path) -> Iterator[Row]:
    """The interleaved schedule improves throughput by more than 10 %, here of the sizes of Table 1 that have several stages."""
    for size in ("39.1", "145.6", "310.1"):
        name = f"{_name(size)}_pipelined"
        layout = registry.load(name).layout
        ((component, pipeline),) = layout.pipelines
        plain = dataclasses.replace(
            layout, name="pipeline_1f1b", pipelines=((component, dataclasses.replace(pipeline, chunks=1)),)
        )
        chunks, one = modelled(folder, name), modelled(folder, name, plain)
        stages = dict(layout.mesh)["stage"]
        schedule, alone = (Schedule(stages, v, pipeline.microbatches) for v in (pipeline.chunks, 1))
        note = (
            f"{chunks['topology']}, {pipeline.chunks} chunks: {chunks['modelled_step_s']:.2f} s, {chunks['modelled_mfu']:.3f} "
            f"MFU, {chunks['hbm_gib_per_chip']:.1f} GiB; one: {one['modelled_step_s']:.2f} s, {one['modelled_mfu']:.3f} MFU, "
            f"{one['hbm_gib_per_chip']:.1f} GiB; by the bubble alone {(1 + alone.bubble) / (1 + schedule.bubble):.3f}"
        )
        yield Row(f"{size}B, {stages} stages", 1.1, one["modelled_step_s"] / chunks["modelled_step_s"], note)


@reproduction(f"{PAPER}, section 2.2", "derived", unit="microbatches of which a stage keeps the input at once")
def stashed() -> Iterator[Row]:
    """1F1B keeps at most p microbatches where GPipe keeps all m."""
    for stages, microbatches in ((4, 32), (8, 64)):
        s = Schedule(stages, 1, microbatches)
        note = "lockstep ticks: the first stage's inputs wait for a forward and a backward sweep; independent of m"
        yield Row(f"p={stages}, m={microbatches}", stages, s.ring, note)


@reproduction(f"{PAPER}, Figure 6", "derived", unit="bubble over the time of the work", minutes=1)
def bubble_sizes() -> Iterator[Row]:
    """With n GPUs in pipelines, d copies of the model and b' microbatches in all, the bubble is (n - d) / b'."""
    for gpus, microbatches, copies in ((32, 32, 1), (32, 32, 8), (32, 128, 8), (128, 128, 8)):
        stages, each = gpus // copies, microbatches // copies
        note = "turns of the loop over ticks in our traced loss, less its microbatches; n and b' of the figure are from memory"
        ours = _turns(stages, each) / each - 1
        yield Row(f"n={gpus}, b'={microbatches}, d={copies}", (gpus - copies) / microbatches, ours, note)


def _turns(stages: int, microbatches: int) -> int:
    """Returns how often the loop over a pipeline's ticks turns in the traced loss of a narrow decoder, a layer a stage."""
    import jax
    import jax.numpy as jnp

    from data.reading.batches import batch_shapes
    from models.protocol import Context
    from models.sharding.params import with_params
    from trainers.plan import make_plan

    e = _narrow("gpipe", stages, 1, 1, microbatches=microbatches, layers=stages, batch=microbatches)
    plan = make_plan(e, abstract=True)
    context = Context(jax.random.key(0), jnp.zeros((), jnp.int32), training=True)
    loss = jax.make_jaxpr(lambda params, batch: with_params(plan.model, plan.for_model(params)).loss(batch, context).value)
    return max(_loops(loss(plan.state.params, batch_shapes(e.data)).jaxpr))


def _loops(jaxpr: Any) -> Iterator[int]:
    """Yields the length of every scan in a jaxpr, those in its calls and loops included."""
    from jax.extend.core import jaxprs_in_params

    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield eqn.params["length"]
        for inner in jaxprs_in_params(eqn.params):
            yield from _loops(inner)


def _narrow(recipe: str, *mesh: int, microbatches: int = 0, layers: int = 2, batch: int = 8) -> Experiment:
    """Returns a decoder of the paper's form with layers of 64, under a layout."""
    from models.families import family_of

    e = registry.load("gpt.megatron_1_7b")
    sizes = {"layers": layers, "model_dim": 64, "feed_forward.hidden_dim": 256, "vocab": 512}
    model: Any = changed(e.model, sizes | {"attention.heads": 8, "attention.head_dim": 8})
    data: Any = e.data
    return dataclasses.replace(
        e,
        model=model,
        layout=family_of(model).layouts[recipe](*mesh, microbatches=microbatches),
        data=dataclasses.replace(data, batch_size=batch, length=32),
        execution=dataclasses.replace(e.execution, remat="none", dtype="float32"),
    )


@reproduction(f"{PAPER}, sections 3.2 and 4.1", "derived", unit="b s h that a device sends", minutes=2)
def traffic() -> Iterator[Row]:
    """Tensor parallelism over t devices sends 8 b s h (t - 1) / t a layer and microbatch; to the next stage goes b s h / t where
    each of t devices sends its part."""
    for size in (2, 8):
        e = _narrow("tensor_parallel", 8 // size, size)
        reduced = [c for c in _collectives(e) if c.kind == "all-reduce" and c.axes == ("model",) and c.loops]
        ours = sum(c.bytes for c in reduced) * 2 * (size - 1) / size / _activation(e)
        note = "all-reduces in the compiled step: two forward, and backward one and three, of q, k and v, where the paper has one"
        yield Row(f"a layer, t={size}", 8 * (size - 1) / size, ours, note)
    e = _narrow("gpipe", 2, 1, 4, microbatches=2, layers=2)
    sent = max(c.bytes for c in _collectives(e) if c.kind == "collective-permute")
    note = "in the compiled step of 2 stages each device sends the whole, as the paper's do without scatter/gather"
    yield Row("to the next stage, t=4", 1 / 4, 2 * sent / _activation(e), note)


def _collectives(e: Experiment) -> list[Collective]:
    """Returns the collectives of a compiled step; needs as many devices as the layout has."""
    from trainers import step
    from trainers.hlo import tables
    from trainers.plan import make_plan

    plan = make_plan(e)
    return tables.compiled_collectives(plan, step.compile_step(plan))


def _activation(e: Experiment) -> float:
    """Returns the bytes of b s h on a device: float32, the batch cut over the layout's axis of data."""
    model, data = e.model, e.data
    return 4 * data.batch_size * data.length * model.model_dim / dict(e.layout.mesh)["data"]  # pyright: ignore[reportAttributeAccessIssue]


@reproduction(f"{PAPER}, Figure 11", "chart", unit="throughput a GPU over that of one stage")
def weak_scaling() -> Iterator[Row]:
    """With as many more layers as stages, throughput falls with the bubble: to half of it at 8 stages and a batch of 8."""
    read = {8: {1: 165, 2: 142, 4: 121, 8: 87}, 128: {1: 175, 2: 169, 4: 166, 8: 161}}
    for batch, rates in read.items():
        for stages in (2, 4, 8):
            note = "by the bubble of our schedule alone; the paper's has its exchanges too"
            ours = 1 / (1 + Schedule(stages, 1, batch).idle())
            yield Row(f"batch {batch}, {stages} stages", rates[stages] / rates[1], ours, note)


@reproduction(f"{PAPER}, section 5.4.2 and Figure 14", unit="numbers of stages, the fastest first")
def pipeline_or_data() -> Iterator[Row]:
    """On 64 GPUs a model that fits on 2 is the slower the more of them are stages, and the fewer copies."""
    gpus, batch = 64, 512
    idle = {stages: Schedule(stages, 1, batch * stages // gpus).idle() for stages in (2, 4, 8, 16, 32)}
    note = "by the bubble of our schedule; the order is the text's, for every batch: the chart's values were not read"
    yield Row(f"batch {batch}", "2 4 8 16 32", " ".join(map(str, sorted(idle, key=idle.__getitem__))), note)


# Figure 13's (stages, tensor-parallel GPUs): TFLOP/s a GPU by the batch.
TENSOR_OR_PIPELINE = {
    32: {(2, 32): 103, (4, 16): 134, (8, 8): 140, (16, 4): 111, (32, 2): 91},
    128: {(2, 32): 107, (4, 16): 146, (8, 8): 165, (16, 4): 162, (32, 2): 148},
}
NODE = 8  # GPUs of a server
NETWORK = 25e9  # bytes/s of a GPU's own network card in one direction: 200 Gb/s, section 5
NVLINK = 300e9  # bytes/s of an A100's links within a server in one direction, from memory
RATE = 175e12  # FLOP/s of a GPU in one stage, Figure 11


@reproduction(f"{PAPER}, Figure 13", "chart", kind="modelled", unit="throughput over that of (8, 8)", minutes=1)
def tensor_or_pipeline() -> Iterator[Row]:
    """162 billion parameters on 64 GPUs are fastest where tensor parallelism fills a server, and pipelines join servers."""
    layers, hidden = 32, 20_480
    layer = 12 * hidden**2

    def throughput(stages: int, tensor: int, batch: int) -> float:
        work = 8 * layer * LENGTH / tensor / RATE  # a layer of a microbatch of one row, forward twice
        ring = 12 * LENGTH * hidden * 2 * (tensor - 1) / tensor  # six all-reduces: two of them recomputed
        # Between servers all cards of a server carry one ring's data.
        link = NVLINK if tensor <= NODE else min(NVLINK, NODE * NETWORK)
        return 1 / ((work + ring / link) * (layers / stages) * batch * (1 + Schedule(stages, 1, batch).idle()))

    for batch, rates in TENSOR_OR_PIPELINE.items():
        for (stages, tensor), rate in rates.items():
            if (stages, tensor) != (8, 8):
                note = "our schedule's bubble, and all-reduces that nothing hides; small products of few columns are not modelled"
                ours = throughput(stages, tensor, batch) / throughput(8, 8, batch)
                yield Row(f"batch {batch}, p={stages}, t={tensor}", rate / rates[8, 8], ours, note)


@reproduction(
    f"{PAPER}, Table 2 and Figure 10", "derived", kind="modelled", unit="ZeRO-3's throughput a GPU over PTD-P's", minutes=1
)
def zero() -> Iterator[Row]:
    """With twice the GPUs and the same batch, ZeRO-3 without model parallelism waits for its weights: PTD-P is 70 % faster."""
    # Parameters, batch: (GPUs, ZeRO-3's TFLOP/s, PTD-P's).
    printed = {
        (174.6, 1536): ((384, 144, 153), (768, 88, 149), (1536, 44, 141)),
        (529.6, 2240): ((1120, 98, 167), (2240, 48, 159)),
    }
    name = {174.6: "gpt.gpt3_175b", 529.6: "gpt.megatron_529_6b"}
    for (size, batch), rows in printed.items():
        weights = 2 * parameters(name[size])  # bytes of bfloat16
        flops = step_flops(name[size]) / registry.load(name[size]).data.batch_size * batch * 4 / 3  # forward twice
        for gpus, zero_rate, rate in rows:
            computed = flops / gpus / (rate * 1e12)
            moved = 3 * weights / NETWORK  # gathered forward and backward, gradients scattered once
            note = "`fully_sharded` moves the weights three times, at 25 GB/s, all hidden behind products at PTD-P's rate"
            yield Row(f"{size}B, {gpus} GPUs", zero_rate / rate, computed / max(computed, moved), note)


@reproduction(f"{PAPER}, Figure 17", "chart", unit="sequences a second, recomputed over not")
def recomputation() -> Iterator[Row]:
    """Recomputation costs up to a third at small batches, and allows batches at which throughput is twice the best without it."""
    from trainers.hlo import model_flops, variants

    e = registry.load("gpt.megatron_145_6b")
    once, twice = (model_flops.program_flops(variants.with_remat(e, policy)) for policy in ("none", "full"))
    note = "FLOPs of our traced steps: what no gradient reads, the last product of a layer, is not computed again"
    yield Row("batch 8", 3.0 / 3.9, once / twice, note)
    few, many = (1 + Schedule(16, 1, m).idle() for m in (8, 256))
    yield Row("batch 256 over batch 8 without", 7.8 / 3.9, once / twice * few / many, "the same, and the bubble of 16 stages")


@reproduction(
    f"{PAPER}, section 3.4, Figures 7 and 8", kind="modelled", unit="throughput over that of one row, and the best rows"
)
def microbatch() -> Iterator[Row]:
    """Larger microbatches make a GPU up to 1.3 times as fast (a billion parameters in 4 layers of 4096), and 4 rows are best in 8
    stages, in spite of the bubble."""
    from models.families import family_of
    from trainers.pods.bound import bound
    from trainers.runtime.chips import parse_slice

    e = registry.load("gpt.megatron_1_7b")
    sizes = {"layers": 4, "model_dim": 4096, "feed_forward.hidden_dim": 16_384, "attention.heads": 128, "attention.head_dim": 32}
    model: Any = changed(e.model, sizes)
    data: Any = e.data
    whole = family_of(model).layouts["data_parallel"](1, 1)
    e = dataclasses.replace(e, name="", model=model, layout=whole)
    rows = (1, 2, 4, 8)
    chip = parse_slice("v4:1x1x1")
    seconds = {b: bound(dataclasses.replace(e, data=dataclasses.replace(data, batch_size=b)), chip).step_s for b in rows}
    note = "the planner's quick estimate, of v4: products reach one share of the peak, whatever their size"
    yield Row("one GPU, the fastest microbatch", "1.3", max(b * seconds[1] / seconds[b] for b in rows), note)
    stages, batch = 8, 512
    times = {b: (batch / b + stages - 1) * seconds[b] for b in rows}  # the paper's equation 1
    yield Row(f"{stages} stages, batch {batch}", "4", min(times, key=times.__getitem__), f"{note}; the batch is from memory")
