"""The collectives of a compiled program: their mesh axes, their bytes and how often a step runs each of them."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.sharding.layout import SLICE
from trainers.hlo.parsing import HloError, Instruction, Program, Shape, component
from trainers.hlo.trip_counts import Loop, Site, times, walk
from trainers.text_table import text_table

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
UNREAD = ("ragged-all-to-all", "collective-broadcast")  # their sizes would need rules of their own
NETWORK = "xla_megascale_runtime"  # the handler of what a TPU sends to other slices, and receives from them
MIB = 2**20

Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective; a start and its done together are one.

    Attributes:
      kind: one of KINDS; an all-reduce that is fused with the slicing of its result is a reduce-scatter.
      name: the instruction that issues it: its own, or that of the fusion or async-start around it.
      op_name: JAX's name for the operation, or that of the nearest caller that has one.
      shapes: the arrays of its larger side on one device: results of an all-gather, operands of every other kind.
      groups: devices that communicate, as positions in `mesh.devices.flat`; for a permute, its (source, target) pairs. Inside
        slices they are those of the first slice.
      axes: the mesh axes along which the devices of every group lie, major first; () if each is alone, None if a group
        is no whole row, plane or block of the mesh. For a permute, the axes along which a target differs from its source.
      times: how often a step runs it; None if that is not in the program.
      loops: the enclosing loops, outermost first.
    """

    kind: str
    name: str
    op_name: str
    shapes: tuple[Shape, ...]
    groups: Groups
    axes: tuple[str, ...] | None
    times: int | None
    loops: tuple[Loop, ...]

    @property
    def bytes(self) -> int:
        """Bytes of `shapes`: those that one run gathers, reduces, exchanges or sends on each device."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def sent(self) -> float:
        """Bytes that each device sends in one run, if each sends as little as it can: of n devices' all-gather, reduce-scatter or
        all-to-all (n - 1) / n of `bytes`, of their all-reduce twice as much, of a permute all of them."""
        share = 1.0 if self.kind == "collective-permute" else 1 - 1 / self.size
        return self.bytes * share * (2 if self.kind == "all-reduce" else 1)

    @property
    def size(self) -> int:
        """Number of devices in a group; 2 for a permute."""
        return max(len(group) for group in self.groups)


def collectives(program: Program, mesh: Mapping[str, int], *, strict: bool = True) -> list[Collective]:
    """Returns every collective of a program, in the order of its text.

    A branch of a conditional counts as if it were taken.

    Args:
      mesh: sizes by axis name, major first, as `jax.sharding.Mesh.shape` has them or `dict(layout.mesh)`.
      strict: whether to refuse a collective in a loop whose trip count is not in the program; else its `times` is None.

    Raises:
      HloError: a collective is refused, has devices outside the mesh, or is of a kind that this module does not know.
    """
    return [read(program, site, mesh, strict=strict) for site in walk(program) if _is_collective(program, site)]


def _is_collective(program: Program, site: Site) -> bool:
    """Returns whether an instruction is a collective or starts one."""
    i = site.instruction
    if i.opcode == "send":
        return NETWORK in i.suffix
    if '"async_collective_fusion_config"' not in i.suffix:
        return i.opcode.removesuffix("-start") in KINDS + UNREAD
    # A TPU's collective that is fused with computation is repeated in each fusion that continues it.
    users = (other for other in program.computations[site.computation].instructions if i.name in other.operands)
    return any('"AsyncCollectiveStart"' in other.suffix for other in users)


def read(program: Program, site: Site, mesh: Mapping[str, int], *, strict: bool = True) -> Collective:
    """Returns the collective that an instruction is or starts; arguments and errors are those of `collectives`."""
    i, computation = site.instruction, program.computations[site.computation]
    if i.opcode == "send":
        kind, device_groups = "all-reduce", _between_slices(i, mesh)
        shapes = computation[i.operands[0]].shapes
    else:
        kind = i.opcode.removesuffix("-start")
        if kind not in KINDS:
            raise HloError(f"%{i.name}: {kind} is not known here; known are {', '.join(KINDS)}")
        mesh = _mesh_of(program, mesh)
        device_groups = groups(i, math.prod(mesh.values()))
        shapes = tuple(shape for operand in i.operands for shape in computation[operand].shapes)
    if kind == "all-gather":
        dim, shards = int(i.attributes["dimensions"].strip("{}")), len(device_groups[0])
        shapes = tuple(Shape(s.dtype, (*s.dims[:dim], s.dims[dim] * shards, *s.dims[dim + 1 :])) for s in shapes)
    if kind == "all-reduce" and "all-reduce-scatter" in site.computation:  # a TPU's fusion, which keeps one slice
        kind = "reduce-scatter"
    wrapped = [c.opcode in ("fusion", "async-start") for c in site.callers]
    issuer = site.callers[wrapped.index(True)] if True in wrapped else i
    known = strict or all(loop.trips is not None for loop in site.loops)
    return Collective(
        kind=kind,
        name=issuer.name,
        op_name=next((c.op_name for c in (i, *reversed(site.callers)) if c.op_name), ""),
        shapes=shapes,
        groups=device_groups,
        axes=_axes(device_groups, mesh, pairs=kind == "collective-permute"),
        times=times(site.loops) if known else None,
        loops=site.loops,
    )


def _mesh_of(program: Program, mesh: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the mesh of a program's devices: that of a slice where each slice, as a TPU's, runs a program of its own."""
    of_slice = {axis: size for axis, size in mesh.items() if axis != SLICE}
    return of_slice if program.devices == math.prod(of_slice.values()) else mesh


