"""Prices of small programs, computed by hand; times are in microseconds, on the chips of tests/helpers/programs.py."""

from collections import defaultdict

import pytest

from tests.helpers.programs import US, XY, X, Y, algorithm, cycles, price_of, priced, program, vector
from trainers.hlo.collectives import KINDS
from trainers.hlo.parsing import phase
from trainers.pods import simulation
from trainers.pods.price import Price


def us(seconds: float) -> float:
    return round(seconds / US, 9)


def parts(result: Price) -> dict[str, float]:
    """The step and what it is made of, without the zeros."""
    kinds = {name: result.exposed[name] for name in ("matrix", "vector", "kernel", "dma", "host", "unpriced")}
    return {name: us(s) for name, s in ({"step": result.step_s, "exposed": result.exposed_s} | kinds).items() if s}


def by_axes(result: Price) -> dict[tuple[str, tuple[str, ...] | None], float]:
    """The waiting for collectives, by their kind and mesh axes."""
    exposed: dict = defaultdict(float)
    for row in result.rows:
        if row.kind in KINDS:
            exposed[row.kind, row.axes] += row.exposed
    return dict(exposed)


# --- what a core computes -----------------------------------------------------------------------------------------

PRODUCT = """
%product (a: bf16[8,16], b: bf16[16,32]) -> bf16[8,32] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,32]{1,0} parameter(1)
  ROOT %c = bf16[8,32]{1,0} convolution(%a, %b), window={}, dim_labels=bf_io->bf
}
"""
OPERANDS = ("%u = bf16[8,16]{1,0:T(8,128)(2,1)S(3)} parameter(1)", "%v = bf16[16,32]{1,0:T(8,128)(2,1)} parameter(2)")
NOTED = 'metadata={op_name="jit(step)/transpose(jvp())/while/body/dot_general" source_file="models/a.py" source_line=7}'


def test_a_product():
    """A fusion with a product takes the compiler's cycles; its row says what it is, and what it reads from main memory."""
    line = f"ROOT %f = bf16[8,32]{{1,0}} fusion(%u, %v), kind=kOutput, calls=%product, {NOTED}"
    result = priced(*OPERANDS, line + cycles(2000), before=PRODUCT)
    assert parts(result) == {"step": 2, "matrix": 2} and result.hlo_flops == 2 * 8 * 16 * 32 and not result.problems
    (row,) = result.rows
    assert (row.name, row.kind, row.label, row.component) == ("f", "matrix", "dot_general", "backward")
    assert (row.source, row.shape, row.axes, row.in_loop) == ("models/a.py:7", "bf16[8,32]", (), False)
    assert row.bytes == 2 * (16 * 32 + 8 * 32)  # the left operand lies on the chip
    assert (row.times, us(row.seconds), us(row.exposed)) == (1, 2, 2)


def test_what_has_no_estimate():
    """Without an estimate a fusion takes its bytes over the memory's bandwidth; small single operations and names are free."""
    plain = "\n%plain (a: f32[500]) -> f32[500] {\n  ROOT %a = f32[500] parameter(0)\n}\n"
    result = priced(
        vector("long", 99.7),
        "%small = f32[500]{0} negate(%x)",
        '%room = f32[900000]{0} custom-call(), custom_call_target="AllocateBuffer"',
        '%cleared = f32[500]{0} custom-call(%x), custom_call_target="ZeroCrop"',
        "ROOT %f = f32[500]{0} fusion(%x), kind=kLoop, calls=%plain",
        before=plain,
    )
    assert parts(result) == {"step": 100.5, "vector": 99.7, "unpriced": 0.8} and not result.problems
    big = priced("%big = f32[500000]{0} broadcast(%x), dimensions={0}")
    assert us(big.exposed["unpriced"]) == 200.2


