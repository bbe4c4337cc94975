"""BERT (arXiv 1810.04805) and MLPerf 1.1's giant encoders; ViT (arXiv 2010.11929, 2106.04560), ViT-22B (arXiv 2302.05442), V-MoE
(arXiv 2106.05974)."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, parts, step_flops


@reproduction(
    "BERT, section 3; RoBERTa (arXiv 1907.11692); ModernBERT (arXiv 2412.13663)", unit="millions of parameters"
)
def bert() -> list[Row]:
    """Encoders of 110 and 340 million parameters, and their followers."""
    printed = {"bert.base": 110, "bert.large": 340, "bert.roberta_base": 125, "bert.modernbert_base": 149}
    return [Row(name, paper, parameters(name) / 1e6, within=0.02) for name, paper in printed.items()]


@reproduction("MLPerf training 1.1, Google's code in the open division", unit="parameters")
def mlperf_sizes() -> list[Row]:
    """Encoders of 481,815,347,200 and 199,717,148,096 parameters."""
    printed = {"bert.mlperf_480b": 481_815_347_200, "bert.mlperf_200b": 199_717_148_096}
    return [Row(name, paper, parameters(name), within=1e-12) for name, paper in printed.items()]


@reproduction("MLPerf training 1.1, Google's logs in the open division", unit="share of the chips' peak", minutes=1)
def mlperf_utilisation() -> list[Row]:
    """Both runs reach 63 % of the peak of 2048 and of 1024 TPU v4, by a count that includes recomputation."""
    rows = []
    for name, seconds, chips in (("bert.mlperf_480b", 22.74, 2048), ("bert.mlperf_200b", 16.83, 1024)):
        e = registry.load(name)
        tokens = 4096 * 512
        share = step_flops(name) / (e.data.batch_size * e.data.length) * tokens / (seconds * chips * 275e12)  # pyright: ignore[reportAttributeAccessIssue]
        note = f"without recomputation, {seconds} s a step of 4096 rows of 512; times 4/3: {share * 4 / 3:.3f}"
        rows.append(Row(name, 0.63, share, note))
    return rows


@reproduction("Scaling ViT, Table 2; ViT, Table 1", unit="millions of parameters")
def vit() -> list[Row]:
    """Vision transformers from 86 million to 3.9 billion parameters."""
    printed = {
        "vit.b16": 86,
        "vit.l16": 307,
        "vit.h14": 632,
        "vit.giant_14": 1011,
        "vit.gigantic_14": 1843,
        "vit.e14": 3926,
    }
    rows = []
    for name, paper in printed.items():
        head = 0 if name == "vit.e14" else sum(n for key, n in parts(name).items() if key.startswith("head."))
        note = "with its pooling and classes" if name == "vit.e14" else "without its head"
        rows.append(Row(name, paper, (parameters(name) - head) / 1e6, note, within=0.02))
    return rows


@reproduction("ViT-22B, section 2 and Table 1", unit="millions of parameters")
def vit_22b() -> list[Row]:
    """22 billion parameters: 21,743 million."""
    matrices = ("q", "k", "v", "o", "wi", "wo")
    layers = sum(
        n for key, n in parts("vit.vit_22b").items() if key.startswith("encoder.") and key.split(".")[-1] in matrices
    )
    note = f"with patches, positions, norms, pooling and 29,593 classes: {parameters('vit.vit_22b') / 1e6:,.0f}"
    return [Row("matrices of the layers", 21_743, layers / 1e6, note, within=1e-4)]


@reproduction("ViT-22B, section 4", unit="share of 1024 TPU v4's peak")
def vit_22b_mfu() -> list[Row]:
    """1,150 tokens a second and chip are 54.9 % of the peak."""
    e = registry.load("vit.vit_22b")
    a_token = step_flops(e.name) / (e.data.batch_size * 256)
    return [
        Row("1,150 tokens/s a chip", 0.549, a_token * 1150 / 275e12, "FLOPs counted in the traced loss", within=0.01)
    ]


@reproduction("V-MoE, Table 8 and section 3", unit="billions of parameters")
def vmoe() -> list[Row]:
    """Sparse vision transformers of 3.4, 7.2 and 14.7 billion parameters."""
    printed = {"vit.moe_l16_32e": 3.4, "vit.moe_h14_32e": 7.2, "vit.moe_15b": 14.7}
    rows = []
    for name, paper in printed.items():
        head = sum(n for key, n in parts(name).items() if key.startswith("head."))
        rows.append(Row(name, paper, (parameters(name) - head) / 1e9, "without classes", within=0.02))
    return rows


SMALL = (
    "--model.layers=4", "--model.model_dim=64", "--model.hidden_dim=128", "--model.heads=4", "--model.head_dim=16",
    "--data.batch_size=64",
)  # fmt: skip
FACTORS = (0.0625, 0.125, 0.25, 0.5)


@reproduction("V-MoE, section 4 and Figure 4", unit="accuracy on 10,000 test pictures", kind="trained", minutes=10)
def vmoe_priority(folder: Path) -> list[Row]:
    """Batch priority lets a mixture work at a tenth of the experts' capacity, where giving slots to the first tokens that come
    loses most of the accuracy."""
    arm = training.arm("moe", training.shortened(registry.load("vit.moe_quickstart"), 300, *SMALL))
    runs = training.train(folder, [arm])["moe"]
    rows, found = [], {}
    for name, priority in (("batch priority", True), ("first come", False)):
        for factor in FACTORS:
            kept = [
                training.evaluated(run, f"{name.replace(' ', '-')}-{factor:g}", _with_slots(factor, priority))
                for run in runs
            ]
            found[priority, factor] = [scores["eval/accuracy"] for scores in kept]
            rows.append(
                training.measured(f"{name}, capacity {factor:g}", found[priority, factor], series=name, at=factor)
            )
    full = [training.evaluated(run, "dropless", _with_slots(0.0, False))["eval/accuracy"] for run in runs]
    rows.append(training.measured("a slot for every choice", full))
    for factor in FACTORS:
        gain = training.less(found[True, factor], found[False, factor])
        rows.append(training.claim(f"priority less first come, capacity {factor:g}", gain, 1))
    lost = {priority: training.less(full, found[priority, 0.125]) for priority in (True, False)}
    note = (
        f"at an eighth first come loses {lost[False]} and priority {lost[True]}; half of the layers are no mixture, and 16 "
        "patches of 7 x 7 pixels say much the same"
    )
    return [*rows, training.claim("what first come loses at an eighth", lost[False], 1, None, note)]


def _with_slots(factor: float, priority: bool) -> Callable[[Experiment], Experiment]:
    """Returns what gives a mixture so many slots at inference, not rounded up, to the largest gates or to the first tokens."""

    def change(e: Experiment) -> Experiment:
        model: Any = e.model
        slots = dict(eval_capacity_factor=factor, capacity_multiple=0, min_capacity=1, batch_priority=priority)
        return dataclasses.replace(e, model=dataclasses.replace(model, moe=dataclasses.replace(model.moe, **slots)))

    return change
