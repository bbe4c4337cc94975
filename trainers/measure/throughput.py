"""Training throughput of an experiment: its own compiled step on its own batches, timed by trainers.measure.meter, with MFU
and HFU.

MFU counts the model's FLOPs as PaLM does (trainers.hlo.model_flops), HFU those of the matrix products of the compiled
program, including recomputed ones (trainers.hlo.products). Both divide by all measured time and by the peak of all
devices (trainers.measure.peaks).
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil

from configs.experiment import Experiment
from data.reading.batches import Batches
from data.reading.examples import open_source
from trainers import distillation, runlog, step
from trainers.hlo import model_flops, parsing, products
from trainers.hlo.formatting import short
from trainers.hlo.parsing import HloError
from trainers.measure import meter, mlperf_log, peaks, profile
from trainers.measure.meter import Meter
from trainers.plan import Plan, fresh_state, make_plan
from trainers.runtime import host_memory, processes
from trainers.runtime.processes import versions

GIB = 2**30
CONVENTION = (
    "MFU: the model's FLOPs as in PaLM, appendix B: all products forward, attention in full, times 3. "
    "HFU: the products of the compiled program, what is computed again included"
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """An experiment that is measured.

    Attributes:
      compiled: its compiled step.
      compile_s: seconds of tracing, lowering and compiling the step.
      meter: the meter of its steps, starting with fresh parameters.
    """

    plan: Plan
    compiled: jax.stages.Compiled
    compile_s: float
    meter: Meter


@contextlib.contextmanager
def opened(e: Experiment) -> Iterator[Subject]:
    """Yields the experiment, ready to run, on as many devices as its mesh has; its first step is done."""
    alone = jax.process_count() == 1  # several processes must all take part
    plan = make_plan(e, jax.devices()[: e.layout.devices] if alone else None)
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    with contextlib.closing(batches):
        began = time.perf_counter()
        compiled = step.compile_step(plan)
        compile_s = time.perf_counter() - began
        host_memory.keep()
        current, teach = fresh_state(plan), distillation.teacher(plan, None)

        def run(batch: step.Batch) -> step.Metrics:
            nonlocal current
            current, metrics = compiled(current, teach(batch))
            return metrics

        subject = Subject(plan, compiled, compile_s, Meter(run, batches))
        subject.meter.window(0)
        yield subject


def measure(e: Experiment, steps: int, trace: Path | None = None, log: mlperf_log.Request | None = None) -> dict[str, Any]:
    """Returns the report of an experiment, see `report`, with

    first_step_s: from the start of this process to the end of the first step: imports, compiling, fresh parameters
    peak_memory_gib: until the last step, of the fullest device, or of the fullest process where devices have no statistics
    profile: profile of further steps, see trainers.measure.profile; only with a folder `trace` for it
    mlperf_log: path of a log in MLPerf's form; only if a `log` is requested
    """
    with opened(e) as subject:
        more: dict[str, Any] = {"first_step_s": _age()}
        meter.measure([subject.meter], steps)
        more["peak_memory_gib"] = float(processes.gather(host_memory.memory_gib()).max())
        result = report(subject) | more
        if log and jax.process_index() == 0:
            result["mlperf_log"] = str(mlperf_log.throughput(e, log, _windows(subject.meter)))
        if trace:
            program = parsing.parse(subject.compiled.as_text() or "")
            result["profile"] = profile.profile(subject.meter, program, subject.plan.model, trace)
    return result


def _windows(m: Meter) -> list[mlperf_log.Window]:
    """Returns the counted steps as single windows, from a meter that has counted in one window."""
    [seconds], [end] = m.windows, m.ended
    ends = end - sum(seconds) + np.cumsum(seconds)
    return [
        mlperf_log.Window(float(stop - s), float(stop), 1, float(output["loss"]))
        for s, stop, output in zip(seconds, ends, m.outputs, strict=True)
    ]


def compare(e: Experiment, other: Experiment, steps: int) -> dict[str, Any]:
    """Measures two experiments by turns; returns their reports `a` and `b`, and `ratio`, see `meter.ratio`."""
    with opened(e) as a:
        first = _age()
        with opened(other) as b:
            meter.measure([a.meter, b.meter], steps)
            result = {"a": report(a) | {"first_step_s": first}, "b": report(b)}
            return result | {"ratio": meter.ratio(a.meter, b.meter)}


def _age() -> float:
    """Returns the seconds since this process began."""
    return time.time() - psutil.Process().create_time()


def report(subject: Subject) -> dict[str, Any]:
    """Returns all measurements as plain values; None is a value that cannot be known, and `notes` say why.

    Keys, with the seconds and the share of `Meter.spread`:
      experiment, config (a hash of its fields), layout, mesh, data ("" is random tokens), dtype
      platform, device_kind, devices (simulated ones on a host), processes
      steps: the number of counted steps
      units_per_s: by unit of the model's work ("tokens", "images"), first the one in which throughput is reported
      tokens, tokens_per_s, tokens_per_s_per_chip: likewise for each unit; without padding, as the model counts them; for
        translations, the tokens of the target
      examples, examples_per_s, examples_per_s_per_chip: rows of the global batch, each a text, a pair or several, packed
      model_flops, slot_flops (with all slots of experts' buffers, filled or empty), hardware_flops: of a step, on all devices
      flop_convention, peak_flops (FLOP/s of all devices), peak (its description), mfu, hfu
      compile_s: time of tracing, lowering and compiling
      program_memory_gib: memory of the compiled step on one device, as the compiler counts it
      first_step_s, peak_memory_gib: None, since other programs may run in the process
      versions, notes

    Rates and shares are of all seconds measured, that is of the mean step: a delay of one step in ten is included.
    """
    plan, m = subject.plan, subject.meter
    e, spread, device = plan.experiment, m.spread(), jax.devices()[0]
    chips, seconds, notes = e.layout.devices, spread["step_s_mean"], []
    needed, done = model_flops.model_flops(e), None
    try:
        done = chips * products.total(parsing.parse(subject.compiled.as_text() or ""))
    except HloError as error:
        notes.append(f"no HFU: {error}")
    peak, name = peaks.peak(chips, e.execution.dtype)
    if peak is None:
        notes.append(f"no MFU, no HFU: {name}")
    if len(plan.trained) < len(plan.parameters):
        notes.append("MFU counts the gradients of frozen parameters, which are not computed")
    sizes: Any = subject.compiled.memory_analysis()

    def rates(name: str, count: float) -> dict[str, float]:
        rate = count / seconds
        return {name: count, f"{name}_per_s": rate, f"{name}_per_s_per_chip": rate / chips}

    def share(count: float | None) -> float | None:
        return count / seconds / peak if count is not None and peak else None

    counts = {unit: sum(float(metrics[unit]) for metrics in m.outputs) / len(m.outputs) for unit in plan.units()}
    return {
        "experiment": e.name,
        "config": runlog.config_hash(e),
        "layout": e.layout.name,
        "mesh": dict(e.layout.mesh),
        "data": e.data.cache,
        "dtype": e.execution.dtype,
        "quantization": e.execution.quantization,
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": chips,
        "processes": jax.process_count(),
        "steps": len(m.seconds),
        **spread,
        # With several processes, the share of the one that waited most.
        "input_stall_share": float(processes.gather(spread["input_stall_share"]).max()),
        "units_per_s": {unit: count / seconds for unit, count in counts.items()},
        **rates("examples", e.data.batch_size),
        **{key: value for unit, count in counts.items() for key, value in rates(unit, count).items()},
        "model_flops": needed,
        "slot_flops": model_flops.slot_flops(e) if plan.has_experts else needed,
        "hardware_flops": done,
        "flop_convention": CONVENTION,
        "peak_flops": peak,
        "peak": name,
        "mfu": share(needed),
        "hfu": share(done),
        "compile_s": subject.compile_s,
        "first_step_s": None,
        "peak_memory_gib": None,
        "program_memory_gib": sizes.peak_memory_in_bytes / GIB if sizes else None,
        "versions": versions() | {"python": sys.version.split()[0], "shardzoo": runlog.git_revision()},
        "notes": notes,
    }


# --- text ---------------------------------------------------------------------------------------------------------


def as_text(result: dict[str, Any]) -> str:
    """Returns the result of `measure` or `compare` as text."""
    if "ratio" not in result:
        return "\n".join(_lines(result))
    a, b, ratios = result["a"], result["b"], result["ratio"]
    names = [f"{report['experiment']} {report['layout']}" for report in (a, b)]
    spread = f"p10 {ratios['p10']:.3f}, p90 {ratios['p90']:.3f}"
    ratio = f"a step of b takes {ratios['median']:.3f} times as long as one of a ({spread})"
    unit = next(iter(a["units_per_s"]))
    if unit not in b["units_per_s"]:
        unit = "examples"
    rate = b[f"{unit}_per_s"] / a[f"{unit}_per_s"]
    parts = [f"a: {names[0]}", *_lines(a)[1:], "", f"b: {names[1]}", *_lines(b)[1:], ""]
    return "\n".join([*parts, f"{ratio}; b has {rate:.3f} times the {unit}/s of a"])


def _lines(r: dict[str, Any]) -> list[str]:
    mesh = " x ".join(f"{name} {size}" for name, size in r["mesh"].items())
    processes = f" of {r['processes']} processes" if r["processes"] > 1 else ""

    def rates(name: str, unit: str) -> str:
        per_device = f", {r[f'{name}_per_s_per_chip']:,.1f} a device" if r["devices"] > 1 else ""
        return f"  {name:10} {r[f'{name}_per_s']:,.1f} {unit}/s{per_device}; {r[name]:,.0f} a step"

    def share(name: str, count: str, meaning: str) -> str:
        value = "unknown" if r[name] is None else _percent(r[name])
        return f"  {name.upper():10} {value}; {short(r[count])}FLOP a step{meaning}"

    memory = "" if r["peak_memory_gib"] is None else f"{r['peak_memory_gib']:.2f} GiB at the peak; "
    program = "unknown" if r["program_memory_gib"] is None else f"{r['program_memory_gib']:.2f} GiB"
    first = "" if r["first_step_s"] is None else f"; first step done {r['first_step_s']:.1f} s after the process began"
    precision = r["dtype"] + (f", products of layers in {r['quantization']}" if r["quantization"] != "none" else "")
    ms = {key: f"{1000 * r[f'step_s_{key}']:,.1f}" for key in ("median", "p10", "p90", "mean")}
    lines = [
        f"{r['experiment']}: layout {r['layout']!r} on {mesh} devices of kind {r['device_kind']}{processes}",
        f"  {'data':10} {r['data'] or 'random tokens'}, computed in {precision}",
        f"  {'step':10} {ms['median']} ms median, p10 {ms['p10']}, p90 {ms['p90']}, mean {ms['mean']}; {r['steps']} steps",
        *(rates(unit, unit) for unit in r["units_per_s"]),
        rates("examples", "rows"),
        share("mfu", "model_flops", ", the model's: PaLM's count, attention in full, nothing twice"),
        share("hfu", "hardware_flops", ", those of the compiled program's products"),
        f"  {'peak':10} {short(r['peak_flops'])}FLOP/s: {r['peak']}",
        f"  {'input':10} {_percent(r['input_stall_share'])} of the time the devices waited for input",
        f"  {'start':10} compiled in {r['compile_s']:.1f} s{first}",
        f"  {'memory':10} {memory}{program} the compiled step's on a device",
        f"  {'versions':10} {', '.join(f'{name} {version}' for name, version in r['versions'].items())}",
        *(f"  {'note':10} {note}" for note in r["notes"]),
    ]
    if r["slot_flops"] > r["model_flops"]:
        lines.append(f"  {'slots':10} {short(r['slot_flops'])}FLOP a step with experts' empty slots, which are no work")
    return lines + (["", *profile.table(r["profile"])] if "profile" in r else [])


def _percent(x: float) -> str:
    return f"{x:.1%}"
