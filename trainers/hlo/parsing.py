"""Compiled XLA programs, read from their text: computations, their instructions, and the calls between them.

The text is what `jax.stages.Compiled.as_text()` returns, of any backend; this module needs neither JAX nor a device.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

CALLS = ("body", "condition", "to_apply", "calls", "branch_computations", "true_computation", "false_computation")

_NAME = r"[\w.\-]+"
_STRING_END = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"')
_STRING = '"' + _STRING_END.pattern
_STRINGS = re.compile(_STRING, re.S)
_HEADER = re.compile(rf"(ENTRY )?%({_NAME}) .*\{{$", re.S)
_INSTRUCTION = re.compile(rf"\s+(ROOT )?%({_NAME}) = (.*?) ([a-z][\w\-]*)\(", re.S)
_PARENTHESES = re.compile(rf"[()]|{_STRING}", re.S)
_TOKENS = re.compile(rf"{_STRING}|[^\"(){{}}\[\],]+|.", re.S)
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_LAYOUT = re.compile(r"[a-z]\w*\[[\d,<=]*\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
HOST = 5  # the memory space of the host
_OP_NAME = re.compile(rf"op_name=({_STRING})", re.S)


class HloError(ValueError):
    """Raised for a text that is no compiled program, or that lacks the requested information; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array on one device: dtype as XLA writes it ("f32", "bf16", "pred"), and its dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes without padding; 0 for a token."""
        digits = re.search(r"\d+", self.dtype)
        bits = int(digits[0]) if digits else 8 * (self.dtype == "pred")
        return -(-self.size * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def _shapes(text: str) -> tuple[Shape, ...]:
    matches = _SHAPE.findall(text)
    return tuple(Shape(dtype, tuple(int(d.strip("<=")) for d in dims.split(",") if d)) for dtype, dims in matches)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation; everything but the name and the opcode is parsed lazily.

    Attributes:
      result: the text of its type, with layouts.
      argument: the text between its parentheses: operands, a constant's value, a parameter's number.
      suffix: the text after them: attributes, metadata, backend_config.
      root: whether its result is that of the computation.
    """

    name: str
    opcode: str
    result: str
    argument: str
    suffix: str
    root: bool

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The result's arrays; those of a tuple in order, inner tuples flattened."""
        return _shapes(self.result)

    @functools.cached_property
    def spaces(self) -> tuple[int, ...]:
        """Memory space of each of `shapes`, from a TPU's layouts: 0 is a device's main memory, HOST the host's, others are on
        chip."""
        matches = (_SPACE.search(layout) for layout in _LAYOUT.findall(self.result))
        return tuple(int(space[1]) if space else 0 for space in matches)

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of its operands, instructions of the same computation."""
        return tuple(re.findall(rf"%({_NAME})", self.argument))

    @functools.cached_property
    def attributes(self) -> dict[str, str]:
        """Text of each attribute: {"replica_groups": "{{0,1},{2,3}}", "dimensions": "{0}", ...}."""
        fields, depth, parts = [], 0, []
        for token in _TOKENS.findall(self.suffix):
            depth += (token in "([{") - (token in ")]}")
            if token == "," and not depth:
                fields.append("".join(parts))
                parts = []
            else:
                parts.append(token)
        fields.append("".join(parts))
        pairs = (text.strip().split("=", 1) for text in fields if "=" in text)
        return {key: value for key, value in pairs}

    @functools.cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """Names of the computations that it calls, by attribute, one of CALLS."""
        keys = [key for key in CALLS if f"{key}=" in self.suffix and key in self.attributes]
        return {key: tuple(re.findall(rf"%({_NAME})", self.attributes[key])) for key in keys}

    @property
    def op_name(self) -> str:
        """JAX's name for the operation, such as "jit(step)/while/body/dot_general"; "" where none is noted."""
        match = _OP_NAME.search(self.suffix)
        return re.sub(r"\\(.)", r"\1", match[1][1:-1]) if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A sequence of instructions; in a scheduled program, in the order in which they run."""

    name: str
    instructions: tuple[Instruction, ...]

    def __getitem__(self, name: str) -> Instruction:
        return self._named[name]

    @functools.cached_property
    def _named(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions}

    @functools.cached_property
    def root(self) -> Instruction:
        return next(i for i in self.instructions if i.root)


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: its computations by name, and the name of its entry computation.

    `tables` are the tables of source positions at the program's head, {"FileNames": {1: text}, ...}. `devices` is the number that
    it is partitioned for, 0 where none is noted; of several slices of TPUs, that of one slice.
    """

    name: str
    computations: dict[str, Computation]
    entry: str
    tables: dict[str, dict[int, str]]
    devices: int = 0

    def source(self, i: Instruction) -> str:
        """Returns where an instruction was traced, as "models/parts/moe/routing.py:228"; "" where nothing is noted."""
        text = i.attributes.get("metadata", "")
        if inline := re.search(rf"source_file=({_STRING}) source_line=(\d+)", text):
            return f"{inline[1][1:-1]}:{inline[2]}"
        location = self._follow("FileLocations", "file_location_id", self._follow("StackFrames", "stack_frame_id", text))
        line = re.search(r"\bline=(\d+)", location)
        file = self._follow("FileNames", "file_name_id", location).strip('"')
        return f"{file}:{line[1]}" if line else ""

    def frames(self, i: Instruction) -> Iterator[tuple[str, str]]:
        """Yields (file, qualified name of the function) of the calls that an instruction was traced in, the innermost first."""
        key, frame = "stack_frame_id", i.attributes.get("metadata", "")
        while frame := self._follow("StackFrames", key, frame):
            location = self._follow("FileLocations", "file_location_id", frame)
            file = self._follow("FileNames", "file_name_id", location)
            yield file.strip('"'), self._follow("FunctionNames", "function_name_id", location).strip('"')
            key = "parent_frame_id"

    def _follow(self, table: str, key: str, text: str) -> str:
        """Returns the row of a table that a text refers to under this key; "" if there is none."""
        match = re.search(rf"\b{key}=(\d+)", text)
        # The number of a frame's parent is written plus one: 1 is none.
        return self.tables.get(table, {}).get(int(match[1]) - (key == "parent_frame_id"), "") if match else ""


