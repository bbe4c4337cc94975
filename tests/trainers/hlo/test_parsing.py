"""Compiled programs read from their text: small ones written by hand, in the TPU's and the CPU's manner, and a real one."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from trainers.hlo.collectives import Collective, collectives, groups, summary, table
from trainers.hlo.parsing import HloError, Instruction, Program, Shape, parse
from trainers.hlo.trip_counts import Loop, loops, walk

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hlo"
MESH = {"data": 2, "model": 4}  # devices 0 1 2 3 / 4 5 6 7
DATA = ((0, 4), (1, 5), (2, 6), (3, 7))
MODEL = ((0, 1, 2, 3), (4, 5, 6, 7))


def fixture(name: str) -> Program:
    return parse((FIXTURES / f"{name}.txt").read_text())


def program(*lines: str, before: str = "") -> Program:
    """A program whose entry computation takes %x of f32[8,4] and then has these lines."""
    body = "\n  ".join(["%x = f32[8,4]{1,0} parameter(0)", *lines])
    return parse(f"HloModule test\n\n{before}\nENTRY %main (x: f32[8,4]) -> f32[8,4] {{\n  {body}\n}}\n")


def collective(text: str, **kwargs) -> Collective:
    """The one collective of a program of one line."""
    (result,) = collectives(program(f"ROOT %c = f32[8,4]{{1,0}} {text}"), MESH, **kwargs)
    return result


def instruction(p: Program, name: str) -> Instruction:
    return next(site.instruction for site in walk(p) if site.instruction.name == name)


# --- text ---------------------------------------------------------------------------------------------------------


def test_instructions_are_read():
    """A line gives its name, opcode, arrays, operands, attributes and called computations; its computation gives the root."""
    p = fixture("loops")
    assert p.name == "nested" and p.entry == "main" and len(p.computations) == 8
    loop = instruction(p, "while.inner")
    assert loop.opcode == "while" and loop.operands == ("tuple.1",)
    assert loop.shapes == (Shape("s32", ()), Shape("f32", (8, 4)), Shape("s32", ()))
    assert loop.called == {"body": ("inner_body",), "condition": ("inner_condition",)}
    reduce = instruction(p, "all-reduce.1")
    assert reduce.attributes["replica_groups"] == "[2,4]<=[8]" and reduce.called == {"to_apply": ("add.1",)}
    assert p.computations["outer_body"].root.operands == ("i.2", "x.5", "two.1", "one.1")
    assert p.computations["next"]["p.1"].argument == "1"


def test_origins_are_read():
    """JAX's op_name and the source line are those of the metadata, where the line is inline and where it is in tables."""
    p = fixture("loops")
    assert instruction(p, "all-reduce.1").op_name == "jit(f)/outer/inner/psum"
    assert instruction(p, "param.0").op_name == "state.params['embedding']"
    assert p.source(instruction(p, "all-reduce.1")) == "models/parts/moe/routing.py:228"
    assert p.source(instruction(p, "collective-permute.1")) == "models/parts/attention/module.py:7"
    assert p.source(instruction(p, "zero")) == ""


def test_functions_are_read_from_the_inside_out():
    """The calls that a real program's instruction was traced in, up to this test, with their files."""

    def inner(x):
        return jnp.sin(x)

    def outer(x):
        return 2 * inner(x)

    p = parse(jax.jit(outer).lower(jnp.ones(3)).compile().as_text() or "")
    frames = next(list(p.frames(site.instruction)) for site in walk(p) if site.instruction.opcode == "sine")
    mine = [function.rpartition(".")[2] for file, function in frames if Path(file).name == Path(__file__).name]
    assert mine == ["inner", "outer", "test_functions_are_read_from_the_inside_out"]
    assert list(p.frames(Instruction("x", "add", "f32[3]", "", "", False))) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[2,3]", 24),
        ("bf16[5]", 10),
        ("pred[3]", 3),
        ("s4[3]", 2),
        ("f8e4m3fn[4]", 4),
        ("c64[2]", 16),
        ("f32[]", 4),
        ("token[]", 0),
    ],
)
def test_bytes_of_an_array(text, size):
    """An array has its elements times its dtype's bits, in whole bytes."""
    (shape,) = program(f"ROOT %y = {text} copy(%x)").computations["main"].root.shapes
    assert str(shape) == text and shape.bytes == size