def _between_slices(i: Instruction, mesh: Mapping[str, int]) -> Groups:
    """Returns the devices that sum what a TPU sends over the network: those at one place in each slice, `target="{1,2}x{0:3}"`;
    raises HloError for a transfer that is no sum."""
    transfer, target = (re.search(rf'_xla_megascale_{key}="([^"]*)"', i.suffix) for key in ("transfer_type", "target"))
    if not transfer or not target or transfer[1] != "ALL_REDUCE":
        raise HloError(f"%{i.name}: {transfer[1] if transfer else i.opcode} between slices is not known here, only ALL_REDUCE")
    slices, devices = _integers(target[1].partition("x")[0]), math.prod(n for axis, n in mesh.items() if axis != SLICE)
    return tuple(tuple((number - 1) * devices + at for number in slices) for at in range(devices))


# --- groups of devices --------------------------------------------------------------------------------------------


def groups(i: Instruction, devices: int) -> Groups:
    """Returns the devices that communicate: replica groups in any of XLA's syntaxes, or a permute's (source, target) pairs.

    {{0,1},{2,3}}                          lists of devices; {} is one group of all
    [2,4]<=[4,2]T(1,0)                     0, 1, 2, ... as an array [4,2], transposed, read as 2 groups of 4
    mesh['a'=2,'b'=4] {'b'}                rows along b of an array [2,4]; `'b':(2)2` is the minor half of b, cut in 2 x 2
    mesh['a'=2,'b'=2], device_ids=(..) {}  the same of an array of these devices, a list or an iota as above

    Raises:
      HloError: another syntax, or a device that is not one of `devices`.
    """
    attributes = i.attributes
    text = attributes.get("source_target_pairs") or attributes.get("replica_groups", "{}")
    if text.startswith("mesh") and "device_ids" in attributes:  # its comma separates no attribute
        text += f", device_ids={attributes['device_ids']}"
    if text.startswith("mesh"):
        result = _mesh_groups(text)
    elif text.startswith("["):
        rows, _, array = text.partition("<=")
        result = tuple(map(tuple, _iota(array).reshape(_integers(rows.split("]")[0])).tolist()))
    elif re.fullmatch(r"\{(\{[\d,]*\},?)*\}", text):
        lists = (tuple(_integers(group)) for group in re.findall(r"\{([\d,]+)\}", text))
        result = tuple(lists) or (tuple(range(devices)),)
    else:
        raise HloError(f"%{i.name}: groups of devices in no known syntax: {text[:60]!r}")
    last = max(device for group in result for device in group)
    if last >= devices:
        raise HloError(f"%{i.name}: communicates with device {last}, but the mesh has {devices}")
    return result


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray:
    """Parses `[4,2]T(1,0)`: 0, 1, 2, ... in this shape, transposed."""
    dims, _, order = text.partition("T")
    array = np.arange(math.prod(_integers(dims))).reshape(_integers(dims))
    return array.transpose(_integers(order)) if order else array


