"""What a compiled program sends between devices: every collective with its mesh axes, its bytes and how often a step runs it."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainers.programs.hlo import HloError, Instruction, Program, Shape
from trainers.programs.trip_counts import Loop, Site, times, walk

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
UNREAD = ("ragged-all-to-all", "collective-broadcast")  # their sizes would need rules of their own
MIB = 2**20

Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective; a start with its done is one.

    Attributes:
      kind: one of KINDS; an all-reduce of which each device keeps its part at once is a reduce-scatter.
      name: the instruction that issues it: its own, or that of the fusion or async-start around it.
      op_name: JAX's name for where it comes from, or that of the nearest caller that has one.
      shapes: on one device, the arrays of its larger side: results of an all-gather, operands of every other kind.
      groups: devices that communicate, as positions in `mesh.devices.flat`; of a permute its (source, target) pairs.
      axes: the mesh axes along which the devices of every group lie, major first; () if each is alone, None if a group
        is no whole row, plane or block of the mesh. Of a permute, the axes along which a target differs from its source.
      times: how often a step runs it, None if that is not in the program.
      loops: the loops around it, outermost first.
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
        """Bytes of `shapes`: on each device what one run gathers, reduces, exchanges or sends."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def size(self) -> int:
        """Devices in a group; 2 for a permute."""
        return max(len(group) for group in self.groups)


def collectives(program: Program, mesh: Mapping[str, int], *, strict: bool = True) -> list[Collective]:
    """Every collective of a program, in the order of its text.

    A collective in a branch of a conditional counts as if it were taken.

    Args:
      mesh: sizes by axis name, major first, as `jax.sharding.Mesh.shape` has them or `dict(layout.mesh)`.
      strict: refuse a collective in a loop whose trip count is not in the program; else its `times` is None.

    Raises:
      HloError: the above, devices outside the mesh, or a collective that this module does not know.
    """
    return [read(program, site, mesh, strict=strict) for site in walk(program) if _is_collective(program, site)]


def _is_collective(program: Program, site: Site) -> bool:
    """Whether this instruction is a collective or starts one."""
    i = site.instruction
    if '"async_collective_fusion_config"' not in i.rest:
        return i.opcode.removesuffix("-start") in KINDS + UNREAD
    # A TPU's collective fused with computation is written again in each fusion that carries it on.
    users = (other for other in program.computations[site.computation].instructions if i.name in other.operands)
    return any('"AsyncCollectiveStart"' in other.rest for other in users)


def read(program: Program, site: Site, mesh: Mapping[str, int], *, strict: bool = True) -> Collective:
    """The collective that an instruction is, or starts; arguments and errors are those of `collectives`."""
    i, computation = site.instruction, program.computations[site.computation]
    kind = i.opcode.removesuffix("-start")
    if kind not in KINDS:
        raise HloError(f"%{i.name}: {kind} is not known here; known are {', '.join(KINDS)}")
    found = groups(i, math.prod(mesh.values()))
    shapes = tuple(shape for operand in i.operands for shape in computation[operand].shapes)
    if kind == "all-gather":
        dim, shards = int(i.attributes["dimensions"].strip("{}")), len(found[0])
        shapes = tuple(Shape(s.dtype, (*s.dims[:dim], s.dims[dim] * shards, *s.dims[dim + 1 :])) for s in shapes)
    if kind == "all-reduce" and "all-reduce-scatter" in site.computation:  # a TPU's fusion, which keeps a slice
        kind = "reduce-scatter"
    wrapped = [c.opcode in ("fusion", "async-start") for c in site.callers]
    issuer = site.callers[wrapped.index(True)] if True in wrapped else i
    known = strict or all(loop.trips is not None for loop in site.loops)
    return Collective(
        kind=kind,
        name=issuer.name,
        op_name=next((c.op_name for c in (i, *reversed(site.callers)) if c.op_name), ""),
        shapes=shapes,
        groups=found,
        axes=_axes(found, mesh, pairs=kind == "collective-permute"),
        times=times(site.loops) if known else None,
        loops=site.loops,
    )


# --- groups of devices --------------------------------------------------------------------------------------------


def groups(i: Instruction, devices: int) -> Groups:
    """The devices that communicate: replica groups in any of XLA's syntaxes, or a permute's (source, target) pairs.

    {{0,1},{2,3}}                          as they are; {} is one group of all
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
        found = _mesh_groups(text)
    elif text.startswith("["):
        rows, _, array = text.partition("<=")
        found = tuple(map(tuple, _iota(array).reshape(_integers(rows.split("]")[0])).tolist()))
    elif re.fullmatch(r"\{(\{[\d,]*\},?)*\}", text):
        lists = (tuple(_integers(group)) for group in re.findall(r"\{([\d,]+)\}", text))
        found = tuple(lists) or (tuple(range(devices)),)
    else:
        raise HloError(f"%{i.name}: groups of devices in no known syntax: {text[:60]!r}")
    last = max(device for group in found for device in group)
    if last >= devices:
        raise HloError(f"%{i.name}: communicates with device {last}, but the mesh has {devices}")
    return found


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray:
    """`[4,2]T(1,0)`: 0, 1, 2, ... in this shape, transposed."""
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
    first = at.copy()  # of the group that each position is in
    for name, major, size in re.findall(r"'?([\w.\-]+)'?(?::\((\d+)\)(\d+))?", chosen):
        size_along = int(size or axes[name])
        stride = strides[name] * (axes[name] // (int(major or 1) * size_along))
        first -= at // stride % size_along * stride
    return tuple(tuple(devices[first == start].tolist()) for start in np.unique(first))


def _axes(groups: Groups, mesh: Mapping[str, int], *, pairs: bool) -> tuple[str, ...] | None:
    """The mesh axes along which groups lie; see Collective."""
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


def summary(found: Sequence[Collective]) -> list[dict[str, Any]]:
    """Collectives of one kind over the same axes together, inside loops and outside apart; plain values.

    Keys: kind, axes (None: along none), in_loop, count (instructions), times (runs a step; None if unknown), bytes (on one
    device a step, see Collective; None if unknown), largest (the biggest array).
    """
    rows: dict[tuple, list[Collective]] = {}
    for c in found:
        rows.setdefault((c.kind, c.axes, bool(c.loops)), []).append(c)
    made = []
    for (kind, axes, in_loop), same in rows.items():
        runs = [c.times for c in same if c.times is not None]
        known = len(runs) == len(same)
        made.append(
            {
                "kind": kind,
                "axes": None if axes is None else list(axes),
                "in_loop": in_loop,
                "count": len(same),
                "times": sum(runs) if known else None,
                "bytes": sum(c.bytes * n for c, n in zip(same, runs, strict=True)) if known else None,
                "largest": str(max((s for c in same for s in c.shapes), key=lambda s: s.bytes)),
            }
        )
    return sorted(made, key=lambda row: (KINDS.index(row["kind"]), row["in_loop"], row["axes"] or []))


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """`summary` for people, a heading first."""
    lines = [f"{'kind':20} {'axes':20} {'where':8} {'count':>6} {'times':>8} {'MiB/device/step':>16}  largest"]
    for row in rows:
        axes = "?" if row["axes"] is None else "*".join(row["axes"]) or "-"
        where = "in loops" if row["in_loop"] else "once"
        runs = "?" if row["times"] is None else f"{row['times']:,}"
        size = "?" if row["bytes"] is None else f"{row['bytes'] / MIB:,.3f}"
        lines.append(f"{row['kind']:20} {axes:20} {where:8} {row['count']:6,} {runs:>8} {size:>16}  {row['largest']}")
    return lines