def test_newlines_inside_an_instruction_end_nothing():
    """A kernel's metadata with raw newlines, and lines that begin with a brace, leaves its loop body whole."""
    p = fixture("kernel")
    body = p.computations["body"]
    assert [i.opcode for i in body.instructions[-4:]] == ["custom-call", "get-tuple-element", "all-to-all", "tuple"]
    assert body["kernel.2"].attributes["custom_call_target"] == '"tpu_custom_call"'
    assert body["kernel.2"].op_name == "jit(f)/while/body/pallas_call"
    (result,) = collectives(p, MESH)
    assert (result.name, result.times, result.bytes) == ("all-to-all.1", 3, 2 * 8 * 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no ENTRY computation"),
        ("ENTRY %main () -> f32[] {\n  %a = nonsense\n}", "no instruction: '%a = nonsense'"),
        ("ENTRY %main () -> f32[] {\n  %a = f32[] copy(%b\n}", "parentheses do not close"),
        ("ENTRY %main () -> f32[] {\n  %a = f32[] copy(%b), x={{{1}\n}", "does not end: '%a"),
        ("ENTRY %main () -> f32[] {\n  ROOT %a = f32[] constant(1)\n", "no ENTRY computation"),
    ],
)
def test_what_is_no_program_is_refused(text, said):
    """A text without an entry, or with a line that is no instruction, is refused in one line that quotes it."""
    with pytest.raises(HloError, match=re.escape(said)) as caught:
        parse(text)
    assert len(str(caught.value).splitlines()) == 1


# --- loops --------------------------------------------------------------------------------------------------------


def test_loops_nest_and_multiply():
    """Trip counts are read from start, step and bound: 0, 2, 4 below 5 around 7, 5, 3, 1 not below 1 make 3 x 4 runs."""
    p = fixture("loops")
    outer, inner = Loop("while.outer", "jit(f)/outer", 3), Loop("while.inner", "jit(f)/outer/inner", 4)
    assert loops(p) == [(outer,), (outer, inner)]
    by_kind = {c.kind: c for c in collectives(p, MESH)}
    assert by_kind["collective-permute"].times == 3 and by_kind["collective-permute"].loops == (outer,)
    assert by_kind["all-reduce"].times == 12 and by_kind["all-reduce"].loops == (outer, inner)


LOOP = """
%body (s: (s32[], s32[])) -> (s32[], s32[]) {{
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  ROOT %t = (s32[], s32[]) tuple(%next, %n)
}}

%condition (u: (s32[], s32[])) -> pred[] {{
  %u = (s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%u), index=0
  %bound = s32[] get-tuple-element(%u), index=1
  ROOT %c = pred[] compare({compared}), direction={direction}
}}
"""


def loop(first: int, step: int, direction: str, bound: str, *, swapped: bool = False, noted: str = "") -> Program:
    compared = "%bound, %j" if swapped else "%j, %bound"
    return program(
        f"%first = s32[] constant({first})",
        f"%last = s32[] {bound}",
        "%t0 = (s32[], s32[]) tuple(%first, %last)",
        f'ROOT %w = (s32[], s32[]) while(%t0), condition=%condition, body=%body, metadata={{op_name="a/b"}}{noted}',
        before=LOOP.format(step=step, direction=direction, compared=compared),
    )


