"""The time of a training step on a slice of a pod, modelled from its compiled program: nothing is run, no TPU is needed.

The compiler notes its own estimate of cycles for nearly everything that a core computes. It has none for collectives, priced by
their bytes and the bandwidth of links and of the network between slices (trainers.pods.links), none for copies between
memories, priced by their bytes and the bandwidth of the main memory, or of the link to the host, none for gathers of rows,
priced by what they read and write in the main memory, and none for Pallas kernels, priced by their FLOPs at a declared share of
the peak. Instructions run in the order of the text (trainers.pods.simulation). Instructions without a price are listed as
problems, never silently left out.

Sorts, and gathers and scatters of single numbers, have no estimate either. They count as unpriced, by the bytes in main memory
that they touch, which is too little where numbers are many. Not modelled: copies and collectives slowing the core down, barriers,
launches, input, slices that wait for each other.
"""

import dataclasses
import functools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from trainers.hlo import collectives, products
from trainers.hlo.collectives import KINDS, NETWORK, UNREAD, Collective
from trainers.hlo.parsing import HOST, Computation, HloError, Instruction, Program, phase
from trainers.hlo.trip_counts import Node, Site, tree
from trainers.pods.links import Torus, Transfer, between_slices
from trainers.pods.simulation import Choice, Loop, Row, Run, Simulation, Span, Start, Step, Wait, Work
from trainers.runtime.chips import Slice

UNPRICED = 0.02  # share of a step without an estimate above which the price is invalid