def test_a_gather_of_rows():
    """Without an estimate, rows of 512 bytes or more are read once and written once, however large the table is; single numbers
    count as unpriced."""
    gather = """
%gathering (a: f32[1000,{n}], b: s32[50]) -> f32[50,{n}] {{
  %a = f32[1000,{n}] parameter(0)
  %b = s32[50] parameter(1)
  ROOT %g = f32[50,{n}] gather(%a, %b), offset_dims={{1}}, collapsed_slice_dims={{0}}, slice_sizes={{1,{n}}}
}}
"""
    lines = "%t = f32[1000,{n}]{{1,0}} parameter(1)", "ROOT %f = f32[50,{n}]{{1,0}} fusion(%t, %x), calls=%gathering"
    for n, expected in ((128, {"step": 5.12, "vector": 5.12}), (1, {"step": 0.62, "unpriced": 0.62})):
        result = priced(*(line.format(n=n) for line in lines), before=gather.format(n=n))
        assert parts(result) == expected


def test_rows_are_sorted_and_name_parts_of_a_step():
    """Rows come with the most seconds first."""
    result = priced(vector("a", 1), vector("b", 3), vector("c", 2))
    assert [(row.name, row.kind, us(row.seconds)) for row in result.rows] == [
        ("b", "vector", 3),
        ("c", "vector", 2),
        ("a", "vector", 1),
    ]


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("jit(step)/jvp()/while/body/closed_call/bsm,mh->bsh/dot_general", "forward"),
        ("jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/bsm,mh->bsh/dot_general", "backward"),
        ("jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/mul", "rematerialised"),
        ("jit(step)/optimizer/mul", "optimizer"),
        ("jit(step)/reduce_sum", "other"),
        ("", "other"),
    ],
)
def test_parts_of_a_step(op_name, expected):
    """JAX's names tell the forward pass, the backward pass, what it computes again, and the optimizer's scope."""
    assert phase(op_name) == expected


# --- collectives --------------------------------------------------------------------------------------------------

# f32[500] on each of four, 8 kB gathered: 6 kB over two links and two hops, 5 us.
START = f"%ag = (f32[500]{{0}}, f32[2000]{{0}}) all-gather-start(%x), replica_groups={X}, dimensions={{0}}"
DONE = "ROOT %d = f32[2000]{0} all-gather-done(%ag)"
GATHER = "%{name} = f32[2000]{{0}} all-gather(%x), replica_groups={groups}, dimensions={{0}}"


@pytest.mark.parametrize(("product", "exposed"), [(8, 0), (2, 3), (0, 5)])
def test_what_hides_a_collective(product, exposed):
    """For a collective that was started earlier, the step waits for what is left when it needs the result."""
    result = priced(START, vector("v", product), DONE)
    assert us(result.exposed_s) == exposed and us(result.step_s) == product + exposed
    assert us(result.communication_s) == 5 and not result.problems
    row = next(row for row in result.rows if row.kind == "all-gather")
    assert (row.name, row.axes, row.shape, row.bytes) == ("ag", ("x",), "f32[2000]", 8000)
    assert by_axes(result) == {("all-gather", ("x",)): row.exposed}


def test_links_are_queues():
    """Transfers along one axis follow each other, those along different axes don't wait."""
    same = START.replace("%ag", "%ag2")
    other = same.replace(X, Y)
    wait = [DONE, DONE.replace("ROOT %d", "%d2").replace("%ag", "%ag2")]
    assert us(priced(START, same, *wait).step_s) == 10
    assert us(priced(START, other, *wait).step_s) == 5
    assert us(priced(START, GATHER.format(name="g", groups=X), DONE).step_s) == 10  # a synchronous one waits too


SCATTER = f"""
%add (p: f32[], q: f32[]) -> f32[] {{
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %sum = f32[] add(%p, %q)
}}

%all-reduce-scatter.1 (a: f32[2000]) -> f32[500] {{
  %a = f32[2000]{{0}} parameter(0)
  %r = f32[2000]{{0}} all-reduce(%a), replica_groups={X}, to_apply=%add
  %zero = u32[] constant(0)
  ROOT %slice = f32[500]{{0}} dynamic-slice(%r, %zero), dynamic_slice_sizes={{500}}
}}
"""