@pytest.mark.parametrize(
    ("first", "step", "direction", "bound", "trips"),
    [
        (0, 1, "LT", 5, 5),
        (0, 2, "LT", 5, 3),
        (1, 2, "LE", 5, 3),
        (0, 1, "NE", 5, 5),
        (0, 5, "NE", 20, 4),
        (5, -1, "GT", 0, 5),
        (5, -2, "GE", 1, 3),
        (5, 1, "LT", 5, 0),
        (0, -1, "GE", 1, 0),
        (5, 1, "NE", 5, 0),
        (0, 0, "LT", 5, None),
        (0, -1, "LT", 5, None),
        (0, 2, "NE", 5, None),
        (0, 1, "EQ", 0, None),
    ],
)
def test_trip_counts(first, step, direction, bound, trips):
    """A loop runs for first, first + step, ... until the comparison fails; one that would never end is not counted."""
    ((result,),) = loops(loop(first, step, direction, f"constant({bound})"))
    assert result.trips == trips
    flipped = direction.translate(str.maketrans("LG", "GL"))
    ((result,),) = loops(loop(first, step, flipped, f"constant({bound})", swapped=True))
    assert result.trips == trips


def test_what_the_compiler_noted_is_believed():
    """A known_trip_count in the backend_config is taken as it is."""
    noted = ', backend_config={"known_init_step":{"init":"0","step":"1"},"known_trip_count":{"n":"7"}}'
    ((result,),) = loops(loop(0, 1, "LT", "parameter(1)", noted=noted))
    assert result.trips == 7


def test_an_unknown_trip_count_is_an_error_or_none():
    """A collective in a loop whose bound comes from data raises an error that names the loop, unless None will do."""
    p = loop(0, 1, "LT", "parameter(1)")
    computation = p.computations["body"]
    line = "%r = f32[8,4]{1,0} all-reduce(%x), replica_groups={}, to_apply=%add"
    inside = program("%x2 = f32[8,4]{1,0} copy(%x)", line).computations["main"].instructions
    body = type(computation)("body", (*inside, *computation.instructions))
    p = Program(p.name, p.computations | {"body": body}, p.entry, {})
    assert loops(p) == [(Loop("w", "a/b", None),)]
    with pytest.raises(HloError, match=r"loop %w \(a/b\)"):
        collectives(p, MESH)
    (result,) = collectives(p, MESH, strict=False)
    assert result.times is None and result.bytes == 128
    (row,) = summary([result])
    assert row["times"] is None and row["bytes"] is None and row["in_loop"]
    assert table([row])[1].split()[:7] == ["-", "all-reduce", "data*model", "in", "loops", "1", "?"]


# --- groups and axes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", MODEL, ("model",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", DATA, ("data",)),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),), ("data", "model")),
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", tuple((i,) for i in range(8)), ()),
        ("{{0,1},{2,3},{4,5},{6,7}}", ((0, 1), (2, 3), (4, 5), (6, 7)), None),  # half an axis
        ("{{0,1,2,3},{4,5},{6,7}}", ((0, 1, 2, 3), (4, 5), (6, 7)), None),
        ("[2,4]<=[8]", MODEL, ("model",)),
        ("[4,2]<=[2,4]T(1,0)", DATA, ("data",)),
        ("[1,8]<=[8]", ((0, 1, 2, 3, 4, 5, 6, 7),), ("data", "model")),
        ("[4,2]<=[2,2,2]T(0,2,1)", ((0, 2), (1, 3), (4, 6), (5, 7)), None),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", MODEL, ("model",)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", DATA, ("data",)),
        ("mesh['a'=2,'b'=2,'c'=2] {'b','c'}", MODEL, ("model",)),
        ("mesh['a'=1,'b'=8] {'b':(1)2}", DATA, ("data",)),  # the major half of 8 = 2 x 4
        ("mesh['a'=8] {'a':(2)4}", MODEL, ("model",)),  # its minor part
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", DATA, ("data",)),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'b'}", ((7, 6, 5, 4), (3, 2, 1, 0)), ("model",)),
    ],
)
def test_replica_groups(text, expected, axes):
    """Each of XLA's syntaxes gives the same groups of devices, and the mesh axes that they lie along."""
    result = collective(f"all-reduce(%x), channel_id=1, replica_groups={text}, use_global_device_ids=true, to_apply=%add")
    assert result.groups == expected and result.axes == axes
    assert result.size == len(expected[0])


