"""Drawings in text: the devices that hold each shard of a tensor, and the timeline of each pipeline stage."""

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
from trainers.text_table import text_table

CELLS = 8  # shards drawn along a dimension; further ones are "..."
TICKS = 16  # ticks drawn of a timeline


def placement(layout: Layout, component: str, names: Sequence[str | None], title: str) -> list[str]:
    """Returns lines that show which devices, numbered along the mesh, hold each shard of a tensor.

    Args:
      names: the logical name of each dimension. The last two that are cut are drawn, others are named.
    """
    cuts = layout.cut(names, component=component)
    sizes = [layout.num_shards(axes) for axes in cuts]
    cut_text = "  ".join(f"{n}->{'*'.join(a)}" for n, a in zip(names, cuts, strict=True) if a) or "whole on every device"
    title = f"{title} ({', '.join(n or '-' for n in names)})  {cut_text}"
    *hidden, row, column = [None, None, *(i for i, size in enumerate(sizes) if size > 1)]
    if column is None:
        return [title]
    hidden = [i for i in hidden if i is not None]
    title += "".join(f"; {names[i]} 0 of {sizes[i]} drawn" for i in hidden)
    index = [_shard_indices(layout, axes) for axes in cuts]
    drawn = np.all([index[i] == 0 for i in hidden] or [np.ones(layout.devices, bool)], axis=0)  # their first shard
    columns = [f"{names[column]} {c}" for c in range(min(sizes[column], CELLS))]
    more = "| ..." if sizes[column] > CELLS else ""
    if row is None:
        return [title, *_grid(columns, [""], [_cells(drawn, index[column], len(columns))], more)]
    labels = [f"{names[row]} {r}" for r in range(min(sizes[row], CELLS))]
    cells = [_cells(drawn & (index[row] == r), index[column], len(columns)) for r in range(len(labels))]
    return [title, *_grid(columns, labels, cells, more), *(["..."] if sizes[row] > CELLS else [])]


def _cells(drawn: np.ndarray, index: np.ndarray, columns: int) -> list[str]:
    """Returns the numbers of a row's devices, by column."""
    return [_numbers(np.flatnonzero(drawn & (index == column))) for column in range(columns)]


def _shard_indices(layout: Layout, axes: Sequence[str]) -> np.ndarray:
    """Returns the index of the shard that each device holds of a dimension that these mesh axes cut, the major axis first."""
    mesh = dict(layout.mesh)
    coordinates = dict(zip(mesh, np.indices(tuple(mesh.values())).reshape(len(mesh), -1), strict=True))  # [mesh axis][device]
    index = np.zeros(layout.devices, int)
    for axis in axes:
        index = index * mesh[axis] + coordinates[axis]
    return index


def _grid(head: Sequence[str], labels: Sequence[str], cells: Sequence[Sequence[str]], end: str) -> list[str]:
    """Returns lines of cells of one width, with a label before each row and the same end after each."""
    width, margin = max(map(len, itertools.chain(head, *cells))) + 1, max(map(len, labels)) + 2
    rows = zip(["", *labels], [head, *cells], strict=True)
    return [f"{label:{margin}}" + "|".join(f" {cell:{width}}" for cell in row) + end for label, row in rows]


def _numbers(devices: np.ndarray) -> str:
    """Returns device numbers as text, abbreviated if there are more than four."""
    if len(devices) > 4:
        return f"{devices[0]} {devices[1]} .. {devices[-1]}"
    return " ".join(map(str, devices))


def timeline(s: Schedule, *, backward: bool) -> list[str]:
    """Returns lines that show the work of each stage in the first ticks, and the share of time in which it idles."""
    table = [row[:TICKS] for row in s.timeline(backward=backward)]
    width = max(len(cell) for row in table for cell in row) + 1
    more = " ..." if s.ticks + (s.lead if backward else 0) > TICKS else ""
    lines = [f"stage {stage:3} |" + "|".join(f"{cell or '.':{width}}" for cell in row) + more for stage, row in enumerate(table)]
    total = s.ticks + (s.lead if backward else 0)
    return [
        *lines,
        f"{total} ticks; idle {s.idle():.2%} of the working time, counted; (p - 1) / (v m) = ({s.stages} - 1) / ({s.chunks} x "
        f"{s.microbatches}) = {s.bubble:.2%}",
    ]


