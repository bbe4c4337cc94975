"""Pictures in text: which devices hold which piece of a tensor, and what each pipeline stage does when."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from models.sharding.component import Component
from models.sharding.layout import Layout
from models.sharding.params import ParamInfo
from models.sharding.pipelines.gpipe import schedules
from models.sharding.pipelines.schedule import Schedule

CELLS = 8  # pieces drawn along a dimension; the rest is "..."
TICKS = 16  # ticks drawn of a timeline


def placement(layout: Layout, component: str, names: Sequence[str | None], title: str) -> list[str]:
    """Lines that show which devices, numbered along the mesh, hold which piece of a tensor.

    Args:
      names: the logical name of each dimension. The first two that are cut are drawn, others are said.
    """
    cuts = layout.cut(names, component=component)
    mesh, sizes = dict(layout.mesh), [layout.ways(axes) for axes in cuts]
    said = "  ".join(f"{n}->{'*'.join(a)}" for n, a in zip(names, cuts, strict=True) if a) or "whole on every device"
    lines = [f"{title} ({', '.join(n or '-' for n in names)})  {said}"]
    drawn = [i for i, size in enumerate(sizes) if size > 1][-2:]
    if not drawn:
        return lines
    where = np.indices(tuple(mesh.values())).reshape(len(mesh), -1)  # [mesh axis, device]: its coordinate
    coordinate = dict(zip(mesh, where, strict=True))

    def piece(axes: Sequence[str]) -> np.ndarray:  # [device] the piece that it holds, major axis first
        index = np.zeros(layout.devices, int)
        for axis in axes:
            index = index * mesh[axis] + coordinate[axis]
        return index

    pieces = [piece(cuts[i]) for i in drawn]
    if len(drawn) == 1:
        pieces, drawn = [np.zeros(layout.devices, int), pieces[0]], [None, drawn[0]]
    first = np.ones(layout.devices, bool)  # of dimensions that are cut but not drawn, the first piece
    for i, axes in enumerate(cuts):
        if i not in drawn and sizes[i] > 1:
            first &= piece(axes) == 0
            lines[0] += f"; {names[i]} 0 of {sizes[i]} drawn"
    rows, columns = (1 if i is None else min(sizes[i], CELLS) for i in drawn)
    head = [f"{names[drawn[1]]} {c}" for c in range(columns)]
    label = [f"{names[drawn[0]]} {r}" if drawn[0] is not None else "" for r in range(rows)]
    cells = [
        [_numbers(np.flatnonzero(first & (pieces[0] == r) & (pieces[1] == c))) for c in range(columns)]
        for r in range(rows)
    ]
    width = max(map(len, itertools.chain(head, *cells))) + 1
    more = sizes[drawn[1]] > columns
    margin = max(map(len, label)) + 2
    lines.append(" " * margin + "|".join(f" {h:{width}}" for h in head) + ("| ..." if more else ""))
    for name, row in zip(label, cells, strict=True):
        lines.append(f"{name:{margin}}" + "|".join(f" {cell:{width}}" for cell in row) + ("| ..." if more else ""))
    if drawn[0] is not None and sizes[drawn[0]] > rows:
        lines.append("...")
    return lines


def _numbers(devices: np.ndarray) -> str:
    """Device numbers, few enough to read."""
    if len(devices) > 4:
        return f"{devices[0]} {devices[1]} .. {devices[-1]}"
    return " ".join(map(str, devices))


def timeline(s: Schedule, *, backward: bool) -> list[str]:
    """Lines that show what each stage does at each tick, the first ticks only, and how much of the time it idles."""
    table = [row[:TICKS] for row in s.timeline(backward=backward)]
    width = max(len(cell) for row in table for cell in row) + 1
    more = " ..." if s.ticks + (s.lead if backward else 0) > TICKS else ""
    lines = [
        f"stage {stage:3} |" + "|".join(f"{cell or '.':{width}}" for cell in row) + more
        for stage, row in enumerate(table)
    ]
    total = s.ticks + (s.lead if backward else 0)
    return [
        *lines,
        f"{total} ticks; idle {s.idle():.2%} of the working time, counted; (p - 1) / (v m) = ({s.stages} - 1) / ({s.chunks} x "
        f"{s.microbatches}) = {s.bubble:.2%}",
    ]


def pictures(parameters: Sequence[ParamInfo], layout: Layout) -> list[str]:
    """The largest parameter and the activations of each part of a model where they lie, and its pipelines' timelines."""
    lines: list[str] = []
    parts: dict[str, list[ParamInfo]] = {}
    for info in parameters:
        parts.setdefault(info.where.path.partition(".")[0], []).append(info)
    for part, infos in parts.items():
        largest = max(infos, key=lambda info: info.size)
        if len(largest.shape) - largest.stacked < 2:
            continue
        lines += ["", *placement(layout, largest.where.path, largest.axes, largest.name)]
        if any(info.stacked for info in infos):
            names = ("batch", "length", "act_embed")
            lines += ["", *placement(layout, part, names, f"activations between the layers of {part}")]
            names = ("batch", "length", "act_mlp")
            lines += ["", *placement(layout, part, names, f"activations inside a feed-forward layer of {part}")]
    for path, s in schedules(Component(layout), parameters).items():
        pipeline = dict(layout.pipelines)[path]
        scheduled = pipeline.schedule == "1f1b"
        kind = "forward and backward" if scheduled else "forward; backward is its mirror image"
        shape = f"{s.stages} stages, {s.chunks} chunks a stage, {s.microbatches} microbatches"
        lines += ["", f"{path}: {pipeline.schedule}, {shape} ({kind})"]
        lines += timeline(s, backward=scheduled)
    return lines


def pipelines(layout: Layout) -> dict[str, Any]:
    """The layout's pipelines as plain values, by component."""
    return {
        path: {"schedule": p.schedule, "chunks": p.chunks, "microbatches": p.microbatches,
               "stages": layout.ways(layout.resolve(path)["layers"])}
        for path, p in layout.pipelines
    }  # fmt: skip
