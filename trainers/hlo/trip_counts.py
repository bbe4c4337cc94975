"""Counts how often a step of a compiled program runs each instruction, from its callers, loops and trip counts.

CPU programs note the trip count of each loop. TPU programs do not: there a loop compares an integer of its state, and start, step
and bound are read from the tuple that enters it, its body and its condition.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainers.hlo.parsing import HloError, Instruction, Program

_INTEGER = re.compile(r"[su]\d+\[\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Loop:
    """A while instruction; `trips` is how often its body runs, None where that is not in the text."""

    name: str
    op_name: str
    trips: int | None


@dataclasses.dataclass(frozen=True)
class Site:
    """An instruction and the calls that lead to it: in a computation that is called twice each instruction has two sites.

    Attributes:
      callers: the instructions that lead here, outermost first: loops, conditionals, calls, fusions, async-starts.
      loops: those of them that are loops.
    """

    instruction: Instruction
    computation: str
    callers: tuple[Instruction, ...]
    loops: tuple[Loop, ...]


def times(around: Sequence[Loop]) -> int:
    """Returns how often a step runs the body of nested loops; raises HloError naming a loop whose trip count is unknown."""
    for loop in around:
        if loop.trips is None:
            raise HloError(f"how often loop %{loop.name} ({loop.op_name or 'no op_name'}) runs is not in the program")
    return math.prod(loop.trips or 0 for loop in around)


def walk(program: Program) -> Iterator[Site]:
    """Yields every instruction that a step runs, in order, with its enclosing loops.

    A loop is entered once, its condition as often as its body, and a conditional in every branch; computations that are
    applied to single elements (those of a reduce, a sort, a map) are not entered.
    """
    yield from _walk(_Scope(program, program.entry, lambda number, path: None), (), ())


@dataclasses.dataclass(frozen=True)
class Node:
    """A site, and the sites directly inside the computations that it calls, in order: a loop's condition before its body."""

    site: Site
    inside: "list[Node]"

    def all(self) -> Iterator[Site]:
        """Yields this site and all inside it, at any depth."""
        yield self.site
        for node in self.inside:
            yield from node.all()


def tree(program: Program) -> list[Node]:
    """Returns the sites of `walk`, nested by calls."""
    levels: list[list[Node]] = [[]]  # the nodes so far at each depth of calls, the entry's first
    for site in walk(program):
        del levels[len(site.callers) + 1 :]
        node = Node(site, [])
        levels[-1].append(node)
        levels.append(node.inside)
    return levels[0]


def loops(program: Program) -> list[tuple[Loop, ...]]:
    """Returns every loop, as the chain of loops that leads to it, itself last."""
    return list(dict.fromkeys(site.loops for site in walk(program) if site.loops))


def _walk(scope: "_Scope", callers: tuple[Instruction, ...], around: tuple[Loop, ...]) -> Iterator[Site]:
    for i in scope.computation.instructions:
        yield Site(i, scope.computation.name, callers, around)
        if i.opcode == "while":
            loop = Loop(i.name, i.op_name, scope.trips(i))
            for part in ("condition", "body"):
                yield from _walk(scope.iteration(i, part), (*callers, i), (*around, loop))
        elif i.opcode in ("conditional", "call", "fusion", "async-start"):
            for number, called in enumerate(name for names in i.called.values() for name in names):
                yield from _walk(scope.call(i, called, number), (*callers, i), around)


# --- trip counts --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Carried:
    """An integer of a loop's state at the beginning of an iteration, plus a constant."""

    path: tuple[int, ...]
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class _Compared:
    direction: str
    left: Any
    right: Any


_Argument = Callable[[int, tuple[int, ...]], Any]  # the value for a parameter's number and a path