# Instructions that cost nothing: they only name existing values.
_FREE = {
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "iota",
    "opt-barrier",
    "add-dependency",
    "domain",
}
_FREE_TARGETS = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "SliceId"}
_CLEAR_TARGETS = {"ZeroCrop"}  # zeroes the padding beyond an array's end in place: at most its bytes
_MOVES = {"copy", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate"}
_WRITES = {"copy", "dynamic-update-slice"}  # of these the first array is what is written; of others, what is read
_ROW = 512  # bytes; rows from this size on are moved at the memory's bandwidth, whatever their order
_SMALL = 2**20  # bytes; instructions up to this size without an estimate are free, except fusions and kernels

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ALGORITHM = re.compile(r'"collective_algorithm_config":\{"emitter":"(\w*)".*', re.S)
_COLORS = re.compile(r"colors:(\d+)")
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Price:
    """The cost of a step on each device, in seconds.

    Attributes:
      rows: every instruction that takes time, most seconds first.
      problems: reasons not to trust the price, a line each.
      spans: the timeline.
    """

    step_s: float
    rows: list[Row]
    problems: list[str]
    spans: list[Span]

    @functools.cached_property
    def exposed(self) -> Mapping[str, float]:
        """Seconds by which the rows of each kind lengthen the step, which they add up to."""
        exposed: dict[str, float] = defaultdict(float)
        for row in self.rows:
            exposed[row.kind] += row.exposed
        return exposed

    @property
    def exposed_s(self) -> float:
        """Seconds of waiting for collectives."""
        return sum(self.exposed[kind] for kind in KINDS)

    @property
    def communication_s(self) -> float:
        """Seconds of all collectives, hidden or not; those on different links may run at the same time."""
        return sum(row.seconds for row in self.rows if row.kind in KINDS)

    @property
    def hlo_flops(self) -> float:
        """FLOPs of matrix products, including recomputed ones."""
        return sum(row.times * row.flops for row in self.rows)


def price(
    program: Program,
    slice: Slice,
    coordinates: Sequence[Sequence[int]],
    mesh: Mapping[str, int],
    *,
    kernel_efficiency: float = 0.5,
) -> Price:
    """Returns the modelled price of a step.

    Args:
      program: scheduled, as the TPU compiler leaves it.
      coordinates: the torus coordinates of each device of `mesh.devices.flat`.
      mesh: sizes by axis name, major first.
      kernel_efficiency: share of the peak at which Pallas kernels run.
    """
    torus = Torus(slice.dims, slice.wrap, slice.chip.link, coordinates, slice.slices)
    reader = _Reader(program, slice, torus, mesh, kernel_efficiency)
    simulation = Simulation()
    simulation.run(reader.steps(tree(program)))
    rows, spans = simulation.finish()
    result = Price(simulation.now, rows, [*reader.problems, *simulation.problems], spans)
    if (unpriced := result.exposed["unpriced"]) > UNPRICED * result.step_s:
        share = unpriced / result.step_s
        result.problems.append(f"{share:.1%} of the step has no estimate: its rows are of the kind unpriced")
    return result


class _Reader:
    """Turns a program into a schedule of priced work; `problems` name what it could not price."""

    def __init__(self, program: Program, slice: Slice, torus: Torus, mesh: Mapping[str, int], kernel_efficiency: float):
        self.program, self.chip, self.torus, self.mesh = program, slice.chip, torus, mesh
        self.kernel_flops = slice.chip.peak * kernel_efficiency  # a second
        self.keys: dict[str, str] = {}  # by async-update: the start that it continues
        self.problems: list[str] = []

    def steps(self, nodes: Sequence[Node]) -> list[Step]:
        return [step for node in nodes if node.site.instruction.opcode not in _FREE for step in self._steps(node)]

    def _steps(self, node: Node) -> Sequence[Step]:
        i = node.site.instruction
        try:
            match i.opcode:
                case "while":
                    return [Loop(i.name, self._trips(node), self.steps(node.inside))]
                case "conditional":
                    branches: dict[str, list[Node]] = {}
                    for inner in node.inside:
                        branches.setdefault(inner.site.computation, []).append(inner)
                    return [Choice([self.steps(branch) for branch in branches.values()])]
                case "call":
                    return self.steps(node.inside)
                case "send" | "recv" | "send-done" | "recv-done":
                    return self._between_slices(node.site)
                case "async-update":
                    self.keys[i.name] = self._key(i)
                    return []
                case "fusion":
                    return self._fusion(node)
                case "custom-call":
                    return self._custom_call(node.site)
            if i.opcode.endswith("-done"):
                return [Wait(self._key(i), i.name)]
            if i.opcode.endswith("-start"):
                return [Start(self._started(node), i.name)]
            if i.opcode in KINDS + UNREAD:
                return [Run(self._transfer(node.site))]
            return self._computed(node.site)
        except HloError as e:
            self.problems.append(str(e))
            return []

    def _between_slices(self, site: Site) -> Sequence[Step]:
        """Returns the step of an exchange between slices: it begins with the send, and is over where its result is received."""
        i = site.instruction
        if NETWORK not in i.suffix:
            raise HloError(f"%{i.name}: {i.opcode} has no price")
        if i.opcode == "send":
            return [Start(self._transfer(site), _rendezvous(i))]
        return [Wait(_rendezvous(self._around(site)[i.operands[0]]), i.name)] if i.opcode == "recv-done" else []

    def _key(self, i: Instruction) -> str:
        return self.keys.get(i.operands[0], i.operands[0])

    def _trips(self, node: Node) -> int:
        loop = node.inside[0].site.loops[-1]
        if loop.trips is None:
            self.problems.append(f"loop %{loop.name}: how often it runs is not in the program; counted once")
        return 1 if loop.trips is None else loop.trips

    # --- work of a core -------------------------------------------------------------------------------------------

    def _fusion(self, node: Node) -> Sequence[Step]:
        i = node.site.instruction
        inside = list(node.all())[1:]
        sites = [site for site in inside if site.instruction.opcode in KINDS + UNREAD]
        if sites:
            # A collective that overlaps the products of several fusions is written in each of them, with one channel.
            key = f"channel {sites[0].instruction.attributes.get('channel_id')}"
            targets = {site.instruction.attributes.get("custom_call_target") for site in inside}
            if '"AsyncCollectiveStart"' in targets:
                return [Start(self._transfer(sites[0]), key)]
            if '"AsyncCollectiveDone"' in targets:
                return [Wait(key, i.name)]
            blocking = [site for site in sites if '"async_collective_fusion_config"' not in site.instruction.suffix]
            if blocking and not _CYCLES.search(i.suffix):
                return [Run(self._transfer(site, several=len(blocking) > 1)) for site in blocking]
        if not _CYCLES.search(i.suffix) and (moved := sum(map(_rows_moved, inside))):
            return [Run(Work(self._row(node.site, "vector", bytes=moved), moved / self.chip.bandwidth))]
        return self._computed(node.site)

    def _custom_call(self, site: Site) -> Sequence[Step]:
        i = site.instruction
        target = i.attributes.get("custom_call_target", "").strip('"')
        flops = products.attention_flops(self._around(site), i)
        if flops is not None:
            return [Run(Work(self._row(site, "kernel", flops=flops), flops / self.kernel_flops))]
        if target in _FREE_TARGETS:
            return []
        if not _CYCLES.search(i.suffix) and target not in _CLEAR_TARGETS:
            self.problems.append(f"%{i.name}: custom call of {target!r} has no estimate")
        return self._computed(site)

    def _computed(self, site: Site) -> Sequence[Step]:
        i = site.instruction
        flops = products.flops(self.program, self._around(site), i)
        if cycles := _CYCLES.search(i.suffix):
            row = self._row(site, "matrix" if flops else "vector", flops=flops)
            return [Run(Work(row, int(cycles[1]) / self.chip.clock))]
        arrays = [i, *(self._around(site)[name] for name in i.operands)] if i.opcode in _MOVES else []
        if any(HOST in array.spaces for array in arrays):
            size = min((s.bytes for array in arrays for s in array.shapes if s.dims), default=0)
            return [Run(self._host_copy(site, size))]
        row = self._row(site, "unpriced", flops=flops)
        if i.opcode not in ("fusion", "custom-call") and row.bytes <= _SMALL:
            return []
        return [Run(Work(row, row.bytes / self.chip.bandwidth))]

    def _around(self, site: Site) -> Computation:
        return self.program.computations[site.computation]

    def _row(self, site: Site, kind: str, *, bytes: int | None = None, flops: float = 0.0) -> Row:
        i = site.instruction
        return Row(
            name=i.name,
            kind=kind,
            label=_label(i.op_name, i.name),
            component=phase(i.op_name),
            source=self.program.source(i),
            shape=", ".join(map(str, i.shapes)),
            axes=(),
            in_loop=bool(site.loops),
            bytes=self._touched(site) if bytes is None else bytes,
            flops=flops,
        )

    def _touched(self, site: Site) -> int:
        """Returns the bytes of results and operands in main memory."""
        computation = self._around(site)
        arrays = [site.instruction, *(computation[operand] for operand in site.instruction.operands)]
        return sum(s.bytes for i in arrays for s, space in zip(i.shapes, i.spaces, strict=True) if not space)

    # --- transfers and copies -------------------------------------------------------------------------------------

    def _started(self, node: Node) -> Work:
        i = node.site.instruction
        if i.opcode.removesuffix("-start") in KINDS + UNREAD:
            return self._transfer(node.site)
        inside = [inner.site for inner in node.inside]
        for site in inside:
            if site.instruction.opcode in KINDS + UNREAD:
                return self._transfer(site)
        other = {site.instruction.opcode for site in inside} - _MOVES - _FREE
        if other or i.opcode.removesuffix("-start") not in _MOVES | {"async"}:
            raise HloError(f"%{i.name}: {i.opcode} of {', '.join(sorted(other)) or 'nothing known'} has no price")
        # The smallest array is the one that moves: the slice, not its source. Scalars are indices and contexts.
        size = min((s.bytes for s in i.shapes if s.dims), default=0)
        if HOST in i.spaces:
            return self._host_copy(node.site, size)
        return Work(self._row(node.site, "dma", bytes=size), size / self.chip.bandwidth, frozenset({"memory"}))

    def _host_copy(self, site: Site, size: int) -> Work:
        """Returns the work of a copy from or to the host's memory; the link has a queue for each direction."""
        i = site.instruction
        writes = i.spaces[0] == HOST and i.opcode.removesuffix("-start") in _WRITES
        return Work(
            self._row(site, "host", bytes=size), size / self.chip.host_link, frozenset({"to host" if writes else "from host"})
        )

    def _transfer(self, site: Site, *, several: bool = False) -> Work:
        """Returns the work of a collective; `several` if the enclosing fusion has others."""
        collective = collectives.read(self.program, site, self.mesh, strict=False)
        issuer = next((c for c in site.callers if c.name == collective.name), site.instruction)
        if site.instruction.opcode == "send":
            transfer = between_slices(collective.bytes, collective.size, self.chip.network, self.chip.host_link)
        else:
            transfer = self._on_torus(collective, site.instruction.suffix, issuer.suffix)
        row = Row(
            name=site.instruction.name if several else collective.name,
            kind=collective.kind,
            label=_label(collective.op_name, collective.name),
            component=phase(collective.op_name),
            source=self.program.source(site.instruction) or self.program.source(issuer),
            shape=", ".join(map(str, collective.shapes)),
            axes=collective.axes,
            in_loop=bool(site.loops),
            bytes=collective.bytes,
            flops=0.0,
        )
        return Work(row, transfer.seconds, transfer.links)

    def _on_torus(self, collective: Collective, *texts: str) -> Transfer:
        """Returns a collective's transfer; the compiler may have noted its algorithm in `texts`, of which the first counts."""
        group = collective.groups[0]
        algorithm = next(filter(None, map(_ALGORITHM.search, texts)), None)
        max_dims = 3
        if algorithm:
            colors = _COLORS.search(algorithm[0])
            noted = int(colors[1]) if colors else int(algorithm[1][0]) if algorithm[1][:1].isdigit() else max_dims
            max_dims = max(1, min(max_dims, noted))
        match collective.kind:
            case "all-gather" | "reduce-scatter":
                return self.torus.gather(group, collective.bytes, max_dims)
            case "all-reduce":
                return self.torus.all_reduce(group, collective.bytes, max_dims)
            case "all-to-all":
                return self.torus.all_to_all(group, collective.bytes)
        return self.torus.permute(collective.groups, collective.bytes)


def _rows_moved(site: Site) -> int:
    """Returns the bytes that a gather of rows reads and writes; 0 for other instructions, and for rows below `_ROW`."""
    i = site.instruction
    if i.opcode != "gather":
        return 0
    (shape,) = i.shapes
    row = math.prod(int(n) for n in re.findall(r"\d+", i.attributes["slice_sizes"]))
    return 2 * shape.bytes if row * shape.bytes >= _ROW * shape.size else 0


def _rendezvous(i: Instruction) -> str:
    """Returns the name that a send and the receipt of its result share; raises HloError where none is noted."""
    match = _RENDEZVOUS.search(i.suffix)
    if not match:
        raise HloError(f"%{i.name}: {i.opcode} of another place in the program has no price")
    return match[1]


def _label(op_name: str, name: str) -> str:
    return op_name.rpartition("/")[2] or name