@pytest.mark.parametrize(
    ("pairs", "axes"),
    [
        ("{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", ("model",)),
        ("{{0,1},{1,2},{2,3}}", ("model",)),
        ("{{0,4},{4,0},{1,1}}", ("data",)),
        ("{{0,5},{5,0}}", ("data", "model")),
        ("{{0,0}}", ()),
    ],
)
def test_permutes(pairs, axes):
    """A permute goes along the axes in which some target differs from its source."""
    result = collective(f"collective-permute(%x), channel_id=1, source_target_pairs={pairs}")
    assert result.axes == axes and result.size == 2 and result.bytes == 128
    assert result.groups[0] == tuple(int(n) for n in pairs[2:5].split(","))


def test_what_cannot_be_read_is_refused():
    """Devices outside the mesh, groups in an unknown syntax and unknown collectives are named, never skipped."""
    with pytest.raises(HloError, match=r"%c: communicates with device 8, but the mesh has 8"):
        collective("all-gather(%x), replica_groups={{0,8}}, dimensions={0}")
    with pytest.raises(HloError, match=r"%c: groups of devices in no known syntax: 'stripes\(4\)'"):
        collective("all-gather(%x), replica_groups=stripes(4), dimensions={0}")
    with pytest.raises(HloError, match="%c: ragged-all-to-all is not known here"):
        collective("ragged-all-to-all(%x), replica_groups={{0,1}}")
    assert groups(instruction(program("ROOT %c = f32[] all-reduce(%x)"), "c"), 2) == ((0, 1),)


# --- collectives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes", "size"),
    [
        ("all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}", ["f32[32,4]"], 512),
        ("all-gather(%x, %x), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={1}", ["f32[8,8]", "f32[8,8]"], 512),
        ("all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add", ["f32[8,4]"], 128),
        ("reduce-scatter(%x), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add", ["f32[8,4]"], 128),
        ("all-to-all(%x, %x, %x, %x), replica_groups=[2,4]<=[8]", ["f32[8,4]"] * 4, 512),
    ],
)
def test_bytes_are_those_of_the_larger_side(text, shapes, size):
    """A gather counts what it gathers, every other collective what it takes, each on one device."""
    result = collective(text)
    assert [str(shape) for shape in result.shapes] == shapes and result.bytes == size
    assert result.kind == text.partition("(")[0] and result.times == 1 and result.loops == ()


def test_asynchronous_collectives_count_once():
    """A start with its done, a wrapped one with its updates, and a fused chain are one collective each, with their issuer.

    A TPU's fusion that reduces and keeps a slice is a reduce-scatter.
    """
    items = [(c.kind, c.name, c.axes, c.bytes, c.op_name) for c in collectives(fixture("async"), MESH)]
    assert items == [
        ("all-gather", "all-gather-start", ("model",), 8 * 16 * 4, ""),
        ("collective-permute", "collective-permute-start", ("model",), 8 * 16 * 4, ""),
        ("all-to-all", "all-to-all-start", ("data",), 128, ""),
        ("all-reduce", "all-reduce-start", ("data", "model"), 128, ""),
        ("reduce-scatter", "async-start", ("model",), 128, "jit(f)/scattered"),
        ("reduce-scatter", "fusion.1", ("model",), 128, "jit(f)/dot_general"),
        ("all-gather", "async-collective-start", ("data",), 4 * 4 * 4, "jit(f)/fused"),
    ]


BRANCHES = """
%yes (a: f32[8,4]) -> f32[8,4] {
  %a = f32[8,4]{1,0} parameter(0)
  ROOT %r = f32[8,4]{1,0} all-reduce(%a), replica_groups=[2,4]<=[8], to_apply=%add
}

%no (b: f32[8,4]) -> f32[8,4] {
  ROOT %b = f32[8,4]{1,0} parameter(0)
}
"""


@pytest.mark.parametrize(
    "how", ["branch_computations={%no, %yes}", "true_computation=%yes, false_computation=%no"], ids=["index", "pred"]
)
def test_a_branch_counts_as_its_parent(how):
    """A collective in one branch of a conditional is counted as if the branch were taken."""
    p = program("%p = pred[] constant(true)", f"ROOT %c = f32[8,4]{{1,0}} conditional(%p, %x, %x), {how}", before=BRANCHES)
    (result,) = collectives(p, MESH)
    assert (result.name, result.times, result.loops) == ("r", 1, ())


