"""Pictures in text: which devices hold which piece of a tensor, and what each pipeline stage does when."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from models.sharding.component import Component
from models.sharding.layout import Layout
from models.sharding.params import ParamInfo
from models.sharding.pipelines.gpipe import schedules
from models.sharding.pipelines.schedule import Schedule
from models.sharding.remat import Activation, Axes

CELLS = 8  # pieces drawn along a dimension; the rest is "..."
TICKS = 16  # ticks drawn of a timeline


def placement(layout: Layout, component: str, names: Sequence[str | None], title: str) -> list[str]:
    """Lines that show which devices, numbered along the mesh, hold which piece of a tensor.

    Args:
      names: the logical name of each dimension. The first two that are cut are drawn, others are said.
    """
    cuts = layout.cut(names, component=component)
    mesh, sizes = dict(layout.mesh), [layout.num_shards(axes) for axes in cuts]
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


def pictures(
    parameters: Sequence[ParamInfo], layout: Layout, activations: Mapping[str, Activation] | None = None
) -> list[str]:
    """Draws where the largest parameter and the activations of each part of a model lie, and its pipelines' timelines.

    Args:
      activations: those of the family's layers, by name. Of several that the layout cuts alike the first is drawn.
    """
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
            for names, what in _drawn(activations or {}, infos, layout, part):
                lines += ["", *placement(layout, part, names, f"{part}: {what}")]
    for path, s in schedules(Component(layout), parameters).items():
        pipeline = dict(layout.pipelines)[path]
        scheduled = pipeline.schedule == "1f1b"
        kind = "forward and backward" if scheduled else "forward; backward is its mirror image"
        shape = f"{s.stages} stages, {s.chunks} chunks a stage, {s.microbatches} microbatches"
        lines += ["", f"{path}: {pipeline.schedule}, {shape} ({kind})"]
        lines += timeline(s, backward=scheduled)
    return lines


def _drawn(
    activations: Mapping[str, Activation], infos: Sequence[ParamInfo], layout: Layout, part: str
) -> Iterator[tuple[Axes, str]]:
    """Yields (axes, description) of the activations that a part of the model has and that are cut in different ways."""
    axes = {name for info in infos for name in info.axes}
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for activation in activations.values():
        for form in activation.axes:
            if not _computed_by(axes, form):
                continue
            cuts = tuple(cut for cut in layout.cut(form, component=part) if cut)
            if cuts not in seen:
                seen.add(cuts)
                yield form, activation.what


def _computed_by(axes: Collection[str], form: Axes) -> bool:
    """Whether parameters with these axes compute a tensor of this form: "act_heads" needs weights with "heads"."""
    needed = {
        name.removeprefix("act_expert_").removeprefix("act_") for name in form if name and name.startswith("act_")
    }
    grouped = any(name in ("group", "expert_group") for name in form)
    return needed <= set(axes) and (not grouped or "expert" in axes)


def pipelines(layout: Layout) -> dict[str, Any]:
    """The layout's pipelines as plain values, by component."""
    return {
        path: {"schedule": p.schedule, "chunks": p.chunks, "microbatches": p.microbatches,
               "stages": layout.num_shards(layout.resolve(path)["layers"])}
        for path, p in layout.pipelines
    }  # fmt: skip
