"""Megatron-LM's PTD-P (arXiv 2104.04473): sizes, FLOPs, days of training, and bubbles of its schedules."""

from collections.abc import Iterator

from configs import registry
from models.sharding.pipelines.schedule import Schedule
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, step_flops

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


@reproduction(f"{PAPER}, section 2.2", "derived", unit="microbatches of which a stage keeps the input at once")
def stashed() -> Iterator[Row]:
    """1F1B keeps at most p microbatches where GPipe keeps all m."""
    for stages, microbatches in ((4, 32), (8, 64)):
        s = Schedule(stages, 1, microbatches)
        note = "lockstep ticks: the first stage's inputs wait for a forward and a backward sweep; independent of m"
        yield Row(f"p={stages}, m={microbatches}", stages, s.ring, note)