def test_a_reduce_scatter_is_a_fusion():
    """A fusion that reduces and keeps a slice takes half of an all-reduce, and the step waits for all of it."""
    sums = "%big = f32[2000]{0} parameter(1)"
    result = priced(sums, "ROOT %f = f32[500]{0} fusion(%big), kind=kCustom, calls=%all-reduce-scatter.1", before=SCATTER)
    assert parts(result) == {"step": 5, "exposed": 5} and result.exposed["reduce-scatter"] == result.exposed_s
    reduced = priced(sums, f"ROOT %r = f32[2000]{{0}} all-reduce(%big), replica_groups={X}, to_apply=%add", before=SCATTER)
    assert parts(reduced) == {"step": 10, "exposed": 10}


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ("", 7.5 / 4),
        (algorithm('"emitter":"2DAllGatherOnMajorDim"'), 7.5 / 4),
        (algorithm('"emitter":"1DAllGatherOnMajorDim"'), 7.5 / 2),
        (
            algorithm(r'"emitter":"RotatedPincerEmitter","strategy":"StrategyRing","debug":"\nStrategyRing{colors:1 phases:1}"'),
            7.5 / 2,
        ),
    ],
)
def test_the_compilers_algorithm(noted, expected):
    """A gather over two axes goes along both at once, unless the compiler notes an algorithm that does not."""
    line = f"ROOT %g = f32[2000]{{0}} all-gather(%part), replica_groups={XY}, dimensions={{0}}{noted}"
    result = priced("%part = f32[125]{0} parameter(1)", line)
    assert us(result.step_s) == expected + 4


def test_exchanges_and_permutes():
    """An all-to-all takes n / 8 of its bytes over a ring, a permute all of them, both with their hops."""
    pairs = ",".join(f"{{{i},{(i + 8) % 32}}}" for i in range(32))
    result = priced(
        "%big = f32[2000]{0} parameter(1)",
        f"%e = f32[2000]{{0}} all-to-all(%big), replica_groups={X}, dimensions={{0}}",
        f"%s = (f32[2000]{{0}}, f32[2000]{{0}}) collective-permute-start(%big), source_target_pairs={{{pairs}}}",
        vector("v", 4),
        "ROOT %d = f32[2000]{0} collective-permute-done(%s)",
    )
    assert parts(result) == {"step": 6 + 9, "vector": 4, "exposed": 6 + 5}
    exposed = {key: us(seconds) for key, seconds in by_axes(result).items()}
    assert exposed == {("all-to-all", ("x",)): 6, ("collective-permute", ("x",)): 5}


FUSED = f"""
%begin (a: f32[500]) -> (f32[500], f32[2000], u32[]) {{
  %a = f32[500]{{0}} parameter(0)
  %g1 = f32[2000]{{0}} all-gather(%a), channel_id=9, replica_groups={X}, dimensions={{0}}, \
backend_config={{"async_collective_fusion_config":{{"flag_start":"-1"}}}}
  ROOT %begun = (f32[500]{{0}}, f32[2000]{{0}}, u32[]) custom-call(%g1), custom_call_target="AsyncCollectiveStart"
}}

%carry (b: f32[500]) -> (f32[500], f32[2000]) {{
  %b = f32[500]{{0}} parameter(0)
  %g2 = f32[2000]{{0}} all-gather(%b), channel_id=9, replica_groups={X}, dimensions={{0}}, \
backend_config={{"async_collective_fusion_config":{{"flag_start":"2"}}}}
  ROOT %carried = (f32[500]{{0}}, f32[2000]{{0}}) tuple(%b, %g2)
}}

%end (c: f32[500]) -> f32[2000] {{
  %c = f32[500]{{0}} parameter(0)
  %g3 = f32[2000]{{0}} all-gather(%c), channel_id=9, replica_groups={X}, dimensions={{0}}, \
backend_config={{"async_collective_fusion_config":{{"flag_start":"8"}}}}
  ROOT %ended = f32[2000]{{0}} custom-call(%c, %g3), custom_call_target="AsyncCollectiveDone"
}}
"""


