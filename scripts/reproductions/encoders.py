"""MLPerf 1.1's giant encoders, ViT-22B (arXiv 2302.05442), V-MoE (arXiv 2106.05974)."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, parts, step_flops


@reproduction(
    "Google Cloud's announcement of its MLPerf 1.1 results; step times of the logs", unit="share of the chips' peak", minutes=1
)
def mlperf_utilisation() -> Iterator[Row]:
    """Both runs reach 63 % of the peak of 2048 and of 1024 TPU v4, by a count that includes recomputation."""
    for name, seconds, chips in (("bert.mlperf_480b", 22.74, 2048), ("bert.mlperf_200b", 16.83, 1024)):
        e = registry.load(name)
        tokens = 4096 * 512
        share = step_flops(name) / (e.data.batch_size * e.data.length) * tokens / (seconds * chips * 275e12)  # pyright: ignore[reportAttributeAccessIssue]
        note = f"without recomputation, {seconds} s a step of 4096 rows of 512; times 4/3: {share * 4 / 3:.3f}"
        yield Row(name, "63 %", share, note)


@reproduction("ViT-22B (arXiv 2302.05442), section 2 and Table 1", "memory", unit="parameters")
def vit_22b() -> Iterator[Row]:
    """22 billion parameters: 21,743 million."""
    matrices = ("q", "k", "v", "o", "wi", "wo")
    layers = sum(n for key, n in parts("vit.vit_22b").items() if key.startswith("encoder.") and key.split(".")[-1] in matrices)
    note = f"with patches, positions, norms, pooling and 29,593 classes: {parameters('vit.vit_22b') / 1e6:,.0f}"
    yield Row("matrices of the layers", "21,743M", layers, note)


@reproduction("ViT-22B (arXiv 2302.05442), section 4", "memory", unit="share of 1024 TPU v4's peak")
def vit_22b_mfu() -> Iterator[Row]:
    """1,150 tokens a second and chip are 54.9 % of the peak."""
    e = registry.load("vit.vit_22b")
    a_token = step_flops(e.name) / (e.data.batch_size * 256)
    yield Row("1,150 tokens/s a chip", "54.9 %", a_token * 1150 / 275e12, "FLOPs counted in the traced loss")


SMALL = (
    "--model.layers=4",
    "--model.model_dim=64",
    "--model.feed_forward.hidden_dim=128",
    "--model.attention.heads=4",
    "--model.attention.head_dim=16",
    "--data.batch_size=64",
    "--model.moe.every=1",  # with a dense layer between mixtures little is lost without experts (docs/LOG.md)
)
FACTORS = (0.0625, 0.125, 0.25, 0.5)


@reproduction(
    "V-MoE (arXiv 2106.05974), section 4 and Figure 4",
    "memory",
    unit="accuracy on 10,000 test pictures",
    kind="trained",
    minutes=15,
)
def vmoe_priority(folder: Path) -> list[Row]:
    """Batch priority lets a mixture work at a tenth of the experts' capacity, where giving slots to the first tokens that come
    loses most of the accuracy."""
    arm = training.arm("moe", training.shortened(registry.load("vit.moe_quickstart"), 600, *SMALL))
    runs = training.train(folder, [arm], range(5))["moe"]
    rows, accuracy = [], {}
    for name, priority in (("batch priority", True), ("first come", False)):
        for factor in FACTORS:
            kept = [
                training.evaluated(run, f"{name.replace(' ', '-')}-{factor:g}", _with_slots(factor, priority)) for run in runs
            ]
            accuracy[priority, factor] = [scores["eval/accuracy"] for scores in kept]
            rows.append(training.measured(f"{name}, capacity {factor:g}", accuracy[priority, factor], series=name, at=factor))
    full = [training.evaluated(run, "dropless", _with_slots(0.0, False))["eval/accuracy"] for run in runs]
    rows.append(training.measured("a slot for every choice", full))
    fewest = min(FACTORS)
    shares = {
        priority: [1 - few / all_slots for few, all_slots in zip(accuracy[priority, fewest], full, strict=True)]
        for priority in (False, True)
    }
    seeds = "five seeds, of which two were added after three had left the smallest capacity open; the same pictures"
    lost = f"first come loses {training.mean(shares[False])} of the accuracy, priority {training.mean(shares[True])}"
    small = "16 patches of 7 x 7 pixels say much the same, and attention and residuals go on without experts"
    rows.append(
        training.claim(
            f"share of the accuracy that first come loses, capacity {fewest:g}, less a half",
            training.less(shares[False], 0.5),
            1,
            "above 0 (most of it)",
            f"{lost}; {small}",
        )
    )
    for factor in FACTORS:
        gain = training.less(accuracy[True, factor], accuracy[False, factor])
        rows.append(training.claim(f"priority less first come, capacity {factor:g}", gain, 1, None, seeds))
    return rows


def _with_slots(factor: float, priority: bool) -> Callable[[Experiment], Experiment]:
    """Returns what gives a mixture so many slots at inference, not rounded up, to the largest gates or to the first tokens."""

    def change(e: Experiment) -> Experiment:
        model: Any = e.model
        slots = dict(eval_factor=factor, multiple=0, least=1, batch_priority=priority)
        moe = dataclasses.replace(model.moe, capacity=dataclasses.replace(model.moe.capacity, **slots))
        return dataclasses.replace(e, model=dataclasses.replace(model, moe=moe))

    return change