def parse(text: str) -> Program:
    """Parses a program.

    Raises:
      HloError: no ENTRY computation, or a line inside a computation that is no instruction.
    """
    computations: dict[str, Computation] = {}
    tables: dict[str, dict[int, str]] = {}
    entry, name, table = "", "", {}
    body: list[Instruction] | None = None
    for line in _lines(text):
        if body is not None:
            if line.startswith("}"):
                computations[name], body = Computation(name, tuple(body)), None
            elif line.strip():
                body.append(_instruction(line))
        elif header := _HEADER.match(line):
            name, body = header[2], []
            entry = name if header[1] else entry
        elif re.fullmatch(r"[A-Z]\w+", line):
            table = tables.setdefault(line, {})
        elif row := re.match(r"(\d+) (.*)", line):
            table[int(row[1])] = row[2]
    if entry not in computations:
        raise HloError(f"no compiled program: no ENTRY computation in {len(text):,} characters of text")
    module = re.search(rf"HloModule ({_NAME})(?:.*num_partitions=(\d+))?", text)
    name, devices = module.groups() if module else ("", None)
    return Program(name, computations, entry, tables, int(devices or 0))


def _lines(text: str) -> Iterator[str]:
    """Yields the text's lines; an instruction with raw newlines in its attributes, as kernels have them, is one line."""
    parts: list[str] = []
    depth, quoted = 0, False  # unclosed braces and string at the end of a line
    for line in text.split("\n"):
        if not parts and not line.startswith(" "):  # only instructions are indented
            yield line
            continue
        parts.append(line)
        remaining = line
        if quoted and (end := _STRING_END.match(line)):
            remaining, quoted = line[end.end() :], False
        if not quoted:
            remaining, quote, _ = _STRINGS.sub("", remaining).partition('"')
            depth, quoted = depth + remaining.count("{") - remaining.count("}"), bool(quote)
        if not depth and not quoted:
            yield "\n".join(parts)
            parts = []
    if parts:
        raise HloError(f"no compiled program: an instruction does not end: {parts[0].strip()[:80]!r}")


def _instruction(line: str) -> Instruction:
    match = _INSTRUCTION.match(line)
    if not match:
        raise HloError(f"no instruction: {line.strip()[:80]!r}")
    depth = 1
    for token in _PARENTHESES.finditer(line, match.end()):
        depth += (token[0] == "(") - (token[0] == ")")
        if not depth:
            argument = line[match.end() : token.start()]
            return Instruction(match[2], match[4], match[3], argument, line[token.end() :], bool(match[1]))
    raise HloError(f"no instruction, its parentheses do not close: {line.strip()[:80]!r}")


_SCOPE = re.compile(r"jvp\(([A-Za-z_][\w.]*)\)")


def component(op_name: str) -> str:
    """Returns the component whose stack of layers an operation of a training step belongs to (models.sharding.params.scan names
    it); "" outside of any."""
    match = _SCOPE.search(op_name)
    return match[1] if match else ""


def phase(op_name: str) -> str:
    """Returns the part of a training step that an operation belongs to; JAX writes transformations into its name."""
    for mark, name in (
        ("rematted_computation", "rematerialised"),
        ("transpose(", "backward"),
        ("jvp(", "forward"),
        ("/optimizer/", "optimizer"),
    ):
        if mark in op_name:
            return name
    return "other"
