"""The report reads a GPU's program: kernels by library, as often as a step runs them, with the FLOPs of their products."""

import jax
import pytest

from configs import registry
from tests.helpers.programs import program
from trainers.gpus import report
from trainers.gpus.chips import GPUS
from trainers.gpus.compiler import Compiled
from trainers.plan import make_plan
from trainers.runtime.chips import GIB

# Forms of jaxlib 0.10.2's programs, without their metadata.
GEMM = '"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}'
BODY = """
%product (a: f32[8,4], b: f32[4,3]) -> f32[8,3] {
  %a = f32[8,4] parameter(0)
  %b = f32[4,3] parameter(1)
  ROOT %dot.1 = f32[8,3]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%sliced (c: f32[8,3]) -> f32[1,3] {
  %c = f32[8,3] parameter(0)
  ROOT %slice = f32[1,3]{1,0} slice(%c), slice={[0:1], [0:3]}
}

%called (a2: f32[8,4], b2: f32[4,3]) -> f32[8,3] {
  %a2 = f32[8,4] parameter(0)
  %b2 = f32[4,3] parameter(1)
  %lib = (f32[8,3], s8[16]) custom-call(%a2, %b2), custom_call_target="__cublas$gemm", backend_config={GEMM}
  ROOT %first = f32[8,3] get-tuple-element(%lib), index=0
}

%body (s: (s32[], f32[8,4], f32[4,3])) -> (s32[], f32[8,4], f32[4,3]) {
  %s = (s32[], f32[8,4], f32[4,3]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %l = f32[8,4] get-tuple-element(%s), index=1
  %r = f32[4,3] get-tuple-element(%s), index=2
  %p = f32[8,3]{1,0} fusion(%l, %r), kind=kCustom, calls=%product, \
backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion","block_level_fusion_config":{"num_warps":"2"}}}
  %q = f32[1,3]{1,0} fusion(%p), kind=kCustom, calls=%sliced, \
backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion"}}}
  ROOT %t = (s32[], f32[8,4], f32[4,3]) tuple(%i, %l, %r)
}

%condition (s2: (s32[], f32[8,4], f32[4,3])) -> pred[] {
  %s2 = (s32[], f32[8,4], f32[4,3]) parameter(0)
  ROOT %go = pred[] constant(true)
}
""".replace("{GEMM}", f"{{{GEMM}}}")
LINES = (
    "%left = f32[8,4] parameter(1)",
    "%right = f32[4,3] parameter(2)",
    "%state = (s32[], f32[8,4], f32[4,3]) parameter(3)",
    '%w = (s32[], f32[8,4], f32[4,3]) while(%state), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}',
    f'%m = (f32[8,3], s8[16]) custom-call(%left, %right), custom_call_target="__cublas$lt$matmul", backend_config={{{GEMM}}}',
    '%e = f32[2]{0} custom-call(), custom_call_target="AllocateBuffer"',
)
ATTENTION = '%z = (f32[8,3], u8[0]) custom-call(%left, %right), custom_call_target="__cudnn$fmhaSoftmax", backend_config={}'
END = "ROOT %end = f32[500] copy(%x)"


def by_kind(*lines: str) -> dict[str, tuple]:
    rows = report.kernels(program(*LINES, *lines, END, before=BODY))
    return {row["kind"]: (row["count"], row["times"], row["flops"]) for row in rows}


def test_kernels_by_hand():
    """A product of 8 x 4 by 4 x 3 has 192 FLOPs, and a loop of five runs its own five times; what allocates is no product."""
    assert by_kind() == {
        "Triton product": (1, 5, 960.0),
        "cuBLAS product": (1, 1, 192.0),
        "slice of a tensor": (1, 5, 0.0),
        "AllocateBuffer": (1, 1, 0.0),
    }


def test_a_product_of_a_library_inside_a_fusion_is_one():
    """The fusion takes a matrix of a stack for it."""
    line = '%f = f32[8,3]{1,0} fusion(%left, %right), kind=kCustom, calls=%called, \
backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"address_computation"}}}'
    assert by_kind(line)["cuBLAS product"] == (2, 2, 384.0)


def test_what_is_unknown_is_not_counted():
    """A kernel whose FLOPs are not in the program has none here; a loop of unknown length no number of runs."""
    assert by_kind(ATTENTION)["cuDNN attention"] == (1, 1, None)
    unknown = tuple(line.replace('"known_trip_count":{"n":"5"}', "") for line in LINES)
    (row,) = [r for r in report.kernels(program(*unknown, END, before=BODY)) if r["kind"] == "Triton product"]
    assert row["times"] is None and row["flops"] is None and row["count"] == 1


ENTRY = "\n  ".join(["%x = f32[500]{0} parameter(0)", *LINES, END])
TEXT = f"HloModule jit_step, is_scheduled=true\n{BODY}\nENTRY %main (x: f32[500]) -> f32[500] {{\n  {ENTRY}\n}}\n"


@pytest.mark.parametrize(("gib", "fits"), [(1, True), (90, False)])
def test_a_report_says_whether_a_step_fits(gib, fits):
    """Categories add up; a step of 90 GiB does not fit an H100, and the text says so with what to do."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    memory = {"parameters": gib * GIB - 3, "optimizer": 1, "batch": 1, "other": 0, "temporary": 1}
    compiled = Compiled(make_plan(e, jax.devices()[: e.layout.devices]), TEXT, gib * GIB, memory, 1.0)
    result = report.report(e, GPUS["h100"], compiled)
    assert result["fits"] == fits and result["peak_gib"] == pytest.approx(sum(result["memory"].values()))
    assert result["program_flops"] == 1152.0 * e.layout.devices and result["model_flops"] > 1e6
    text = report.as_text(result)
    assert ("DOES NOT FIT" in text and "--execution.remat" in text) != fits
    assert "cuBLAS product" in text and "of 74.51 GiB" in text and "all-reduce" not in text