def test_a_collective_fused_with_products():
    """A collective that several fusions carry on starts with the first, ends with the last, and takes its time once."""
    result = priced(
        "%s = (f32[500]{0}, f32[2000]{0}, u32[]) fusion(%x), kind=kCustom, calls=%begin",
        "%part = f32[500]{0} get-tuple-element(%s), index=0",
        "%f = (f32[500]{0}, f32[2000]{0}) fusion(%part), kind=kOutput, calls=%carry" + cycles(3000),
        "%next = f32[500]{0} get-tuple-element(%f), index=0",
        "ROOT %d = f32[2000]{0} fusion(%next), kind=kCustom, calls=%end",
        before=FUSED,
    )
    assert parts(result) == {"step": 5, "vector": 3, "exposed": 2} and us(result.communication_s) == 5
    assert not result.problems


WRAPPED = f"""
%wrapped (a: f32[2000]) -> f32[500] {{
  %a = f32[2000]{{0}} parameter(0)
  ROOT %r = f32[500]{{0}} reduce-scatter(%a), replica_groups={X}, dimensions={{0}}, to_apply=%add
}}
"""


def test_a_wrapped_collective():
    """The work that an async-start wraps runs until the async-done, through its updates."""
    kind = "((f32[2000]{0}), f32[500]{0}, u32[])"
    result = priced(
        "%big = f32[2000]{0} parameter(1)",
        f"%s = {kind} async-start(%big), calls=%wrapped",
        f"%s2 = {kind} async-update(%s), calls=%wrapped",
        vector("v", 1),
        "ROOT %d = f32[500]{0} async-done(%s2), calls=%wrapped",
        before=WRAPPED,
    )
    assert parts(result) == {"step": 5, "vector": 1, "exposed": 4} and not result.problems


def between_slices(kind: str = "ALL_REDUCE") -> tuple[str, str, str, str]:
    """A sum of %x, 2 kB, over two slices: its send, the beginning of its receipt, and the ends of both."""
    handler = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
    noted = (
        f'{handler},_xla_host_transfer_rendezvous="ar.1",_xla_megascale_target="{{1,2}}x{{0:31}}",_xla_megascale_transfer_type='
    )
    attributes = f'is_host_transfer=true, frontend_attributes={{{noted}"{kind}"}}'
    return (
        f"%s = (f32[500]{{0}}, u32[], token[]) send(%x, %t), channel_id=2, {attributes}",
        f"%r = (f32[500]{{0}}, u32[], token[]) recv(%t), channel_id=1, {attributes}",
        f"%sd = token[] send-done(%s), channel_id=2, frontend_attributes={{{handler}}}",
        f"%rd = (f32[500]{{0}}, token[]) recv-done(%r), channel_id=1, frontend_attributes={{{handler}}}",
    )


@pytest.mark.parametrize(("product", "exposed"), [(30, 0), (10, 14), (0, 24)])
def test_a_sum_over_slices(product, exposed):
    """A sum of 2 kB takes 20 us over the network and 2 each to the host and back; it begins with the send, and the step waits
    for what is left where its result is received. Collectives inside a slice are those of one slice, whose program this is."""
    send, receive, *done = between_slices()
    p = program("%t = token[] after-all()", send, receive, vector("v", product), *done, GATHER.format(name="g", groups=X))
    result = price_of(p, slices=2)
    assert not result.problems
    assert by_axes(result) == pytest.approx({("all-reduce", ("slice",)): exposed * US, ("all-gather", ("x",)): 5 * US})
    assert us(result.step_s) == product + exposed + 5
    row = next(row for row in result.rows if row.kind == "all-reduce")
    assert (row.name, row.bytes, us(row.seconds)) == ("s", 2000, 24)


def test_what_is_no_sum_over_slices_is_a_problem():
    """Layouts cut rows alone over slices, of which only sums are needed."""
    send, receive, *done = between_slices("ALL_GATHER")
    result = priced("%t = token[] after-all()", send, receive, *done)
    assert result.problems[0] == "%s: ALL_GATHER between slices is not known here, only ALL_REDUCE"


