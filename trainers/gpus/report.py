"""The report of a step compiled for GPUs: memory, kernels, FLOPs and collectives, as one dictionary of plain values."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from configs.experiment import Experiment
from trainers.gpus.chips import Gpu
from trainers.gpus.compiler import OPTIONS, Compiled, compile_for
from trainers.hlo import collectives, model_flops, parsing, products
from trainers.hlo.formatting import short
from trainers.hlo.parsing import HloError, Instruction, Program
from trainers.hlo.trip_counts import Node, times, tree
from trainers.runtime.chips import GIB
from trainers.runtime.processes import versions
from trainers.text_table import text_table

_CALLERS = ("while", "conditional", "call", "async-start")
_BACKEND = re.compile(r'"kind":"(__[^"]+)"')
# Kernels by the beginning of a custom call's target or of a fusion's kind; the first that fits.
_KINDS = {
    "__cublas": "cuBLAS product",
    "__cudnn$fmha": "cuDNN attention",
    "__cudnn$conv": "cuDNN convolution",
    "__cudnn": "cuDNN fusion",
    "__triton_nested_gemm": "Triton product",
    "__triton_gemm": "Triton product",
    "__triton": "Triton fusion",
    "__custom_fusion": "slice of a tensor",  # its only custom fusion here: dynamic_slice_fusion
}


def compiled_report(e: Experiment, gpu: Gpu, options: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Returns (the report, the compiled program's text) of an experiment's step on as many GPUs as its layout has."""
    compiled = compile_for(e, gpu, options)
    return report(e, gpu, compiled) | {"options": OPTIONS | options}, compiled.text


def report(e: Experiment, gpu: Gpu, compiled: Compiled) -> dict[str, Any]:
    """Returns the report of a compiled step.

    Keys: experiment, gpu, devices, layout, mesh, dtype, remat, batch_size, memory (GiB of a device by category), peak_gib,
    limit_gib, fits, model_flops and slot_flops (of a step, on all devices), program_flops (the same of the program's products;
    None where they cannot be counted), kernels (see `kernels`), collectives (see `trainers.hlo.collectives.summary`), compile_s,
    notes, versions.
    """
    program, chips = parsing.parse(compiled.text), e.layout.devices
    needed, done, notes = model_flops.model_flops(e), None, []
    try:
        done = chips * products.total(program)
    except HloError as error:
        notes.append(f"the program's FLOPs cannot be counted: {error}")
    fits = compiled.peak <= gpu.memory
    if not fits:
        notes.append(
            "the step does not fit: keep less of each layer (--execution.remat), or take a smaller batch or another layout"
        )
    return {
        "experiment": e.name,
        "gpu": gpu.kind,
        "devices": chips,
        "layout": e.layout.name,
        "mesh": dict(e.layout.mesh),
        "dtype": e.execution.dtype,
        "remat": e.execution.remat,
        "batch_size": e.data.batch_size,
        "memory": {name: size / GIB for name, size in compiled.memory.items()},
        "peak_gib": compiled.peak / GIB,
        "limit_gib": gpu.memory / GIB,
        "fits": fits,
        "model_flops": needed,
        "slot_flops": model_flops.slot_flops(e) if compiled.plan.has_experts else needed,
        "program_flops": done,
        "kernels": kernels(program),
        "collectives": collectives.summary(collectives.collectives(program, dict(e.layout.mesh), strict=False)),
        "compile_s": compiled.seconds,
        "notes": notes,
        "versions": versions(),
    }


def kernels(program: Program) -> list[dict[str, Any]]:
    """Returns the kernels of a program, those with the most FLOPs first.

    Keys: kind (the library, or XLA's own kind of fusion; of other custom calls their target), count (instructions), times (runs a
    step, None if unknown), flops (of products, on one device a step; None if unknown).
    """
    rows: dict[str, list[tuple[int | None, float | None]]] = {}
    for node in _issued(tree(program)):
        if kind := _kind(node):
            runs = times(node.site.loops) if all(loop.trips is not None for loop in node.site.loops) else None
            rows.setdefault(kind, []).append((runs, _flops(program, node)))
    table = [
        {"kind": kind, "count": len(row), "times": _sum(runs for runs, _ in row), "flops": _sum(flops for _, flops in row)}
        for kind, row in rows.items()
    ]
    return sorted(table, key=lambda row: (-(row["flops"] or 0), row["kind"]))


def _kind(node: Node) -> str:
    """Returns the kind of an instruction's kernel, of a fusion around a library's call that of the call."""
    calls = [inner for inner in node.inside if inner.site.instruction.opcode == "custom-call"]
    return kernel_kind((calls[0] if calls else node).site.instruction)


def _flops(program: Program, node: Node) -> float | None:
    """Returns the FLOPs of an instruction's products in a step; None if they are not in the program."""
    try:
        return products.of_nodes(program, [node])
    except HloError:
        return None


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns a sum of which every part is known, else None."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _issued(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields what runs by itself: what loops and conditionals have inside, but not what fusions have."""
    for node in nodes:
        yield from _issued(node.inside) if node.site.instruction.opcode in _CALLERS else (node,)


def kernel_kind(i: Instruction) -> str:
    """Returns the kind of an instruction's kernel; "" for what is no product, fusion or custom call."""
    if i.opcode in ("dot", "convolution"):
        return f"{i.opcode} of XLA"
    if i.opcode not in ("fusion", "custom-call"):
        return ""
    backend = _BACKEND.search(i.suffix)
    name = backend[1] if backend and i.opcode == "fusion" else i.attributes.get("custom_call_target", "").strip('"')
    return next((kind for start, kind in _KINDS.items() if name.startswith(start)), name or "fusion of XLA")


def as_text(report: dict[str, Any]) -> str:
    """Returns a report as text."""
    r, parts = report, ", ".join(f"{name} {size:.2f}" for name, size in report["memory"].items())
    mesh = " x ".join(f"{axis} {size}" for axis, size in r["mesh"].items())
    ratio = f", {r['program_flops'] / r['slot_flops']:.3f} times as many" if r["program_flops"] else ""
    slots = f" ({short(r['slot_flops'])} with all slots of experts)" if r["slot_flops"] != r["model_flops"] else ""
    lines = [
        f"{r['experiment']}, {r['batch_size']} rows a step in {r['dtype']}, remat {r['remat']}, on {r['devices']} x {r['gpu']}, "
        f"layout {r['layout']} ({mesh})",
        f"memory: {r['peak_gib']:.2f} of {r['limit_gib']:.2f} GiB a device{'' if r['fits'] else ', DOES NOT FIT'}: {parts}",
        f"FLOPs a step: model {short(r['model_flops'])}{slots}, program {short(r['program_flops'])}{ratio}",
        f"compiled in {r['compile_s']:.0f} s by " + ", ".join(f"{k} {v}" for k, v in r["versions"].items() if "jax" in k),
        "",
    ]
    cells = [
        [k["kind"], f"{k['count']:,}", "?" if k["times"] is None else f"{k['times']:,}", short(k["flops"]) if k["flops"] else "-"]
        for k in r["kernels"]
    ]
    lines += text_table(["kernel", "count", "times", "FLOPs/device/step"], cells, {1, 2, 3})
    if r["collectives"]:
        lines += ["", *collectives.table(r["collectives"])]
    return "\n".join([*lines, *(f"note: {note}" for note in r["notes"])])