def _mesh_groups(text: str) -> Groups:
    head, _, chosen = text.rpartition("{")
    sizes, _, ids = head.partition("]")
    axes = {name: int(size) for name, size in re.findall(r"([\w.\-]+)'?=(\d+)", sizes)}
    at = np.arange(math.prod(axes.values()))  # positions in the mesh
    array = ids.partition("(")[2].rpartition(")")[0]
    devices = _iota(array).reshape(-1) if "[" in array else np.array(_integers(array) or at)
    strides = dict(zip(axes, np.cumprod([1, *reversed(axes.values())])[-2::-1].tolist(), strict=True))
    first = at.copy()  # the first position in the group of each position
    for name, major, size in re.findall(r"'?([\w.\-]+)'?(?::\((\d+)\)(\d+))?", chosen):
        size_along = int(size or axes[name])
        stride = strides[name] * (axes[name] // (int(major or 1) * size_along))
        first -= at // stride % size_along * stride
    return tuple(tuple(devices[first == start].tolist()) for start in np.unique(first))


def _axes(groups: Groups, mesh: Mapping[str, int], *, pairs: bool) -> tuple[str, ...] | None:
    """Returns the mesh axes along which groups lie; see Collective."""
    if len({len(group) for group in groups}) > 1:
        return None
    positions = np.array(np.unravel_index(np.array(groups), tuple(mesh.values())))  # [axes, groups, devices]
    along = (positions != positions[:, :, :1]).any(axis=2)
    if pairs:
        return tuple(name for name, differs in zip(mesh, along.any(axis=1), strict=True) if differs)
    axes = tuple(name for name, differs in zip(mesh, along[:, 0], strict=True) if differs)
    whole = len(groups[0]) == math.prod(mesh[name] for name in axes)
    return axes if whole and (along == along[:, :1]).all() else None


# --- tables -------------------------------------------------------------------------------------------------------


def summary(collectives: Sequence[Collective]) -> list[dict[str, Any]]:
    """Returns collectives grouped by component, kind, axes and being inside a loop, as plain values.

    Keys: component (whose stack of layers communicates; "" is what is outside of all), kind, axes (None: along none), in_loop,
    count (instructions), times (runs a step; None if unknown), bytes (on one device a step, see Collective; None if unknown),
    largest (the largest array).
    """
    rows: dict[tuple, list[Collective]] = {}
    for collective in collectives:
        key = component(collective.op_name), collective.kind, collective.axes, bool(collective.loops)
        rows.setdefault(key, []).append(collective)
    summaries = []
    for (path, kind, axes, in_loop), group in rows.items():
        runs = [collective.times for collective in group if collective.times is not None]
        known = len(runs) == len(group)
        summaries.append(
            {
                "component": path,
                "kind": kind,
                "axes": None if axes is None else list(axes),
                "in_loop": in_loop,
                "count": len(group),
                "times": sum(runs) if known else None,
                "bytes": sum(collective.bytes * n for collective, n in zip(group, runs, strict=True)) if known else None,
                "largest": str(max((s for collective in group for s in collective.shapes), key=lambda s: s.bytes)),
            }
        )
    order = lambda row: (row["component"], KINDS.index(row["kind"]), row["in_loop"], row["axes"] or [])  # noqa: E731
    return sorted(summaries, key=order)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns `summary` as lines of text, a heading first."""
    head = ["component", "kind", "axes", "place", "count", "times", "MiB/device/step", "largest"]
    cells = []
    for row in rows:
        axes = "?" if row["axes"] is None else "*".join(row["axes"]) or "-"
        place = "in loops" if row["in_loop"] else "once"
        times = "?" if row["times"] is None else f"{row['times']:,}"
        size = "?" if row["bytes"] is None else f"{row['bytes'] / MIB:,.3f}"
        cells.append([row["component"] or "-", row["kind"], axes, place, f"{row['count']:,}", times, size, row["largest"]])
    return text_table(head, cells, {4, 5, 6})
