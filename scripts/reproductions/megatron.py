"""Megatron-LM's PTD-P (arXiv 2104.04473): sizes, FLOPs, days of training, and bubbles of its schedules."""

from configs import registry
from models.sharding.pipelines.schedule import Schedule
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, step_flops

PAPER = "PTD-P (arXiv 2104.04473)"
# Billions of parameters: layers, hidden size, batch, GPUs, TFLOP/s of a GPU (Table 1).
MODELS = {
    "1.7": (24, 2304, 512, 32, 137), "3.6": (30, 3072, 512, 64, 138), "7.5": (36, 4096, 512, 128, 142),
    "18.4": (40, 6144, 1024, 256, 135), "39.1": (48, 8192, 1536, 512, 138), "76.1": (60, 10_240, 1792, 1024, 140),
    "145.6": (80, 12_288, 2304, 1536, 148), "310.1": (96, 16_384, 2160, 1920, 155), "529.6": (105, 20_480, 2520, 2520, 163),
    "1008": (128, 25_600, 3072, 3072, 163),
}  # fmt: skip
LENGTH, VOCAB = 2048, 51_200


def _name(size: str) -> str:
    return f"gpt.megatron_{size.replace('.', '_')}b"


def _flops(size: str) -> float:
    """Returns the FLOPs of an iteration of the paper's batch; some experiments here have another, that divides by their mesh."""
    name = _name(size)
    return step_flops(name) * MODELS[size][2] / registry.load(name).data.batch_size


@reproduction(f"{PAPER}, Table 1", unit="billions of parameters")
def table_1_sizes() -> list[Row]:
    """Ten decoders from 1.7 billion to a trillion parameters."""
    return [Row(size, float(size), parameters(_name(size)) / 1e9, within=0.03) for size in MODELS]


@reproduction(
    f"{PAPER}, section 5.1, equation 3", unit="10^15 FLOP of an iteration, recomputation not counted", minutes=1
)
def iteration_flops() -> list[Row]:
    """An iteration has 96 B s l h^2 (1 + s / 6h + V / 16lh) FLOPs, of which a quarter is recomputation of the layers."""
    rows = []
    for size, (layers, hidden, batch, *_) in MODELS.items():
        body = 72 * batch * LENGTH * layers * hidden**2 * (1 + LENGTH / (6 * hidden))
        formula = body + 6 * batch * LENGTH * hidden * VOCAB
        rows.append(Row(size, formula / 1e15, _flops(size) / 1e15, "counted in the traced loss", within=1e-3))
    return rows


@reproduction(f"{PAPER}, Table 1", unit="seconds of an iteration")
def table_1_seconds() -> list[Row]:
    """Iterations take from 3.5 s (1.7 billion parameters, 32 GPUs) to 102.6 s (a trillion, 3072 GPUs)."""
    printed = {
        "1.7": 3.53, "3.6": 3.70, "7.5": 3.70, "18.4": 9.40, "39.1": 14.45, "76.1": 16.06, "145.6": 24.82, "310.1": 37.61,
        "529.6": 54.08, "1008": 102.6,
    }  # fmt: skip
    rows = []
    for size, (layers, hidden, batch, gpus, rate) in MODELS.items():
        recomputed = 24 * batch * LENGTH * layers * hidden**2 * (1 + LENGTH / (6 * hidden))
        ours = (_flops(size) + recomputed) / (gpus * rate * 1e12)
        rows.append(Row(size, printed[size], ours, "our FLOPs at the paper's TFLOP/s a GPU", within=0.02))
    return rows


@reproduction(f"{PAPER}, Table 2", unit="days to 300 billion tokens")
def table_2_days() -> list[Row]:
    """With twice the GPUs PTD-P needs half the days, ZeRO-3 does not: 84 and 43 days, 90 and 74, at 175 billion parameters."""
    rows = []
    for label, size, gpus, rate, days in (
        ("PTD-P, 174.6B, 384 GPUs", 174.6e9, 384, 153, 84), ("PTD-P, 174.6B, 768 GPUs", 174.6e9, 768, 149, 43),
        ("PTD-P, 174.6B, 1536 GPUs", 174.6e9, 1536, 141, 23), ("ZeRO-3, 174.6B, 384 GPUs", 174.6e9, 384, 144, 90),
        ("ZeRO-3, 174.6B, 768 GPUs", 174.6e9, 768, 88, 74), ("PTD-P, 529.6B, 1120 GPUs", 529.6e9, 1120, 167, 80),
        ("ZeRO-3, 529.6B, 2240 GPUs", 529.6e9, 2240, 48, 140),
    ):  # fmt: skip
        ours = 8 * 300e9 * size / (gpus * rate * 1e12) / 86_400
        rows.append(Row(label, days, ours, "8 T P / (n X), at the paper's TFLOP/s", within=0.04))
    return rows


@reproduction(f"{PAPER}, section 2.2", unit="idle time over that of the work")
def bubbles() -> list[Row]:
    """The bubble is (p - 1) / m under GPipe and 1F1B, and 1 / v of it with v chunks of layers on a stage."""
    rows = []
    for stages, chunks, microbatches in ((4, 1, 8), (8, 1, 32), (8, 2, 32), (8, 4, 64), (64, 1, 512), (64, 2, 512)):
        s = Schedule(stages, chunks, microbatches)
        label = f"p={stages}, v={chunks}, m={microbatches}"
        rows.append(Row(label, (stages - 1) / (chunks * microbatches), s.idle(), "counted in the timeline of ticks"))
    return rows


@reproduction(f"{PAPER}, Figure 12", unit="throughput, interleaved over not")
def interleaving() -> list[Row]:
    """The interleaved schedule is faster, by most at small batches (GPT-3 on 96 GPUs: 12 stages, tensor parallel 8)."""
    read = {12: 119 / 82, 24: 134 / 109, 36: 141 / 122, 48: 143 / 130, 60: 146 / 135}
    rows = []
    for microbatches, paper in read.items():
        plain, interleaved = Schedule(12, 1, microbatches).idle(), Schedule(12, 2, microbatches).idle()
        note = "by the bubble alone, two chunks a stage; the paper's is read off a chart, its exchanges included"
        rows.append(Row(f"batch {microbatches}", paper, (1 + plain) / (1 + interleaved), note, within=0.05))
    return rows


@reproduction(f"{PAPER}, section 2.2", unit="microbatches of which a stage keeps the input at once")
def stashed() -> list[Row]:
    """1F1B keeps at most p microbatches where GPipe keeps all m."""
    rows = []
    for stages, microbatches in ((4, 32), (8, 64)):
        s = Schedule(stages, 1, microbatches)
        note = "lockstep ticks: the first stage's inputs wait for a forward and a backward sweep; independent of m"
        rows.append(Row(f"p={stages}, m={microbatches}", stages, s.ring, note))
    return rows