# What an axis does in a part whose rule cuts dimensions of these names.
_ROLES = {
    "layers": "stages",
    "batch": "batch",
    "height": "space",
    "width": "space",
    "length": "positions",
    "res_length": "positions",
    "expert": "experts",
    "vocab": "vocabulary",
    "act_vocab": "vocabulary",
    "heads": "heads",
    "mlp": "hidden",
    "embed": "weights",
    "act_embed": "residual stream",
}
_OF_WEIGHTS = ("layers", "expert", "vocab", "act_vocab", "heads", "mlp", "embed")  # of parts whose weights have them


def roles(parameters: Sequence[ParamInfo], layout: Layout) -> list[str]:
    """Returns a table of what each axis of the mesh does in each part of a model: data in one, stages in another."""
    named: dict[str, set[str]] = {}
    rules: dict[str, dict[str, tuple[str, ...]]] = {}
    for info in parameters:
        part = info.scope.path.partition(".")[0]
        named.setdefault(part, set()).update(info.axes)
        for name, axes in layout.resolve(info.scope.path).items():
            if name in _ROLES and (name not in _OF_WEIGHTS or name.removeprefix("act_") in info.axes):
                rules.setdefault(part, {})[name] = axes
    axes = [f"{axis} {size}" for axis, size in layout.mesh]
    rows = []
    for part in sorted(filter(None, named)):
        cells = []
        for axis, _ in layout.mesh:
            words = [word for name, word in _ROLES.items() if axis in rules.get(part, {}).get(name, ())]
            cells.append(", ".join(dict.fromkeys(words)) or "copies")
        rows.append([part, *cells])
    return text_table(["part", *axes], rows)


def pictures(parameters: Sequence[ParamInfo], layout: Layout, activations: Mapping[str, Activation] | None = None) -> list[str]:
    """Draws what the mesh does in each part of a model, the shards of its largest parameter and of its activations, and its
    pipelines' timelines.

    Args:
      activations: activations of the family's layers, by name; the first is drawn of those that the layout cuts alike.
    """
    lines = ["", *roles(parameters, layout)]
    parts: dict[str, list[ParamInfo]] = {}
    for info in parameters:
        parts.setdefault(info.scope.path.partition(".")[0], []).append(info)
    for part, infos in parts.items():
        largest = max(infos, key=lambda info: info.size)
        if len(largest.shape) - largest.stacked < 2:
            continue
        lines += ["", *placement(layout, largest.scope.path, largest.axes, largest.name)]
        if any(info.stacked for info in infos):
            for names, description in _differently_cut(activations or {}, infos, layout, part):
                lines += ["", *placement(layout, part, names, f"{part}: {description}")]
    for path, s in schedules(Component(layout), parameters).items():
        pipeline = dict(layout.pipelines)[path]
        scheduled = pipeline.schedule == "1f1b"
        kind = "forward and backward" if scheduled else "forward; backward is its mirror image"
        shape = f"{s.stages} stages, {s.chunks} chunks a stage, {s.microbatches} microbatches"
        lines += ["", f"{path}: {pipeline.schedule}, {shape} ({kind})"]
        lines += timeline(s, backward=scheduled)
    return lines


def _differently_cut(
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
    """Returns whether parameters with these axes compute a tensor of this form: "act_heads" needs weights with "heads"."""
    needed = {name.removeprefix("act_expert_").removeprefix("act_") for name in form if name and name.startswith("act_")}
    grouped = any(name in ("group", "expert_group") for name in form)
    return needed <= set(axes) and (not grouped or "expert" in axes)


def pipelines(layout: Layout) -> dict[str, Any]:
    """Returns the layout's pipelines as plain values, by component."""
    return {
        path: {
            "schedule": pipeline.schedule,
            "chunks": pipeline.chunks,
            "microbatches": pipeline.microbatches,
            "stages": layout.num_shards(layout.resolve(path)["layers"]),
        }
        for path, pipeline in layout.pipelines
    }
