"""The report of a plan: one dictionary of plain values, from which the text, the JSON and the page are made."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from configs.pods import PODS
from models.sharding import torus
from models.sharding.layout import SLICE
from models.sharding.pipelines.gpipe import schedules
from trainers.hlo import model_flops, parsing, tables
from trainers.hlo.collectives import KINDS
from trainers.hlo.formatting import seconds
from trainers.plan import Plan
from trainers.pods import calibration, libtpu, topology
from trainers.pods.price import Price, price
from trainers.pods.simulation import Row, Span
from trainers.runtime.chips import GIB, Chip, Slice
from trainers.text_table import markdown, text_table

ROOT = f"{Path(__file__).parents[2]}/"
# Of the program's FLOPs over the model's; outside of it, something was misread. Where nothing is recomputed, the backward pass
# may leave out a fraction of a percent: a product that no gradient reads.
FLOPS_RATIO = (0.99, 1.4)


def plan(e: Experiment, pod: Slice, options: str, *, kernel_efficiency: float = 0.5) -> tuple[dict[str, Any], str]:
    """Returns (the report, the compiled program's text) of an experiment on a slice.

    Raises:
      PodError: the step does not fit, or the slice or the set of options is unknown.
    """
    compiled = topology.compile_for(e, pod, pod.chip.option_set(options))
    program = parsing.parse(compiled.text)
    mesh = compiled.plan.mesh
    places = [tuple(device.coords[: len(pod.dims)]) for device in mesh.devices.flat]  # pyright: ignore[reportOptionalMemberAccess]
    priced = price(program, pod, places, dict(e.layout.mesh), kernel_efficiency=kernel_efficiency)
    return report(e, pod, options, compiled, priced) | {"kernel_efficiency": kernel_efficiency}, compiled.text


def report(e: Experiment, pod: Slice, options: str, compiled: topology.Compiled, priced: Price) -> dict[str, Any]:
    """Returns the report of a compiled and priced step."""
    chip, step, per_chip = pod.chip, priced.step_s, pod.chip.devices / GIB
    needed, is_mixture = model_flops.model_flops(e), compiled.plan.has_experts
    in_slots = model_flops.slot_flops(e) if is_mixture else needed  # each is a trace of the whole step
    bubble = bubble_share(compiled.plan)
    ratio = priced.hlo_flops * pod.devices / in_slots * (1 - bubble)
    low, high = FLOPS_RATIO
    problems = list(priced.problems)
    if not low <= ratio <= high:
        problems.append(f"the program's FLOPs are {ratio:.2f} times the model's in all slots, outside {low} to {high}")
    if compiled.host > chip.host_memory:
        used, limit = compiled.host * per_chip, chip.host_memory * per_chip
        problems.append(f"{used:.1f} GiB a chip in the host's memory, which has {limit:.1f}")
    mfu = needed / (step * pod.devices * chip.peak)
    work_per_s = {unit: n / step for unit, n in compiled.plan.work_per_step().items()}
    bubble_s = bubble * sum(row.exposed for row in priced.rows if row.in_loop)
    busy = {kind: priced.exposed[kind] for kind in ("matrix", "vector", "kernel")}
    useful = 1 - bubble_s / max(sum(busy.values()), bubble_s, 1e-12)
    parts = {name: seconds * useful for name, seconds in busy.items()}
    parts |= {"bubble": bubble_s, "communication": priced.exposed_s}
    parts |= {"memory": priced.exposed["dma"], "host": priced.exposed["host"], "unpriced": priced.exposed["unpriced"]}
    assignment = torus.assignment(e.layout.mesh_of_slice, pod.places, e.layout.torus)
    planned: dict[str, Any] = {
        "experiment": e.name,
        "batch_size": e.data.batch_size,
        "topology": str(pod),
        "chips": pod.chips,
        "devices": pod.devices,
        "mesh": dict(e.layout.mesh),
        "layout": e.layout.name,
        "assignment": {axis: torus.as_text(parts, pod.places) for axis, parts in assignment.items()},
        "torus": {"dims": list(pod.dims), "wrap": list(pod.wrap)},
        "options": options,
        "published": PODS[e.name].published if e.name in PODS else "",
        "remat": e.execution.remat,
        "offload": e.execution.offload,
        "quantization": e.execution.quantization,
        "note": _note(e.execution.quantization, chip),
        "fits": True,
        "hbm_gib_per_chip": compiled.peak * per_chip,
        "hbm_limit_gib": chip.memory * per_chip,
        "host_gib_per_chip": compiled.host * per_chip,
        "host_limit_gib": chip.host_memory * per_chip,
        "padded": tables.padded_dimensions(compiled.plan),
        "memory": {name: size * per_chip for name, size in compiled.memory.items()},
        "model_flops": needed,
        "slot_flops": in_slots,
        "hlo_over_slot_flops": ratio,
        "modelled_step_s": step,
        "modelled_mfu": mfu,
        "modelled_mfu_all_slots": mfu * in_slots / needed if is_mixture else None,
        "modelled_hfu": priced.hlo_flops / (step * chip.peak) * (1 - bubble),
        "units_per_s": work_per_s,
        "days": e.train.steps * step / 86_400,
        "parts": parts,
        "communication_s": priced.communication_s,
        "exposed_communication_share": priced.exposed_s / step,
        "exposed_all_to_all_share": priced.exposed["all-to-all"] / step,
        "bubble_share": bubble_s / step,
        "collectives": _collectives(priced.rows),
        "rows": [_row(row) for row in priced.rows[:10]],
        "components": _components(priced.rows),
        "spans": [dataclasses.asdict(span) for span in priced.spans],
        "windows": _windows(priced.spans),
        "checks_passed": not problems,
        "problems": problems,
        "compile_s": compiled.seconds,
        "versions": libtpu.versions(),
    }
    return planned | calibration.calibrated(planned)


def _note(quantization: str, chip: Chip) -> str:
    """Returns a line if a chip multiplies in these 8 bits no faster than in bfloat16, else ""."""
    if quantization == "none" or quantization in chip.quantized:
        return ""
    faster = f"faster is {', '.join(map(repr, chip.quantized))}" if chip.quantized else "no 8 bits are faster"
    return f"quantization={quantization!r}: {chip.name} has no hardware for it that is faster than for bfloat16; {faster}"


def _row(row: Row) -> dict[str, Any]:
    """Returns a costly row as plain values; its component is the project's file that it was traced in."""
    return {
        "kind": "communication" if row.kind in KINDS else row.kind,
        "label": row.kind if row.kind in KINDS else row.label,
        "component": _file(row),
        "phase": row.component,
        "source": row.source.removeprefix(ROOT),
        "shape": row.shape,
        "times": row.times,
        "seconds": row.seconds,
        "exposed_s": row.exposed,
    }


def _file(row: Row) -> str:
    """Returns the file that a row was traced in, with its folder: "attention/ring"; "" where none is noted."""
    return "/".join(Path(row.source.partition(":")[0]).with_suffix("").parts[-2:]) if row.source else ""


def _collectives(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns collectives by kind, axes and place, the costliest first; bytes are those of one device in a step."""
    by_key: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        if row.kind not in KINDS:
            continue
        key = row.kind, row.axes, row.in_loop
        first = {"kind": row.kind, "axes": list(row.axes) if row.axes is not None else None, "in_loop": row.in_loop}
        line = by_key.setdefault(key, first | {"times": 0, "bytes": 0, "seconds": 0.0, "exposed_s": 0.0})
        line["times"] += row.times
        line["bytes"] += row.bytes * row.times
        line["seconds"] += row.seconds
        line["exposed_s"] += row.exposed
    return sorted(by_key.values(), key=lambda line: -line["seconds"])


def _components(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns seconds by file and phase, the costliest first: of computation, and of exposed communication."""
    by_key: dict[tuple[str, str], dict[str, Any]] = {}
    phases = {"rematerialised": "recomputed"}
    for row in rows:
        key = _file(row) or "(compiler)", phases.get(row.component, row.component)
        line = by_key.setdefault(key, {"component": key[0], "phase": key[1], "compute_s": 0.0, "communication_s": 0.0})
        line["communication_s" if row.kind in KINDS else "compute_s"] += row.exposed
    return sorted(by_key.values(), key=lambda line: -line["compute_s"] - line["communication_s"])


def _windows(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Returns windows of interest: the second iteration of the two longest loops, which are a layer forward and one backward."""
    iterations: dict[str, tuple[float, float]] = {}
    for span in spans:
        if span.loops and span.loops[0][1] == min(1, span.loops[0][2] - 1):
            start, end = iterations.get(span.loops[0][0], (span.start, span.end))
            iterations[span.loops[0][0]] = min(start, span.start), max(end, span.end)
    longest = sorted(sorted(iterations.values(), key=lambda window: window[0] - window[1])[:2])
    names = ["one layer forward", "one layer backward"] if len(longest) == 2 else ["one iteration"]
    return [{"label": name, "start": a, "end": b} for name, (a, b) in zip(names, longest, strict=False)]


def bubble_share(plan: Plan) -> float:
    """Returns the largest share of a pipeline's ticks in which a stage is idle; 0 without a pipeline."""
    pipelines = schedules(plan.model.scope, plan.parameters).values()
    return max(((s.stages - 1) / s.ticks for s in pipelines), default=0.0)


def as_text(report: dict[str, Any]) -> str:
    """Returns a report as text."""
    placement = ", ".join(
        f"{axis} {size} {'over the network' if axis == SLICE else 'along ' + (report['assignment'][axis] or 'no axis')}"
        for axis, size in report["mesh"].items()
    )
    step = report["modelled_step_s"]
    chips = f"{report['chips']} chips" + (f", {report['devices']} devices" if report["devices"] > report["chips"] else "")
    rates = ", ".join(f"{rate:,.0f} {unit}/s" for unit, rate in report["units_per_s"].items())
    lines = [
        f"{report['experiment']} on {report['topology']}: {chips}, layout {report['layout']!r}: {placement}",
        f"  fits: {report['hbm_gib_per_chip']:.1f} of {report['hbm_limit_gib']:.1f} GiB a chip",
        *_on_host(report),
        *(f"  {line}" for line in tables.padding_text(report["padded"])),
        f"  step {seconds(step)}, MFU {report['modelled_mfu']:.3f}, HFU {report['modelled_hfu']:.3f} (modelled)",
        *_trust(report),
        f"  {rates}, {report['days']:.1f} days for the experiment's steps (modelled)",
    ]
    if report["note"]:
        lines.append(f"  note: {report['note']}")
    if report["published"]:
        lines.append(f"  published: {report['published']}")
    lines += ["", "  a modelled step"]
    lines += [f"  {name:16} {seconds(s, step):>9} {100 * s / step:6.1f} %" for name, s in report["parts"].items() if s > 0]
    head = ["communication", "axes", "times", "GiB", "time", "exposed"]
    rows = (
        [c["kind"], "*".join(c["axes"] or ()) or "-", f"{c['times']:,}", f"{c['bytes'] / GIB:.2f}"]
        + [seconds(c[name], step) for name in ("seconds", "exposed_s")]
        for c in report["collectives"]
    )
    lines += ["", *(f"  {line}" for line in text_table(head, rows, range(2, 6)))]
    lines += ["", "  costliest"]
    lines += [
        f"  {seconds(row['seconds'], step):>9}  {row['kind']:10} {row['label']:28} {row['component']} {row['source']}"
        for row in report["rows"]
    ]
    lines += ["", *(f"  CHECK FAILED: {problem}" for problem in report["problems"])]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return "\n".join([*lines, f"  compiled in {report['compile_s']:.0f} s by {versions}, options {report['options']!r}"])


def _on_host(report: dict[str, Any]) -> list[str]:
    """Returns the line of what lies in the hosts' memory, if anything does."""
    if not report["host_gib_per_chip"]:
        return []
    used, limit = report["host_gib_per_chip"], report["host_limit_gib"]
    return [f"  in the host's memory: {used:.1f} of {limit:.1f} GiB a chip, offload={report['offload']}"]


def _trust(report: dict[str, Any]) -> list[str]:
    """Returns how far MFU is to be trusted, in lines."""
    slots = report["modelled_mfu_all_slots"]
    lines = [] if slots is None else [f"  MFU would be {slots:.3f} if experts' empty slots were work"]
    return [
        *lines,
        f"  expected MFU {report['expected_mfu']:.3f} +-{report['error_pct']:.0f} %: {report['calibrated_on']} published runs "
        f"reached {report['expected_mfu'] / report['modelled_mfu']:.2f} of what was modelled; the error is that of runs held out",
    ]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns reports as lines of a Markdown table."""
    head = ["experiment", "slice", "mesh", "remat", "HBM GiB", "step s", "MFU", "all slots", "HFU"]
    head += ["exposed comm.", "all-to-all", "bubble", "published"]
    return markdown(head, map(_cells, rows))


def _cells(row: dict[str, Any]) -> list[str]:
    slots = "" if row["modelled_mfu_all_slots"] is None else f"{row['modelled_mfu_all_slots']:.3f}"
    mesh = "x".join(map(str, row["mesh"].values()))
    shares = (f"{100 * row[f'{name}_share']:.1f} %" for name in ("exposed_communication", "exposed_all_to_all", "bubble"))
    figures = [f"{row['hbm_gib_per_chip']:.1f}", f"{row['modelled_step_s']:.4g}", f"{row['modelled_mfu']:.3f}"]
    figures += [slots, f"{row['modelled_hfu']:.3f}", *shares]
    kept = row["remat"] if row["offload"] == "none" else f"{row['remat']}, host {row['offload']}"
    return [row["experiment"], row["topology"], f"{row['layout']} {mesh}", kept, *figures, row["published"]]