class _Scope:
    """The integers inside one call of a computation that are known without running the program.

    A value is an int, a _Carried, a _Compared, or None for everything else; a path leads into a tuple.
    """

    def __init__(self, program: Program, computation: str, argument: _Argument):
        self.program, self.computation, self.argument = program, program.computations[computation], argument
        self.known: dict[tuple[str, tuple[int, ...]], Any] = {}

    def value(self, name: str, path: tuple[int, ...] = ()) -> Any:
        if (name, path) not in self.known:
            self.known[name, path] = self._value(self.computation[name], path)
        return self.known[name, path]

    def _value(self, i: Instruction, path: tuple[int, ...]) -> Any:
        match i.opcode:
            case "parameter":
                return self.argument(int(i.argument), path)
            case "get-tuple-element":
                return self.value(i.operands[0], (int(i.attributes["index"]), *path))
            case "tuple":
                return self.value(i.operands[path[0]], path[1:]) if path else None
            case "copy" | "bitcast" | "convert" | "reshape" | "opt-barrier":
                return self.value(i.operands[0], path)
            case "copy-start":  # (copy, original, context)
                return self.value(i.operands[0], path[1:]) if path[:1] == (0,) else None
            case "copy-done":
                return self.value(i.operands[0], (0, *path))
            case "fusion" | "call":
                ((called,),) = i.called.values()
                return self.call(i, called).result(path)
            case "while":
                return self.invariant(i, path)
            case "compare":
                return _Compared(i.attributes["direction"], *map(self.value, i.operands))
            case "constant" if _INTEGER.match(i.result):
                return int(i.argument)
            case "add" | "subtract" | "multiply" if _INTEGER.match(i.result):
                return _arithmetic(i.opcode, *map(self.value, i.operands))
        return None

    def call(self, i: Instruction, called: str, branch: int = 0) -> "_Scope":
        """Returns the scope of a computation that an instruction calls; a conditional's first operand chooses the branch."""
        operands = i.operands[branch + 1 :] if i.opcode == "conditional" else i.operands
        return _Scope(self.program, called, lambda number, path: self.value(operands[number], path))

    def result(self, path: tuple[int, ...] = ()) -> Any:
        return self.value(self.computation.root.name, path)

    def iteration(self, loop: Instruction, part: str) -> "_Scope":
        """Returns the scope of a loop's body or condition, where values that no iteration changes keep their first value."""
        return self._part(loop, part, lambda number, path: self.invariant(loop, path))

    def _part(self, loop: Instruction, part: str, argument: _Argument) -> "_Scope":
        (called,) = loop.called[part]
        return _Scope(self.program, called, argument)

    def invariant(self, loop: Instruction, path: tuple[int, ...]) -> Any:
        """Returns a value of a loop's state that no iteration changes, else None."""
        body = self._part(loop, "body", lambda number, path: _Carried(path))
        return self.value(loop.operands[0], path) if body.result(path) == _Carried(path) else None

    def trips(self, loop: Instruction) -> int | None:
        """Returns the trip count that the compiler noted, or that of the integer which the condition compares."""
        if noted := _TRIPS.search(loop.suffix):
            return int(noted[1])

        def state(number: int, path: tuple[int, ...]) -> Any:
            fixed = self.invariant(loop, path)
            return fixed if isinstance(fixed, int) else _Carried(path)

        condition, body = (self._part(loop, part, state) for part in ("condition", "body"))
        match condition.result():
            case _Compared(direction, _Carried(path, offset), int(bound)):
                pass
            case _Compared(direction, int(bound), _Carried(path, offset)):
                direction = direction.translate(str.maketrans("LG", "GL"))
            case _:
                return None
        after, first = body.result(path), self.value(loop.operands[0], path)
        if not isinstance(after, _Carried) or after.path != path or not isinstance(first, int):
            return None
        return _count(direction, first + offset, after.offset, bound)


def _arithmetic(opcode: str, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return {"add": a + b, "subtract": a - b, "multiply": a * b}[opcode]
    if isinstance(a, int) and opcode == "add":
        a, b = b, a
    if isinstance(a, _Carried) and isinstance(b, int) and opcode != "multiply":
        return _Carried(a.path, a.offset + (b if opcode == "add" else -b))
    return None


def _count(direction: str, first: int, step: int, bound: int) -> int | None:
    """Returns how many of first, first + step, ... come before the one that fails the comparison with the bound."""
    if direction in ("GT", "GE"):
        direction, first, step, bound = "L" + direction[1], -first, -step, -bound
    if direction in ("LT", "LE"):
        distance = bound - first + (direction == "LE")
        return 0 if distance <= 0 else -(-distance // step) if step > 0 else None
    if direction == "NE":
        distance = bound - first
        return 0 if not distance else distance // step if step and distance % step == 0 < distance * step else None
    return None