def test_copies_between_memories():
    """Copies take the memory's bandwidth beside the computation, one after the other; a slice takes its own bytes."""
    result = priced(
        "%big = f32[50000]{0} parameter(1)",
        "%c = (f32[10000]{0:S(3)}, f32[10000]{0}, u32[]) copy-start(%part)",
        "%s = ((f32[50000]{0}), f32[5000]{0:S(3)}, s32[]) slice-start(%big), slice={[0:5000]}",
        vector("v", 3),
        "%d = f32[10000]{0:S(3)} copy-done(%c)",
        "ROOT %e = f32[5000]{0:S(3)} slice-done(%s)",
    )
    assert parts(result) == {"step": 4 + 2, "vector": 3, "dma": 3}
    assert [(row.kind, row.bytes, us(row.exposed)) for row in result.rows[:2]] == [("dma", 40000, 1), ("vector", 4000, 3)]


def test_copies_from_and_to_the_host():
    """They take the host's link, each direction by itself; of a stack in the host's memory a slice moves. One that the core does
    not run beside others holds it up."""
    result = priced(
        "%stack = f32[4,1000]{1,0:S(5)} parameter(1)",
        "%i = s32[] constant(1)",
        "%w = (f32[4,1000]{1,0:S(5)}, f32[1,1000]{1,0}, s32[], s32[]) dynamic-update-slice-start(%stack, %part, %i, %i)",
        "%r = (f32[4,1000]{1,0:S(5)}, s32[], s32[], f32[1,1000]{1,0}) dynamic-slice-start(%stack, %i, %i)",
        "%r2 = (f32[500]{0}, f32[500]{0:S(5)}, u32[]) copy-start(%x)",
        vector("v", 1),
        "%wd = f32[4,1000]{1,0:S(5)} dynamic-update-slice-done(%w)",
        "%rd = f32[1,1000]{1,0} dynamic-slice-done(%r)",
        "%r2d = f32[500]{0} copy-done(%r2)",
        "ROOT %back = f32[500]{0:S(5)} copy(%r2d)",
    )
    assert parts(result) == {"step": 4 + 2 + 2, "vector": 1, "host": 7} and not result.problems
    assert {(row.name, row.bytes, us(row.exposed)) for row in result.rows if row.kind == "host"} == {
        ("w", 4000, 3),
        ("r", 4000, 0),
        ("r2", 2000, 2),
        ("back", 2000, 2),
    }
    lanes = [span.lane for span in result.spans]
    assert lanes.count("host") == 4 and "dma" not in lanes


# --- loops, branches, kernels -------------------------------------------------------------------------------------

LOOP = """
%body (s: (s32[], f32[500])) -> (s32[], f32[500]) {{
  %s = (s32[], f32[500]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x1 = f32[500] get-tuple-element(%s), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
{lines}
  ROOT %t = (s32[], f32[500]) tuple(%next, %x1)
}}

%condition (u: (s32[], f32[500])) -> pred[] {{
  %u = (s32[], f32[500]) parameter(0)
  %j = s32[] get-tuple-element(%u), index=0
  %bound = s32[] constant(10)
  ROOT %c = pred[] compare(%j, %bound), direction=LT
}}
"""
WHILE = (
    "%first = s32[] constant(0)",
    "%t0 = (s32[], f32[500]) tuple(%first, %x)",
    "%w = (s32[], f32[500]) while(%t0), condition=%condition, body=%body",
)


def in_loop(*lines: str, step: int = 1) -> str:
    return LOOP.format(step=step, lines="\n".join("  " + line.replace("%x", "%x1") for line in lines))


@pytest.mark.parametrize(("step", "trips"), [(1, 10), (2, 5), (6, 2), (10, 1)])
def test_loops(step, trips):
    """A loop's body counts as often as its condition and its step say."""
    result = priced(*WHILE, before=in_loop(vector("v", 1), step=step))
    assert parts(result) == {"step": trips, "vector": trips}
    assert [(row.name, row.times, row.in_loop) for row in result.rows] == [("v", trips, True)]


def test_waiting_inside_a_loop():
    """Every iteration waits for what it starts."""
    result = priced(*WHILE, before=in_loop(START, vector("v", 2), DONE.replace("ROOT ", "")))
    assert parts(result) == {"step": 50, "vector": 20, "exposed": 30} and not result.problems
    second = [span for span in result.spans if span.loops == (("w", 1, 10),)]
    assert sorted((us(span.start), us(span.end), span.lane) for span in second) == [
        (5, 7, "vector"),
        (5, 10, "links"),
        (7, 10, "wait"),
    ]


