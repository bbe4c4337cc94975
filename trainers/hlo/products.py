"""FLOPs of matrix products in compiled programs: in single instructions, in fusions, and in attention kernels."""

import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from trainers.hlo.parsing import Computation, HloError, Instruction, Program
from trainers.hlo.trip_counts import Node, times, tree

# Number of products of queries with keys, or of the same size, in one pass of the kernel. The forward pass has logits and output;
# the backward passes recompute logits and gradients of probabilities, then have gradients of queries, or of keys and values.
_ATTENTION = {"fwd": 2, "dq": 3, "dkv": 4}
_KERNEL = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)_")
_GEMM = re.compile(r'"dot_dimension_numbers":\{"lhs_contracting_dimensions":\[([^\]]*)\]')
# Convolutions of cuDNN: which of its operands (0, 1) and its result (2) are the input, the filter and the output of the forward
# convolution, whose window all of them note.
_CUDNN = {
    "__cudnn$convForward": (0, 1, 2),
    "__cudnn$convForwardGraph": (0, 1, 2),
    "__cudnn$convBiasActivationForward": (0, 1, 2),
    "__cudnn$convBackwardInput": (2, 1, 0),
    "__cudnn$convBackwardFilter": (0, 2, 1),
}
# Custom calls without a product: memory and markers on TPUs, sorting, top-k and random bits elsewhere.
_NO_PRODUCTS = {
    "AllocateBuffer",
    "ConcatBitcast",
    "AssumeGatherIndicesInBound",
    "AsyncCollectiveStart",
    "AsyncCollectiveDone",
    "ZeroCrop",
    "TopK",
    "__cub$DeviceRadixSort",
    "cu_threefry2x32",
}


def total(program: Program) -> float:
    """Returns the FLOPs of all matrix products that a device runs in a step, in loops as often as they run, including recomputed
    ones.

    The compiler's own `cost_analysis` counts the body of a loop once, so a stack of layers as one layer.

    Raises:
      HloError: how often a loop with products runs, or which of a conditional's branches does, is not in the program, or a
        custom call may be a product of unknown size.
    """
    return of_nodes(program, tree(program))


def of_nodes(program: Program, nodes: Sequence[Node]) -> float:
    """Returns the FLOPs of the products of some instructions and of what they call, as `total` counts them."""
    total_flops = 0.0
    for node in nodes:
        i, around = node.site.instruction, program.computations[node.site.computation]
        if i.opcode == "conditional":
            branches = itertools.groupby(node.inside, key=lambda inner: inner.site.computation)
            counts = {of_nodes(program, list(branch)) for _, branch in branches}
            if len(counts) > 1:
                raise HloError(f"%{i.name}: which branch of a conditional with products runs is not in the program")
            total_flops += sum(counts)
        elif node.inside:
            total_flops += of_nodes(program, node.inside)
        elif per_run := flops_per_run(program, around, i):
            total_flops += per_run * times(node.site.loops)
    return total_flops


def flops_per_run(program: Program, around: Computation, i: Instruction) -> float:
    """Returns the FLOPs of one run of an instruction that calls no other."""
    if i.opcode == "ragged-dot":
        raise HloError(f"%{i.name}: the FLOPs of a ragged-dot are not in the program")
    if i.opcode != "custom-call":
        return flops(program, around, i)
    if contracted := _GEMM.search(i.suffix):  # cuBLAS
        left = around[i.operands[0]].shapes[0].dims
        return 2.0 * i.shapes[0].size * math.prod(left[int(dim)] for dim in re.findall(r"\d+", contracted[1]))
    target = i.attributes.get("custom_call_target", "").strip('"')
    if target in _CUDNN:
        dims = [*(around[name].shapes[0].dims for name in i.operands[:2]), i.shapes[0].dims]
        return _convolution(i, [dims[at] for at in _CUDNN[target]])
    known = attention_flops(around, i)
    if known is None and target not in _NO_PRODUCTS:
        raise HloError(f"%{i.name}: the FLOPs of custom call {target!r} are not in the program")
    return known or 0.0


