"""Calibration of modelled figures: runs on TPU pods with published throughput, rebuilt and modelled.

`python -m scripts.plan --calibrate` compiles every point anew and rewrites calibration.json, from which all errors are computed.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs import bert, gpt, vit
from configs.experiment import Experiment
from models.sharding.layout import Layout
from models.sharding.layouts import fully_sharded, two_d

FILE = Path(__file__).with_name("calibration.json")


@dataclasses.dataclass(frozen=True)
class Point:
    """A published run: its MFU by PaLM's definition, as published or from the published step time, and its source."""

    experiment: Callable[[], Experiment]
    topology: str
    mfu: float
    source: str


def _published_480b() -> Experiment:
    e = bert.mlperf_480b()
    return replace(e, execution=replace(e.execution, remat="full"))


def _published_200b() -> Experiment:
    e = bert.mlperf_200b()
    execution = replace(e.execution, remat="attention_in+context+attention_out")
    return replace(e, execution=execution, layout=replace(two_d(64, 16), name="mlperf_200b"))


def _published_maxtext(e: Experiment) -> Experiment:
    execution = replace(e.execution, remat="full", loss_chunks=1)
    return replace(e, execution=execution, layout=fully_sharded(e.layout.devices, 1))


def _published_palm() -> Experiment:
    e = gpt.palm_540b()  # half of the batch: one pod of the two
    return replace(e, data=replace(e.data, batch_size=1024), execution=replace(e.execution, remat="full"))


def _published_vit_22b() -> Experiment:
    """Weights and activations cut in two dimensions, as the paper says; how far in each is ours."""
    e = vit.vit_22b()
    return replace(e, execution=replace(e.execution, remat="full"), layout=two_d(256, 4))


def _maxtext_v5(layers: int, dim: int, hidden: int, heads: int, rows: int, layout: Layout) -> Experiment:
    """MaxText's decoders for v5e and v5p: heads of 128, gated SiLU, rows of 2048 tokens, everything recomputed."""
    e = gpt.maxtext_22b()
    model = replace(
        e.model, layers=layers, model_dim=dim, hidden_dim=hidden, heads=heads, head_dim=128, activation="silu", gated=True,
    )  # fmt: skip
    execution = replace(e.execution, remat="full", loss_chunks=4)
    return replace(
        e, model=model, execution=execution, layout=layout, data=replace(e.data, batch_size=rows, length=2048)
    )


V5E = "MaxText's README, 256 v5e"
V5P = "MaxText's README of its v5p configurations"
POINTS = {
    "mlperf_480b": Point(_published_480b, "v4:8x16x16", 0.475, "MLPerf 1.1 logs, 22.74 s a step"),
    "mlperf_200b": Point(_published_200b, "v4:8x8x16", 0.531, "MLPerf 1.1 logs, 16.83 s a step"),
    "maxtext_22b": Point(lambda: _published_maxtext(gpt.maxtext_22b()), "v4:4x4x4", 0.567, "MaxText's README of 2023"),
    "maxtext_52b": Point(lambda: _published_maxtext(gpt.maxtext_52b()), "v4:4x4x12", 0.560, "MaxText's README of 2023"),
    "palm_540b": Point(_published_palm, "v4:12x16x16", 0.462, "arXiv 2204.02311, section 4.1"),
    "vit_22b": Point(_published_vit_22b, "v4:8x8x16", 0.549, "arXiv 2302.05442, section 4"),
    "v5e_16b": Point(
        lambda: _maxtext_v5(32, 4096, 28_672, 64, 6 * 256, fully_sharded(256, 1)), "v5e:16x16", 0.611, V5E
    ),
    "v5e_32b": Point(
        lambda: _maxtext_v5(32, 8192, 28_672, 64, 4 * 256, fully_sharded(256, 1)), "v5e:16x16", 0.669, V5E
    ),
    "v5e_64b": Point(
        lambda: _maxtext_v5(64, 8192, 28_672, 64, 2 * 256, fully_sharded(256, 1)), "v5e:16x16", 0.599, V5E
    ),
    "v5p_512b": Point(lambda: _maxtext_v5(128, 16_384, 57_344, 128, 2 * 512, two_d(64, 8)), "v5p:8x8x8", 0.640, V5P),
    "v5p_1024b": Point(
        lambda: _maxtext_v5(128, 16_384, 114_688, 256, 2 * 1024, two_d(128, 8)), "v5p:8x8x16", 0.5535, V5P
    ),
}


@dataclasses.dataclass(frozen=True)
class Error:
    """Mean of published over modelled figures, their standard deviation in percent of it, and the number of points."""

    factor: float
    deviation_pct: float
    points: int


def error(generation: str) -> Error:
    """Returns the error of a TPU generation; of all points together where it has fewer than three."""
    rows = json.loads(FILE.read_text())["points"]
    own = [row for row in rows if row["topology"].startswith(f"{generation}:")]
    ratios = [row["published_mfu"] / row["modelled_mfu"] for row in (own if len(own) > 2 else rows)]
    factor = statistics.mean(ratios)
    return Error(factor, 100 * statistics.stdev(ratios) / factor, len(ratios))


def rms(rows: list[dict[str, Any]]) -> float:
    """Returns the root mean square of (modelled / published - 1) in percent: the error without a correction."""
    return 100 * statistics.fmean((row["modelled_mfu"] / row["published_mfu"] - 1) ** 2 for row in rows) ** 0.5


def row(name: str, report: dict[str, Any]) -> dict[str, Any]:
    """Returns the table's line for a point, from its report."""
    point = POINTS[name]
    return {
        "name": name,
        "topology": point.topology,
        "source": point.source,
        "published_mfu": point.mfu,
        "modelled_mfu": round(report["modelled_mfu"], 4),
        "modelled_step_s": round(report["modelled_step_s"], 3),
        "modelled_over_published": round(report["modelled_mfu"] / point.mfu, 3),
    }


def write(rows: list[dict[str, Any]], versions: dict[str, str]) -> None:
    """Replaces calibration.json."""
    text = json.dumps({"versions": versions, "rms_pct": round(rms(rows), 1), "points": rows}, indent=1)
    FILE.with_suffix(".tmp").write_text(text + "\n")
    FILE.with_suffix(".tmp").replace(FILE)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table in Markdown; the last line has the error."""
    lines = ["| point | slice | published MFU | modelled MFU, step | modelled / published | source |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    lines += [
        f"| {r['name']} | {r['topology']} | {r['published_mfu']:.3f} | {r['modelled_mfu']:.3f}, {r['modelled_step_s']:.2f} s "
        f"| {r['modelled_over_published']:.2f} | {r['source']} |"
        for r in rows
    ]
    return [*lines, f"rms error {rms(rows):.1f} % of {len(rows)} points"]