def test_a_loop_hides_what_was_started_before():
    """A collective flies while a loop computes, and its links are free when it has arrived, not when the loop ends."""
    after = GATHER.format(name="g", groups=X)
    result = priced(START, *WHILE, DONE.replace("ROOT ", ""), after, before=in_loop(vector("v", 1)))
    assert parts(result) == {"step": 15, "vector": 10, "exposed": 5}


def test_loops_in_loops():
    """A loop in a loop runs as often as both say."""
    inner = in_loop(vector("v", 1), step=2)
    outer = inner.replace("%body", "%body2").replace("%condition", "%condition2").replace("(s: ", "(s2: ")
    call = ("%y0 = (s32[], f32[500]) tuple(%zero, %x1)", "%y = (s32[], f32[500]) while(%y0), condition=%condition, body=%body")
    outer = outer.replace(vector("v", 1).replace("%x", "%x1"), "\n  ".join(["%zero = s32[] constant(0)", *call]))
    line = WHILE[2].replace("%condition", "%condition2").replace("%body", "%body2")
    result = priced(*WHILE[:2], line, before=inner + outer)
    assert us(result.step_s) == 25 and result.rows[0].times == 25
    assert {span.loops for span in result.spans} == {(("w", i, 5), ("y", j, 5)) for i in range(3) for j in range(3)}


def test_the_dearest_branch_counts():
    """In a conditional the branch that takes longest is taken, as the parts that it has."""
    branches = f"""
%cheap (a: f32[500]) -> f32[500] {{
  %x = f32[500]{{0}} parameter(0)
  ROOT {vector("v", 4)}
}}

%dear (b: f32[500]) -> f32[2000] {{
  %x = f32[500]{{0}} parameter(0)
  {vector("w", 2)}
  ROOT {GATHER.format(name="g", groups=X)}
}}
"""
    line = "ROOT %c = f32[500]{0} conditional(%p, %x, %x), branch_computations={%cheap, %dear}"
    result = priced("%p = s32[] constant(0)", line, before=branches)
    assert parts(result) == {"step": 7, "vector": 2, "exposed": 5}


def test_calls():
    """A computation that is called twice counts twice, in one row."""
    called = "\n%called (a: f32[500]) -> f32[500] {\n  %x = f32[500] parameter(0)\n  ROOT " + vector("v", 4) + "\n}\n"
    result = priced("%a = f32[500] call(%x), to_apply=%called", "ROOT %b = f32[500] call(%a), to_apply=%called", before=called)
    assert us(result.step_s) == 8 and [(row.name, row.times) for row in result.rows] == [("v", 2)]


KERNEL = """%splash_mha_fwd_residuals.1 = (f32[2,4,128,64]{3,2,1,0}) custom-call(%positions, %q, %q, %q), \
custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128, \\"open\\": \\"{\\"}"
}}, metadata={op_name="jit(step)/jvp()/while/body/pallas_call"}, backend_config={"custom_call_config":{"body":"TUzv","debug":"two
} %not = f32[] all-reduce(%x)"}}"""


@pytest.mark.parametrize(("efficiency", "expected"), [(0.5, 33.554432), (0.25, 67.108864)])
def test_attention_kernels(efficiency, expected):
    """A kernel takes its FLOPs at a declared share of the peak; newlines and braces in its metadata end nothing."""
    q = "%q = bf16[2,4,128,64]{3,2,1,0} parameter(1)"
    lines = in_loop("%positions = s32[128,128] constant({...})", q.replace("parameter(1)", "broadcast(%x)"), KERNEL)
    result = price_of(program(*WHILE, before=lines), kernel_efficiency=efficiency)
    assert parts(result) == {"step": pytest.approx(10 * expected), "kernel": pytest.approx(10 * expected)}
    (row,) = result.rows
    assert (row.kind, row.label, row.times, row.flops) == ("kernel", "pallas_call", 10, 2 * 65536 * 2 * 128 / 2)
    assert not result.problems


