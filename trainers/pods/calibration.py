"""Calibration of modelled figures: how far they are from the published runs that are rebuilt in trainers/pods/points.py.

`python -m scripts.plan --calibrate` compiles every point anew and rewrites calibration.json, from which all errors are computed.
The error of a plan is that of predicting runs which the correction has not seen: each point in turn is left out, the factor is
taken from the others, and what the modelled figure times this factor misses is the point's held-out error. Points are of one
kind for each TPU generation, and of one more for mixtures of experts, whose figures are off by more than generations differ.
"""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from data.paths import write_whole
from trainers.pods.points import POINTS
from trainers.runtime.chips import parse_slice

FILE = Path(__file__).with_name("calibration.json")
ENOUGH = 3  # points of a kind from which on it has a factor of its own
MIXTURE = "mixture"

Row = dict[str, Any]  # a line of the table: `row`


@dataclasses.dataclass(frozen=True)
class Error:
    """How modelled figures of a kind become expected ones, and how far off those are.

    Attributes:
      factor: mean of published over modelled figures.
      held_out_pct: root mean square, in percent, of what is predicted for points that the factor has not seen.
      points: number of the points behind both.
    """

    factor: float
    held_out_pct: float
    points: int


def stored() -> list[Row]:
    """Returns the table's lines, in the order of `POINTS`; none of a point that is no more."""
    by_name = {row["name"]: row for row in json.loads(FILE.read_text())["points"]} if FILE.exists() else {}
    return [by_name[name] for name in POINTS if name in by_name]


def error(kind: str) -> Error:
    """Returns the error of a kind, which is the name of a TPU generation, or `MIXTURE`. One with fewer points than `ENOUGH` has
    the factor of all dense models, and their error when each is predicted without its own generation."""
    rows = stored()
    seen = _like(kind, rows)
    without = "name" if all(kind_of(row) == kind for row in seen) else "kind"
    return Error(factor(kind, rows), rms(held_out(row, rows, without=without) for row in seen), len(seen))


def calibrated(report: dict[str, Any]) -> dict[str, Any]:
    """Returns what the calibration makes of a report's modelled MFU: `error_pct`, `expected_mfu`, `calibrated_on` (points)."""
    is_mixture = report["modelled_mfu_all_slots"] is not None
    kind_error = error(MIXTURE if is_mixture else parse_slice(report["topology"]).chip.name)
    expected = report["modelled_mfu"] * kind_error.factor
    return {"error_pct": round(kind_error.held_out_pct, 1), "expected_mfu": expected, "calibrated_on": kind_error.points}


def factor(kind: str, rows: Sequence[Row]) -> float:
    """Returns the mean of published over modelled figures of a kind; of all dense models where it has fewer than `ENOUGH`."""
    return statistics.fmean(row["published_mfu"] / row["modelled_mfu"] for row in _like(kind, rows))


def held_out(row: Row, rows: Sequence[Row], *, without: str = "name") -> float:
    """Returns how far a point's prediction is from what was published, as a share of that, from the points that differ in
    `without`: all others ("name"), those that somebody else has published ("group"), or of other kinds ("kind")."""

    def key(row: Row) -> str:
        return kind_of(row) if without == "kind" else row[without]

    others = [other for other in rows if key(other) != key(row)]
    return row["modelled_mfu"] * factor(kind_of(row), others) / row["published_mfu"] - 1


def rms(errors: Iterable[float]) -> float:
    """Returns the root mean square of shares, in percent."""
    return 100 * statistics.fmean(error**2 for error in errors) ** 0.5


def kind_of(row: Row) -> str:
    """Returns `MIXTURE`, or the TPU generation of a dense model."""
    return MIXTURE if row["mixture"] else parse_slice(row["topology"]).chip.name


def _like(kind: str, rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the points whose errors are those of a kind."""
    own = [row for row in rows if kind_of(row) == kind]
    return own if len(own) >= ENOUGH else [row for row in rows if not row["mixture"]]


# --- the table ----------------------------------------------------------------------------------------------------


def row(name: str, report: dict[str, Any]) -> Row:
    """Returns the table's line for a point, from its report."""
    point = POINTS[name]
    return {
        "name": name,
        "topology": point.topology,
        "group": point.group,
        "source": point.source,
        "mixture": report["modelled_mfu_all_slots"] is not None,
        "published_mfu": point.mfu,
        "modelled_mfu": round(report["modelled_mfu"], 4),
        "modelled_step_s": round(report["modelled_step_s"], 3),
        "versions": report["versions"],
    }


def write(new: Sequence[Row]) -> list[Row]:
    """Puts lines into calibration.json, beside or in place of those that it has; returns all."""
    rows = {row["name"]: row for row in [*stored(), *new]}
    ordered = [rows[name] for name in POINTS if name in rows]
    write_whole(FILE, json.dumps({"points": ordered}, indent=1) + "\n")
    return ordered


def table(rows: Sequence[Row]) -> list[str]:
    """Returns the table in Markdown, and lines with the errors of each kind."""
    lines = ["| point | slice | published MFU | modelled MFU, step | modelled / published | held out | source |"]
    lines.append("| --- " * 7 + "|")
    lines += [
        f"| {r['name']} | {r['topology']} | {r['published_mfu']:.3f} | {r['modelled_mfu']:.3f}, {r['modelled_step_s']:.2f} s "
        f"| {r['modelled_mfu'] / r['published_mfu']:.2f} | {100 * held_out(r, rows):+.1f} % | {r['source']} |"
        for r in rows
    ]
    return [*lines, *errors(rows)]


def errors(rows: Sequence[Row]) -> list[str]:
    """Returns a Markdown table of errors by kind: without a correction, and of predictions."""
    lines = ["", "| points | number | published / modelled | uncorrected | one held out | its group | its kind |"]
    lines.append("| --- " * 7 + "|")
    for name in (*dict.fromkeys(map(kind_of, rows)), "all"):
        own = [r for r in rows if name in ("all", kind_of(r))]
        ratio = statistics.fmean(r["published_mfu"] / r["modelled_mfu"] for r in own)
        figures = (
            rms(r["modelled_mfu"] / r["published_mfu"] - 1 for r in own),
            rms(held_out(r, rows) for r in own),
            rms(held_out(r, rows, without="group") for r in own),
            rms(held_out(r, rows, without="kind") for r in own),
        )
        lines.append(f"| {name} | {len(own)} | {ratio:.2f} | " + " | ".join(f"{f:.1f} %" for f in figures) + " |")
    return lines
