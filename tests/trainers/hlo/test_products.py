"""FLOPs of products as TPU programs write them: two for each pair of an element of one operand and one of the other that meet."""

import pytest

from tests.helpers.programs import program
from trainers.hlo.products import attention_flops, flops, total


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "expected"),
    [
        ("[6,16]", "[16,3]", "[6,3]", "dim_labels=bf_io->bf", 2 * 6 * 16 * 3),
        # a batch of 8, as a window whose other taps fall between the elements
        ("[8,4,16]", "[8,16,3]", "[8,4,3]", "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf", 8 * 384),
        # heads of the right operand, as a window whose other taps fall outside: [2, 4, 16] x [16, 3 heads, 8]
        (
            "[2,4,16,1]",
            "[16,3,8,1]",
            "[2,4,3,8]",
            "window={size=1x3 pad=0_0x2_2 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f",
            2 * 2 * 4 * 16 * 3 * 8,
        ),
        # a sum over heads: [4, 3 heads, 16] x [3 heads, 16, 8]
        ("[4,3,16]", "[3,16,8]", "[4,8,1]", "window={size=3}, dim_labels=b0f_0io->bf0", 2 * 4 * 3 * 16 * 8),
        # an image's row: of 3 taps on 5 elements two fall off the ends
        ("[2,5,16]", "[3,16,8]", "[2,5,8]", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 2 * 13 * 16 * 8),
        # every second of them, and with taps two apart
        ("[2,5,16]", "[3,16,8]", "[2,3,8]", "window={size=3 stride=2 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 2 * 7 * 128),
        ("[2,5,16]", "[2,16,8]", "[2,3,8]", "window={size=2 rhs_dilate=2}, dim_labels=b0f_0io->b0f", 2 * 2 * 6 * 128),
    ],
)
def test_convolutions(left, right, out, attributes, expected):
    """A product's FLOPs are those of the pairs that meet, however its batch and its heads are written as windows."""
    p = program(
        f"%a = bf16{left} parameter(1)",
        f"%b = bf16{right} parameter(2)",
        f"ROOT %c = bf16{out} convolution(%a, %b), {attributes}",
    )
    main = p.computations["main"]
    assert flops(p, main, main.root) == expected


@pytest.mark.parametrize(
    ("target", "left", "right", "out"),
    [
        ("convForward", "[2,5,16]", "[8,3,16]", "[2,3,8]"),
        ("convBiasActivationForward", "[2,5,16]", "[8,3,16]", "[2,3,8]"),
        ("convBackwardInput", "[2,3,8]", "[8,3,16]", "[2,5,16]"),
        ("convBackwardFilter", "[2,5,16]", "[2,3,8]", "[8,3,16]"),
    ],
)
def test_convolutions_of_cudnn(target, left, right, out):
    """A convolution and both of its gradients have equal FLOPs: every second of five elements meets three taps, seven of nine."""
    p = program(
        f"%a = bf16{left} parameter(1)",
        f"%b = bf16{right} parameter(2)",
        f"%c = (bf16{out}, u8[0]) custom-call(%a, %b), window={{size=3 stride=2 pad=1_1}}, dim_labels=b0f_o0i->b0f, "
        f'custom_call_target="__cudnn${target}", backend_config={{}}',
        "ROOT %z = f32[500] copy(%x)",
    )
    assert total(p) == 2 * 2 * 7 * 16 * 8


def test_dots_and_fusions():
    """A fusion has the FLOPs of all products inside, nested ones too; what has no product has none."""
    inner = """
%inner (a: f32[5,6,4], b: f32[5,4,3]) -> f32[5,6,3] {
  %a = f32[5,6,4]{2,1,0} parameter(0)
  %b = f32[5,4,3]{2,1,0} parameter(1)
  ROOT %d = f32[5,6,3] dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

%outer (a2: f32[5,6,4], b2: f32[5,4,3]) -> f32[5,6,3] {
  %a2 = f32[5,6,4]{2,1,0} parameter(0)
  %b2 = f32[5,4,3]{2,1,0} parameter(1)
  %f = f32[5,6,3] fusion(%a2, %b2), kind=kOutput, calls=%inner
  %g = f32[5,6,3] fusion(%a2, %b2), kind=kOutput, calls=%inner
  ROOT %h = f32[5,6,3] add(%f, %g)
}
"""
    p = program(
        "%l = f32[5,6,4] parameter(1)",
        "%r = f32[5,4,3] parameter(2)",
        "ROOT %o = f32[5,6,3] fusion(%l, %r), kind=kOutput, calls=%outer",
        before=inner,
    )
    main, once = p.computations["main"], 2 * 5 * 6 * 4 * 3
    assert flops(p, p.computations["inner"], p.computations["inner"].root) == once
    assert flops(p, main, main.root) == 2 * once and flops(p, main, main["x"]) == 0


@pytest.mark.parametrize(
    ("name", "mask", "products"),
    [
        ("splash_mha_fwd_residuals.3", "%positions", 2 / 2),
        ("splash_mha_fwd_segmented_no_residuals", "%block", 2),
        ("splash_mqa_dq_no_residuals", "%positions", 3 / 2),
        ("splash_mha_dkv_segmented_no_residuals.1", "%block", 4),
    ],
)
def test_attention_kernels(name, mask, products):
    """Attention has two products forward, three for the queries' gradients, four for those of keys and values; causal halves."""
    p = program(
        "%block = s8[1,1,2] parameter(1)",
        "%positions = s32[128,128] parameter(2)",
        "%segments = s32[2,128,128] parameter(3)",
        "%q = bf16[2,4,128,64] parameter(4)",
        "%k = bf16[2,1,256,64] parameter(5)",
        f'ROOT %{name} = f32[1] custom-call(%block, {mask}, %q, %k, %k, %segments), custom_call_target="tpu_custom_call"',
    )
    main = p.computations["main"]
    assert attention_flops(main, main.root) == 2 * products * (2 * 4) * 128 * 256 * 64


@pytest.mark.parametrize(("positions", "share"), [("", 1), (", %at", 0.5)], ids=["whole", "causal"])
def test_attention_of_one_row(positions, share):
    """A row without a batch has its segments as two arrays like that of positions: a third one makes it causal."""
    p = program(
        "%q = bf16[4,128,64] parameter(1)",
        "%a = s32[128,128] parameter(2)",
        "%b = s32[8,128] parameter(3)",
        "%at = s32[128,128] parameter(4)",
        f"ROOT %splash_mha_fwd_segmented_residuals = f32[1] custom-call(%q, %q, %q, %a, %b{positions})",
    )
    main = p.computations["main"]
    assert attention_flops(main, main.root) == 2 * 2 * 4 * 128 * 128 * 64 * share


def test_other_kernels_are_not_known():
    """A kernel of another name, or without queries and keys, has no FLOPs here."""
    p = program(
        "%q = bf16[128,64] parameter(1)",
        "%splash_mha_fwd_residuals = f32[1] custom-call(%q, %q)",
        "ROOT %other = f32[1] custom-call(%q, %q)",
    )
    main = p.computations["main"]
    assert attention_flops(main, main["splash_mha_fwd_residuals"]) is None
    assert attention_flops(main, main.root) is None