# --- timelines and refusals ---------------------------------------------------------------------------------------


def test_the_timeline():
    """The core's work, its waiting, the links and the memory have a bar each, from begin to end."""
    result = priced(
        START,
        "%c = (f32[10000]{0:S(3)}, f32[10000]{0}, u32[]) copy-start(%part)",
        vector("v", 2),
        DONE,
        "%e = f32[10000]{0:S(3)} copy-done(%c)",
        GATHER.format(name="g", groups=X),
    )
    bars = sorted((us(span.start), us(span.end), span.lane, span.kind, span.label) for span in result.spans)
    assert bars == [
        (0, 2, "vector", "vector", "v"),
        (0, 4, "dma", "dma", "c"),
        (0, 5, "links", "all-gather", "ag"),
        (2, 5, "wait", "all-gather", "ag"),
        (5, 10, "links", "all-gather", "g"),
        (5, 10, "wait", "all-gather", "g"),
    ]


def test_the_timeline_shows_three_iterations():
    """A loop's first three iterations have bars; what follows the loop is where the whole loop leaves it."""
    result = priced(*WHILE, vector("after", 1), before=in_loop(vector("v", 1)))
    assert [(us(span.start), us(span.end), span.loops) for span in result.spans] == [
        (0, 1, (("w", 0, 10),)),
        (1, 2, (("w", 1, 10),)),
        (2, 3, (("w", 2, 10),)),
        (10, 11, ()),
    ]


def test_a_long_timeline_keeps_the_longest(monkeypatch):
    """The longest bars are kept where there are too many, in the order of time."""
    monkeypatch.setattr(simulation, "SPANS", 2)
    result = priced(vector("a", 3), vector("b", 1), vector("c", 2))
    assert [span.label for span in result.spans] == ["a", "c"]


UNKNOWN_LOOP = in_loop(vector("v", 1)).replace("%bound = s32[] constant(10)", "%bound = s32[] get-tuple-element(%u), index=0")
ODD = "\n%odd (a: f32[500]) -> f32[500] {\n  %a = f32[500] parameter(0)\n  ROOT %n = f32[500] negate(%a)\n}\n"


@pytest.mark.parametrize(
    ("lines", "before", "problem_text"),
    [
        (WHILE, UNKNOWN_LOOP, "loop %w: how often it runs is not in the program"),
        ([DONE.replace("%ag", "%x")], "", "%d waits for something that was not started"),
        ([START, "%b = f32[500] negate(%x)"], "", "%ag is started and never waited for"),
        (WHILE, in_loop(START), "%ag is started and never waited for"),
        (
            ['%k = f32[500]{0} custom-call(%x), custom_call_target="tpu_custom_call"'],
            "",
            "%k: custom call of 'tpu_custom_call' has no estimate",
        ),
        (['%k = f32[500]{0} custom-call(%x), custom_call_target="TopK"'], "", "of the step has no estimate"),
        ([f"%r = f32[500] ragged-all-to-all(%x), replica_groups={X}"], "", "%r: ragged-all-to-all is not known here"),
        (["%g = f32[500] all-gather(%x), replica_groups={{0,99}}, dimensions={0}"], "", "device 99, but the mesh has 32"),
        (["%r = (f32[500], u32[]) send(%x)"], "", "%r: send has no price"),
        (
            ["%a = ((f32[500]), f32[500]) async-start(%x), calls=%odd", "%b = f32[500] async-done(%a)"],
            ODD,
            "%a: async-start of negate has no price",
        ),
        (["%a = ((f32[500]), f32[500]) sort-start(%x)", "%b = f32[500] sort-done(%a)"], "", "%a: sort-start"),
    ],
)
def test_what_cannot_be_priced_is_a_problem(lines, before, problem_text):
    """A cost that the price leaves out, or guesses, is named in one line."""
    result = priced(*lines, vector("v2", 1), before=before)
    assert any(problem_text in problem for problem in result.problems), result.problems
    assert all(len(problem.splitlines()) == 1 for problem in result.problems)
