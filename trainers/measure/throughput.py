"""How fast an experiment trains: its own compiled step on its own batches, timed by trainers.measure.meter, and what that
is a share of.

MFU counts the model's FLOPs as PaLM does (trainers.programs.model_flops), HFU those of the matrix products of the compiled
program, with what is computed again (trainers.programs.products). Both divide by all measured time and by the peak of all
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
from data.reading.batches import Batches, batch_shapes
from data.reading.examples import open_source
from trainers import host_memory, processes, runlog, step
from trainers.measure import meter, mlperf_log, peaks, profile
from trainers.measure.meter import Meter
from trainers.plan import Plan, fresh_state, make_plan
from trainers.processes import versions
from trainers.programs import hlo, model_flops, products
from trainers.programs.hlo import HloError
from trainers.programs.units import short

GIB = 2**30
CONVENTION = (
    "MFU: the model's FLOPs as in PaLM, appendix B: all products forward, attention in full, times 3. "
    "HFU: the products of the compiled program, what is computed again included"
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """An experiment that is measured.

    Attributes:
      compiled: its step.
      compile_s: seconds of tracing, lowering and compiling that.
      meter: of its steps, from fresh parameters on.
    """

    plan: Plan
    compiled: jax.stages.Compiled
    compile_s: float
    meter: Meter


@contextlib.contextmanager
def opened(e: Experiment) -> Iterator[Subject]:
    """The experiment, ready to run, on as many devices as its mesh has; its first step is done."""
    alone = jax.process_count() == 1  # several processes must all take part
    p = make_plan(e, jax.devices()[: e.layout.devices] if alone else None)
    batches = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())
    with contextlib.closing(batches):
        began = time.perf_counter()
        compiled = step.compile_step(p, batch_shapes(e.data))
        compile_s = time.perf_counter() - began
        host_memory.keep()
        current = fresh_state(p)

        def run(batch: step.Batch) -> step.Metrics:
            nonlocal current
            current, found = compiled(current, batch)
            return found

        subject = Subject(p, compiled, compile_s, Meter(run, batches))
        subject.meter.window(0)
        yield subject


def measure(
    e: Experiment, steps: int, trace: Path | None = None, log: mlperf_log.Request | None = None
) -> dict[str, Any]:
    """The report of an experiment, see `report`, with

    first_step_s: from the start of this process to the end of the first step: imports, compiling, fresh parameters
    peak_memory_gib: until the last step, of the fullest device, or of the fullest process where devices do not tell
    profile: of some more steps, see trainers.measure.profile; where there is a `trace`, the folder for it
    mlperf_log: path of a log in MLPerf's form; where a `log` is asked for
    """
    with opened(e) as subject:
        more: dict[str, Any] = {"first_step_s": _age()}
        meter.measure([subject.meter], steps)
        more["peak_memory_gib"] = float(processes.gather(host_memory.memory_gib()).max())
        found = report(subject) | more
        if log and jax.process_index() == 0:
            found["mlperf_log"] = str(mlperf_log.throughput(e, log, _windows(subject.meter)))
        if trace:
            program = hlo.parse(subject.compiled.as_text() or "")
            found["profile"] = profile.profile(subject.meter, program, subject.plan.model, trace)
    return found


def _windows(m: Meter) -> list[mlperf_log.Window]:
    """The counted steps one by one, of a meter that has counted in one window."""
    [seconds], [end] = m.windows, m.ended
    ends = end - sum(seconds) + np.cumsum(seconds)
    return [
        mlperf_log.Window(float(stop - s), float(stop), 1, float(output["loss"]))
        for s, stop, output in zip(seconds, ends, m.outputs, strict=True)
    ]


def compare(e: Experiment, other: Experiment, steps: int) -> dict[str, Any]:
    """Two experiments in turns: their reports `a` and `b`, and `ratio`, see `meter.ratio`."""
    with opened(e) as a:
        first = _age()
        with opened(other) as b:
            meter.measure([a.meter, b.meter], steps)
            found = {"a": report(a) | {"first_step_s": first}, "b": report(b)}
            return found | {"ratio": meter.ratio(a.meter, b.meter)}


def _age() -> float:
    """Seconds since this process began."""
    return time.time() - psutil.Process().create_time()


def report(subject: Subject) -> dict[str, Any]:
    """What was measured, as plain values; None is what cannot be known, and `notes` say why.

    Keys, with the seconds and the share of `Meter.spread`:
      experiment, config (a hash of its fields), layout, mesh, data ("" is random tokens), dtype
      platform, device_kind, devices (of a host simulated ones), processes
      steps: that were counted
      units_per_s: by unit of the model's work ("tokens", "images"), the one first that throughput is told in
      tokens, tokens_per_s, tokens_per_s_per_chip: likewise of each unit; without padding, as the model counts them, of
        translations the tokens of the target
      examples, examples_per_s, examples_per_s_per_chip: rows of the global batch, each a text, a pair or several, packed
      model_flops, hardware_flops: of a step, on all devices
      flop_convention, peak_flops (FLOP/s of all devices), peak (what that is), mfu, hfu
      compile_s: of tracing, lowering and compiling
      program_memory_gib: of the compiled step on one device, by the compiler's own account
      first_step_s, peak_memory_gib: None, since more than this may run in the process
      versions, notes

    Rates and shares are of all seconds measured, that is of the mean step: what delays one step in ten is in them.
    """
    p, m = subject.plan, subject.meter
    e, spread, device = p.experiment, m.spread(), jax.devices()[0]
    chips, seconds, notes = e.layout.devices, spread["step_s_mean"], []
    needed, done = model_flops.model_flops(e), None
    try:
        done = chips * products.total(hlo.parse(subject.compiled.as_text() or ""))
    except HloError as error:
        notes.append(f"no HFU: {error}")
    peak, name = peaks.peak(chips, e.execution.dtype)
    if peak is None:
        notes.append(f"no MFU, no HFU: {name}")
    if len(p.trained) < len(p.parameters):
        notes.append("MFU counts the gradients of frozen parameters, which are not computed")
    sizes: Any = subject.compiled.memory_analysis()

    def rates(name: str, count: float) -> dict[str, float]:
        rate = count / seconds
        return {name: count, f"{name}_per_s": rate, f"{name}_per_s_per_chip": rate / chips}

    def share(count: float | None) -> float | None:
        return count / seconds / peak if count is not None and peak else None

    counts = {unit: sum(float(found[unit]) for found in m.outputs) / len(m.outputs) for unit in p.units()}
    return {
        "experiment": e.name,
        "config": runlog.config_hash(e),
        "layout": e.layout.name,
        "mesh": dict(e.layout.mesh),
        "data": e.data.cache,
        "dtype": e.execution.dtype,
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": chips,
        "processes": jax.process_count(),
        "steps": len(m.seconds),
        **spread,
        # Of several processes, that of the one that waited most.
        "input_stall_share": float(processes.gather(spread["input_stall_share"]).max()),
        "units_per_s": {unit: count / seconds for unit, count in counts.items()},
        **rates("examples", e.data.batch_size),
        **{key: value for unit, count in counts.items() for key, value in rates(unit, count).items()},
        "model_flops": needed,
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


# --- for people ---------------------------------------------------------------------------------------------------


def as_text(found: dict[str, Any]) -> str:
    """`measure` or `compare`."""
    if "ratio" not in found:
        return "\n".join(_lines(found))
    a, b, r = found["a"], found["b"], found["ratio"]
    names = [f"{x['experiment']} {x['layout']}" for x in (a, b)]
    ratio = f"a step of b takes {r['median']:.3f} times as long as one of a (p10 {r['p10']:.3f}, p90 {r['p90']:.3f})"
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
        of_one = f", {r[f'{name}_per_s_per_chip']:,.1f} a device" if r["devices"] > 1 else ""
        return f"  {name:10} {r[f'{name}_per_s']:,.1f} {unit}/s{of_one}; {r[name]:,.0f} a step"

    def share(name: str, count: str, of: str) -> str:
        value = "unknown" if r[name] is None else _percent(r[name])
        return f"  {name.upper():10} {value}; {short(r[count])}FLOP a step{of}"

    memory = "" if r["peak_memory_gib"] is None else f"{r['peak_memory_gib']:.2f} GiB at the peak; "
    program = "unknown" if r["program_memory_gib"] is None else f"{r['program_memory_gib']:.2f} GiB"
    first = "" if r["first_step_s"] is None else f"; first step done {r['first_step_s']:.1f} s after the process began"
    ms = {key: f"{1000 * r[f'step_s_{key}']:,.1f}" for key in ("median", "p10", "p90", "mean")}
    lines = [
        f"{r['experiment']}: layout {r['layout']!r} on {mesh} devices of kind {r['device_kind']}{processes}",
        f"  {'data':10} {r['data'] or 'random tokens'}, computed in {r['dtype']}",
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
    ]  # fmt: skip
    return lines + (["", *profile.table(r["profile"])] if "profile" in r else [])


def _percent(x: float) -> str:
    return f"{x:.1%}"
