"""T5 (arXiv 1910.10683), mT5 (arXiv 2010.11934), Switch Transformer (arXiv 2101.03961) and NLLB (arXiv 2207.04672)."""

from collections.abc import Mapping

from configs import registry
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, step_flops


def _sizes(printed: Mapping[str, float], differs: str = "", within: float = 0.03) -> list[Row]:
    return [Row(name, paper, parameters(name) / 1e6, differs, within) for name, paper in printed.items()]


@reproduction("T5, section 3.7; T5 v1.1 and mT5, Table 1", unit="millions of parameters", minutes=1)
def sizes() -> list[Row]:
    """Encoder-decoders from 60 million to 11 billion parameters, mT5 from 300 million to 13 billion."""
    return [
        *_sizes({"t5.v1_0_small": 60, "t5.v1_0_base": 220, "t5.v1_0_3b": 2800, "t5.v1_0_11b": 11_000}),
        *_sizes({"t5.v1_0_large": 770}, "released checkpoints have 737.7 million", 0.03),
        *_sizes(
            {"t5.mt5_small": 300, "t5.mt5_base": 580, "t5.mt5_large": 1230, "t5.mt5_xl": 3740, "t5.mt5_xxl": 12_920}
        ),
    ]


@reproduction("Switch Transformer, Table 9", unit="billions of parameters", minutes=1)
def switch_table_9() -> list[Row]:
    """FLOP-matched sparse models of 7, 26 and 395 billion parameters, and one of 1.6 trillion with an expert in every layer."""
    printed = {"switch.base_128e": 7.4, "switch.large_128e": 26.3, "switch.xxl_128e": 395.0, "switch.c_2048e": 1571.0}
    notes = {
        "switch.xxl_128e": "the paper's table prints 64 experts, which would give 201 billion",
        "switch.c_2048e": "heads of the released configuration, 30, where the paper prints 32",
    }
    return [Row(k, v, parameters(k) / 1e9, notes.get(k, "")) for k, v in printed.items()]


@reproduction("Switch Transformer, Table 9", unit="10^9 FLOP of a sequence, forward", minutes=2)
def switch_flops() -> list[Row]:
    """A sparse model needs the FLOPs of the dense one beside it: 124, 425 and 6300 billion a sequence."""
    printed = {
        "t5.v1_1_base": 124, "switch.base_128e": 124, "t5.v1_1_large": 425, "switch.large_128e": 425, "t5.v1_1_xxl": 6300,
        "switch.xxl_128e": 6300, "switch.c_2048e": 890,
    }  # fmt: skip
    dense = "512 inputs and 114 targets in rows of 128, every product; the paper does not say what it counts"
    sparse = "as the dense one, and 1.25 slots of experts' buffers for each token, filled or not"
    notes = {
        "switch.c_2048e": "experts have 2 slots or more (Flaxformer's least): a device's 256 tokens have 4,096 slots"
    }
    rows = []
    for name, paper in printed.items():
        e = registry.load(name)
        ours = step_flops(name) / 3 / e.data.batch_size / 1e9
        rows.append(Row(name, paper, ours, notes.get(name, dense if name.startswith("t5") else sparse), within=0.02))
    return rows


@reproduction(
    "Switch Transformer, sections 3.1 and 5.6", unit="parameters over those of the dense model with equal FLOPs"
)
def switch_scaling() -> list[Row]:
    """Experts add parameters and no FLOPs a token: from 8 to 256 of them, at T5-Base's FLOPs."""
    dense = parameters("t5.v1_0_base")
    stated = {8: None, 16: None, 32: None, 64: 3.8e9, 128: 7.4e9, 256: 14.7e9}
    return [
        Row(f"{n} experts", paper and paper / dense, parameters(f"switch.base_{n}e") / dense, within=0.02)
        for n, paper in stated.items()
    ]


@reproduction("NLLB, section 8.2 and Table 51; M2M-100 (arXiv 2010.11125)", unit="millions of parameters")
def translators() -> list[Row]:
    """Dense translators of 600 million to 3.3 billion parameters, and a mixture of 54.5 billion."""
    stated = {"nllb.n600m": 615, "nllb.n1_3b": 1370, "nllb.n3_3b": 3340, "nllb.moe_54b": 54_500, "m2m100.b1_2": 1239}
    return [*_sizes(stated), *_sizes({"m2m100.m418": 484}, "called 418M, without its table of words")]
