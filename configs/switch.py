"""Switch Transformer's experiments, as its released code has them, and a small one for a first run.

Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity, arXiv 2101.03961, Table 9; where the
paper and the released configurations differ (Flaxformer's gin files), these are the latter, whose counts are the ones printed:
ReLU and 3072 or 4096 hidden units in Base and Large, 128 experts in XXL, 30 heads in C.

Every second layer is a mixture, from the second on; one expert a token; the router in float32. C4, 2^20 tokens a step.

The released group sizes (8192, 4096, 2048) are upper bounds, which Flaxformer lowers until the groups divide over the chips. Here
they are what the 2^18 positions of a step's targets allow, a group for each chip.
"""

from dataclasses import replace
from typing import Any

from configs import t5
from configs.experiment import Experiment
from configs.table import row
from models.execution import Execution
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig, MoeLosses, Top1
from models.sharding.expert_layouts import expert_fsdp, expert_fully_sharded, expert_parallel, expert_parallel_2d
from models.sharding.layout import Layout
from models.t5.config import T5Config

QUICKSTART = MoeConfig(
    experts=ExpertsConfig(count=8),
    router=Top1(),
    group_size=512,
    capacity=Capacity(factor=1.25),
    losses=MoeLosses(balance_weight=0.01),
)
KEPT = "dispatched+attention_in+attention_out"


def mixture(experts: int, group_size: int, factor: float = 1.25, least: int = 4) -> MoeConfig:
    """The mixture of the released code. In evaluation it has twice the tokens' share of slots there; here nothing is dropped."""
    return MoeConfig(
        experts=ExpertsConfig(count=experts),
        router=Top1(init_std=0.02),
        group_size=group_size,
        capacity=Capacity(factor=factor, least=least),
        losses=MoeLosses(balance_weight=0.01),
    )


def _experiment(model: T5Config, layout: Layout, **execution: Any) -> Experiment:
    e = t5.experiment(model, layout)
    return replace(e, train=replace(e.train, steps=550_000), execution=Execution(dtype="bfloat16", **execution))


def quickstart() -> Experiment:
    """A first mixture on English text: t5.quickstart with 8 experts in every second layer, at equal FLOPs a token."""
    return replace(t5.quickstart(), model=replace(t5.QUICKSTART, moe=QUICKSTART))


def bench_8e() -> Experiment:
    """t5.bench_60m with 8 experts in every second layer."""
    e = t5.bench_60m()
    moe = MoeConfig(experts=ExpertsConfig(count=8), router=Top1(), group_size=1024, capacity=Capacity(factor=1.25))
    return replace(e, model=replace(e.model, moe=moe))


def debian_sections_5k() -> Experiment:
    """t5.debian_sections_5k from a run or a release of switch.quickstart."""
    e = t5.debian_sections_5k()
    moe = replace(QUICKSTART, group_size=128)  # a step has so many target positions
    return replace(e, model=replace(e.model, moe=moe))


def _base(experts: int) -> Experiment:
    model = replace(t5.v1_0(12, 768, 3072, 12), moe=mixture(experts, 2048))
    return _experiment(model, expert_parallel(128 // min(experts, 128), min(experts, 128)))


base_8e = row(_base, "Switch-Base, 8 experts: 619,339,008 parameters.", 8)
base_16e = row(_base, "Switch-Base, 16 experts: 1,072,397,568 parameters.", 16)
base_32e = row(_base, "Switch-Base, 32 experts: 1,978,514,688 parameters.", 32)
base_64e = row(_base, "Switch-Base, 64 experts: 3,790,748,928 parameters.", 64)
base_128e = row(_base, "Switch-Base, 128 experts: 7,415,217,408 parameters (printed: 7B).", 128)
base_256e = row(_base, "Switch-Base, 256 experts: 14,664,154,368 parameters.", 256)


def large_128e() -> Experiment:
    """Switch-Large: 26,309,291,008 parameters (printed: 26B)."""
    model = replace(t5.v1_0(24, 1024, 4096, 16), moe=mixture(128, 2048))
    kept = f"{KEPT}+up+ffn_out"  # there is room: 7.5 GiB a chip
    return _experiment(model, expert_fully_sharded(1, 128), remat=kept)


def xxl_128e() -> Experiment:
    """Switch-XXL: 394,675,073,024 parameters (printed: 395B), gated GELU; 128 experts, each cut over 2 chips and gathered where
    it is used, as is everything else. Experts that are computed in eight parts (section 5.6) wait longer for links."""
    model = replace(t5.v1_1(24, 4096, 10_240, 64), moe=mixture(128, 1024, least=2))
    return _experiment(model, expert_fsdp(2, 128), remat=KEPT)


def c_2048e() -> Experiment:
    """Switch-C: 1,571,327,875,360 parameters (printed: 1.571T), every layer a mixture, experts alone over the chips.

    An expert has two slots in every group of 256 tokens, sixteen times as many as there are tokens: the price of a floor of two.
    """
    base = t5.v1_0(15, 2080, 6144, 30)
    moe = replace(mixture(2048, 256, 1.0, least=2), every=1)
    model = replace(base, tied=False, scale_logits=False, moe=moe)
    return _experiment(model, expert_parallel_2d(8, 128), remat=KEPT)