def flops(program: Program, computation: Computation, i: Instruction) -> float:
    """Returns the FLOPs of the matrix products of an instruction, including those inside a fusion; 0.0 without products."""
    match i.opcode:
        case "convolution":
            return _convolution(i, [*(computation[name].shapes[0].dims for name in i.operands[:2]), i.shapes[0].dims])
        case "dot":
            left = computation[i.operands[0]].shapes[0].dims
            contracted = re.findall(r"\d+", i.attributes.get("lhs_contracting_dims", ""))
            return 2.0 * i.shapes[0].size * math.prod(left[int(dim)] for dim in contracted)
        case "fusion":
            called = (program.computations[name] for names in i.called.values() for name in names)
            return sum((flops(program, inner, j) for inner in called for j in inner.instructions), 0.0)
    return 0.0


def attention_flops(computation: Computation, i: Instruction) -> float | None:
    """Returns the FLOPs of JAX's splash attention over a batch of rows, or over one row; None for every other kernel.

    A mask that the kernel computes from positions, which it takes as an array of integers without a batch, is causal and halves
    the work, as in the usual count of a model's FLOPs; blocks along the diagonal are not counted as whole. The segments of a
    single row, of queries and of keys, are such arrays too.
    """
    match = _KERNEL.match(i.name)
    operands = [shape for operand in i.operands for shape in computation[operand].shapes]
    vectors = [s for s in operands if len(s.dims) in (3, 4) and s.dtype in ("bf16", "f32")]
    if not match or len(vectors) < 2:
        return None
    queries, keys = vectors[:2]  # [B, N, L, D], [B, G, S, D], or without B
    segments = 2 if len(queries.dims) == 3 and "_segmented" in i.name else 0
    causal = sum(len(s.dims) == 2 and s.dtype == "s32" for s in operands) > segments
    return 2.0 * _ATTENTION[match[1]] * queries.size * keys.dims[-2] * (0.5 if causal else 1.0)


def _convolution(i: Instruction, dims: Sequence[Sequence[int]]) -> float:
    """Returns the FLOPs of a convolution, the only product of TPUs; a dot's batch and further dimensions are spatial ones here.

    `dims` are those of its input, its filter and its output.

    A batch of 8 is `size=8 stride=7 lhs_dilate=8`, where each output meets one of 8 taps and the others fall between elements;
    an operand's second dimension of 8 is `size=8 pad=7_7`, where they fall outside. So only taps that meet an element count.
    """
    lhs, rhs, out = dims
    lhs_labels, rhs_labels, out_labels = re.split("_|->", i.attributes["dim_labels"])
    window = dict(field.split("=") for field in i.attributes.get("window", "{}")[1:-1].split())
    spatial = sum(label.isdigit() for label in out_labels)

    def numbers(key: str) -> list[int]:
        return [int(n) for n in window[key].split("x")] if key in window else [1] * spatial

    low = [int(pair.split("_")[0]) for pair in window["pad"].split("x")] if "pad" in window else [0] * spatial
    keys = ("size", "stride", "lhs_dilate", "rhs_dilate")
    total = 2.0 * rhs[rhs_labels.index("i")]
    total *= math.prod(n for n, label in zip(out, out_labels, strict=True) if not label.isdigit())
    for dim, parameters in enumerate(zip(*map(numbers, keys), low, strict=True)):
        total *= _meetings(lhs[lhs_labels.index(str(dim))], out[out_labels.index(str(dim))], *parameters)
    return total


@functools.cache
def _meetings(n: int, out: int, size: int, stride: int, lhs_dilate: int, rhs_dilate: int, low: int) -> int:
    """Returns how many pairs of an output and a tap meet one of a dimension's n elements."""
    outputs, met = np.arange(out) * stride - low, 0
    for tap in range(size):
        at = outputs + tap * rhs_dilate
        met += int(((at >= 0) & (at <= (n - 1) * lhs_dilate) & (at % lhs_dilate == 0)).sum())
    return met
