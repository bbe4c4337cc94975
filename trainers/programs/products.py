"""FLOPs of matrix products in compiled programs: of products, of the fusions that hold them, and of attention kernels."""

import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from trainers.programs.hlo import Computation, HloError, Instruction, Program
from trainers.programs.trip_counts import Node, times, tree

# Products of queries with keys, or of the same size, in one pass of the kernel: the forward pass has logits and output; the
# backward passes compute the logits again and the gradients of probabilities, then those of queries, or those of keys and values.
_ATTENTION = {"fwd": 2, "dq": 3, "dkv": 4}
_KERNEL = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)_")
_GEMM = re.compile(r'"dot_dimension_numbers":\{"lhs_contracting_dimensions":\[([^\]]*)\]')
# Custom calls without a product: memory and names on TPUs, sorting, choosing and random bits elsewhere.
_NO_PRODUCTS = {
    "AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "AsyncCollectiveStart", "AsyncCollectiveDone", "ZeroCrop",
    "TopK", "__cub$DeviceRadixSort", "cu_threefry2x32",
}  # fmt: skip


def total(program: Program) -> float:
    """FLOPs of all matrix products that a device runs in a step: those in loops as often as they run, what is computed again
    included.

    The compiler's own `cost_analysis` counts the body of a loop once, a stack of layers as one layer.

    Raises:
      HloError: how often a loop with products runs, or which of a conditional's branches does, is not in the program, or a
        custom call may be a product of unknown size.
    """
    return _total(program, tree(program))


def _total(program: Program, nodes: Sequence[Node]) -> float:
    found = 0.0
    for node in nodes:
        i, around = node.site.instruction, program.computations[node.site.computation]
        if i.opcode == "conditional":
            branches = itertools.groupby(node.inside, key=lambda inner: inner.site.computation)
            counts = {_total(program, list(branch)) for _, branch in branches}
            if len(counts) > 1:
                raise HloError(f"%{i.name}: which branch of a conditional with products runs is not in the program")
            found += sum(counts)
        elif node.inside:
            found += _total(program, node.inside)
        elif once := _once(program, around, i):
            found += once * times(node.site.loops)
    return found


def _once(program: Program, around: Computation, i: Instruction) -> float:
    """FLOPs of one run of what calls nothing else."""
    if i.opcode == "ragged-dot":
        raise HloError(f"%{i.name}: the FLOPs of a ragged-dot are not in the program")
    if i.opcode != "custom-call":
        return flops(program, around, i)
    if summed := _GEMM.search(i.rest):  # cuBLAS
        left = around[i.operands[0]].shapes[0].dims
        return 2.0 * i.shapes[0].size * math.prod(left[int(dim)] for dim in re.findall(r"\d+", summed[1]))
    known = attention_flops(around, i)
    target = i.attributes.get("custom_call_target", "").strip('"')
    if known is None and target not in _NO_PRODUCTS:
        raise HloError(f"%{i.name}: the FLOPs of custom call {target!r} are not in the program")
    return known or 0.0


def flops(program: Program, computation: Computation, i: Instruction) -> float:
    """FLOPs of the matrix products of an instruction, those inside fusions included; 0.0 if there are none."""
    match i.opcode:
        case "convolution":
            return _convolution(computation, i)
        case "dot":
            left = computation[i.operands[0]].shapes[0].dims
            summed = re.findall(r"\d+", i.attributes.get("lhs_contracting_dims", ""))
            return 2.0 * i.shapes[0].size * math.prod(left[int(dim)] for dim in summed)
        case "fusion":
            called = (program.computations[name] for names in i.called.values() for name in names)
            return sum((flops(program, inner, j) for inner in called for j in inner.instructions), 0.0)
    return 0.0


def attention_flops(computation: Computation, i: Instruction) -> float | None:
    """FLOPs of JAX's splash attention over a batch of rows, or over one; None for every other kernel.

    A mask that the kernel computes from positions, which it takes as an array of integers without a batch, is causal and halves
    the work, as in the usual count of a model's FLOPs; blocks along the diagonal are not counted as whole. The segments of a
    single row, of queries and of keys, are such arrays too.
    """
    found = _KERNEL.match(i.name)
    taken = [shape for operand in i.operands for shape in computation[operand].shapes]
    vectors = [s for s in taken if len(s.dims) in (3, 4) and s.dtype in ("bf16", "f32")]
    if not found or len(vectors) < 2:
        return None
    queries, keys = vectors[:2]  # [B, N, L, D], [B, G, S, D], or without B
    segments = 2 if len(queries.dims) == 3 and "_segmented" in i.name else 0
    causal = sum(len(s.dims) == 2 and s.dtype == "s32" for s in taken) > segments
    return 2.0 * _ATTENTION[found[1]] * queries.size * keys.dims[-2] * (0.5 if causal else 1.0)


def _convolution(computation: Computation, i: Instruction) -> float:
    """TPUs know no other product: what a dot has as batch, or as several dimensions of an operand, are spatial ones here.

    A batch of 8 is `size=8 stride=7 lhs_dilate=8`, where each output meets one of 8 taps, the others fall between the elements;
    an operand's second dimension of 8 is `size=8 pad=7_7`, where they fall outside. So taps are counted that meet an element.
    """
    lhs, rhs = (computation[name].shapes[0].dims for name in i.operands[:2])
    out = i.shapes[0].dims
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
    """How many pairs of an output and a tap meet one of a dimension's n elements."""
    outputs, met = np.arange(out) * stride - low, 0
    for tap in range(size):
        at = outputs + tap * rhs_dilate
        met += int(((at >= 0) & (at <= (n - 1) * lhs_dilate) & (at % lhs_dilate == 0)).sum())
    return met