def test_a_computation_called_twice_counts_twice():
    """Each call of a shared computation is a site of its own."""
    p = program("%y = f32[8,4]{1,0} call(%x), to_apply=%yes", "ROOT %z = f32[8,4]{1,0} call(%y), to_apply=%yes", before=BRANCHES)
    assert [c.name for c in collectives(p, MESH)] == ["r", "r"]


# --- a real program -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> str:
    """Five all-reduces in a scan, three exchanges in a scan inside it, then one of each other kind, on 2 x 4 devices.

    Every device has f32[8,8] of f32[16,32]: 256 bytes.
    """
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def exchange(x, _):
        x = jax.lax.all_to_all(jnp.sin(x), "model", 0, 1, tiled=True)  # [2, 32]
        return jax.lax.all_to_all(x, "model", 1, 0, tiled=True), None

    def reduce(x, _):
        x = jax.lax.psum(x, "model") * 0.1
        return jax.lax.scan(exchange, x, None, length=3)[0], None

    def local(x):
        x, _ = jax.lax.scan(reduce, x, None, length=5)
        x = jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])
        x = jax.lax.all_gather(x, ("data", "model"), tiled=True)  # [64, 8]
        return jax.lax.psum_scatter(x, "data", tiled=True)

    cut = PartitionSpec("data", "model")
    f = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=cut, out_specs=cut, check_vma=False))
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, cut))
    return f.lower(x).compile().as_text() or ""


def test_a_compiled_program(compiled):
    """Kinds, axes, groups, bytes, runs and origins of a compiled program's collectives are those that it was built with."""
    results = collectives(parse(compiled), MESH)
    assert [(c.kind, c.axes, c.size, c.bytes, c.times) for c in results] == [
        ("all-reduce", ("model",), 4, 256, 5),
        ("all-to-all", ("model",), 4, 256, 15),
        ("all-to-all", ("model",), 4, 256, 15),
        ("collective-permute", ("data",), 2, 256, 1),
        ("all-gather", ("data", "model"), 8, 2048, 1),
        ("reduce-scatter", ("data",), 2, 2048, 1),
    ]
    assert [[each.trips for each in c.loops] for c in results[:3]] == [[5], [5, 3], [5, 3]]
    assert results[3].op_name.endswith("shard_map/ppermute")


def test_summary_of_a_compiled_program(compiled):
    """Collectives of a kind over the same axes make one row, with the bytes of all their runs."""
    rows = summary(collectives(parse(compiled), MESH))
    columns = ("kind", "axes", "in_loop", "count", "times", "bytes")
    assert [tuple(row[key] for key in columns) for row in rows] == [
        ("all-gather", ["data", "model"], False, 1, 1, 2048),
        ("all-reduce", ["model"], True, 1, 5, 5 * 256),
        ("reduce-scatter", ["data"], False, 1, 1, 2048),
        ("all-to-all", ["model"], True, 2, 30, 30 * 256),
        ("collective-permute", ["data"], False, 1, 1, 256),
    ]
    assert rows[0]["largest"] == "f32[64,8]"
    assert table(rows)[1].split() == ["-", "all-gather", "data*model", "once", "1", "1", "0.002", "f32[64,8]"]


def test_read_trip_counts_equal_the_noted_ones(compiled):
    """Without the compiler's notes, as on a TPU, the loops themselves tell the same trip counts."""
    bare = re.sub(r'"known_trip_count":\{"n":"\d+"\}', "", compiled)
    assert bare != compiled and loops(parse(bare)) == loops(parse(compiled))


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("all-reduce(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add", 2 * 128 * 3 / 4),
        ("all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}", 4 * 128 * 3 / 4),
        ("all-to-all(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}", 128 / 2),
        ("collective-permute(%x), source_target_pairs={{0,1},{1,0}}", 128),
    ],
)
def test_bytes_sent_are_the_fewest_that_do(text, sent):
    """Each device has 128 bytes: a sum is scattered and gathered, and nobody sends to itself."""
    assert collective(text).sent == sent
