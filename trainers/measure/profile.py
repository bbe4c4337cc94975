"""A trace of some steps for xprof and TensorBoard, and the time of each component of the model in them.

The trace has the times of each operation of the compiled program; the program has the functions in which it was traced.
Operations may run concurrently, on a host's threads or its simulated devices. Those that run at the same instant share it
equally, so that their milliseconds add up to the time in which anything ran. Operations that the compiler added (mostly
copies) have no function and are listed as "(compiler)". Parts that models share have their own names here; other operations
traced in a module of the model are named for its class, and all others are "(other)". A fusion counts where its
result was traced.

Tested on CPUs; planes of accelerators are read by the same names, and their mean is shown.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.profiler import ProfileData

from data.paths import write_whole
from models.protocol import Model
from trainers.hlo import products
from trainers.hlo.collectives import KINDS, UNREAD
from trainers.hlo.parsing import Computation, Instruction, Program, phase
from trainers.measure.meter import Meter
from trainers.text_table import text_table

STEPS = 3  # counted steps; an uncounted one comes first
SUMMARY = "components.txt"
PHASES = ("forward", "backward", "rematerialised", "optimizer", "other")

# Patterns of "folder/file.py:function"; the innermost function that any of them matches decides.
_COMPONENTS = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^attention/\w+\.py:|\.attend(_to_source)?$", "attention"),
        (r"^moe/\w+\.py:", "experts"),
        (r":FeedForward\.|\.feed_forward$", "ffn"),
        (r":Norm\.", "norm"),
        (r":Embedding\.|\._?embed(_tokens)?$", "embedding"),
        (r"[:.]_?logits$|_loss$|/(losses|heads)\.py:", "softmax and loss"),
        (r"/optimizers\.py:|:global_norm$|:apply_updates|\.if_finite", "optimizer"),
        (r"/(transformer|encoder_decoder|params|gpipe|one_f_one_b)\.py:", "layers: residuals, scan"),
    )
]
_MOVES = {"copy", "transpose", "reshape", "concatenate", "slice", "dynamic-slice", "dynamic-update-slice", "pad", "bitcast"}
_CONTAINERS = {"while", "conditional", "call"}  # the operations inside have events of their own

Event = tuple[str, float, float]  # an operation's name, its beginning and end in ns


def profile(meter: Meter, program: Program, model: Model, folder: Path) -> dict[str, Any]:
    """Traces some steps into the folder, as process 0 sees them; all processes run them.

    Writes FOLDER/plugins/profile/... and, as text, FOLDER/components.txt. Returns a dictionary with the keys:
      steps: the number of traced steps
      step_ms: wall time of a step, with tracing
      busy_ms: time of a step in which any operation ran
      components: rows of component, phase, ms of a step and share of busy_ms, the longest first
      kinds: share of busy_ms by "matmul", "elementwise" (fusions without a product included), "data movement",
        "communication", "custom call"
    """
    leader = jax.process_index() == 0
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # tracing Python's own calls is slow and says little
    if leader:
        jax.profiler.start_trace(folder, profiler_options=options)
    try:
        meter.window(STEPS)
    finally:
        if leader:
            jax.profiler.stop_trace()
    if not leader:
        return {}
    newest = max(folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    modules = {type(module).__qualname__ for _, module in nnx.iter_modules(model)}  # pyright: ignore[reportArgumentType]
    events = planes(ProfileData.from_file(str(newest)), program)
    result = summary(program, events, STEPS + 1, modules)
    write_whole(folder / SUMMARY, "\n".join(table(result)) + "\n")
    return result


def planes(trace: Any, program: Program) -> list[list[Event]]:
    """Returns events of the program's operations by device, or on the host with simulated devices; `trace` is ProfileData."""
    known = {i.name: i for c in program.computations.values() for i in c.instructions}
    devices = []
    for plane in trace.planes:
        events: list[Event] = []
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                name = str(stats.get("hlo_op") or event.name.partition(" ")[0].lstrip("%"))
                of_program = str(stats.get("hlo_module", program.name)).startswith(program.name)
                if of_program and name in known and known[name].opcode not in _CONTAINERS:
                    events.append((name, event.start_ns, event.end_ns))
        if events:
            devices.append(events)
    return devices


def time_shares(events: Iterable[Event]) -> dict[str, float]:
    """Returns nanoseconds of each operation. Concurrent events share each instant equally, so that the sum is their union."""
    ends = sorted([(start, 1, name) for name, start, _ in events] + [(end, -1, name) for name, _, end in events])
    seconds: dict[str, float] = defaultdict(float)
    running: dict[str, int] = defaultdict(int)
    last = 0.0
    for now, change, name in ends:
        total = sum(running.values())
        for other, count in running.items():
            seconds[other] += (now - last) * count / total
        running[name] += change
        if not running[name]:
            del running[name]
        last = now
    return dict(seconds)


def summary(program: Program, devices: list[list[Event]], steps: int, modules: Collection[str] = ()) -> dict[str, Any]:
    """Returns the dictionary of `profile`, from the events of `steps` steps.

    Args:
      modules: the classes of the model's modules.
    """
    places = {i.name: (c, i) for c in program.computations.values() for i in c.instructions}
    rows: dict[tuple[str, str], float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    scale = 1e-6 / steps / max(len(devices), 1)
    for events in devices:
        for name, ns in time_shares(events).items():
            around, i = places[name]
            rows[component(program, i, modules), phase(i.op_name)] += ns * scale
            kinds[kind(program, around, i)] += ns * scale
    busy = sum(kinds.values())
    walls = [max(end for *_, end in events) - min(start for _, start, _ in events) for events in devices]
    return {
        "steps": steps,
        "step_ms": sum(walls) * scale,
        "busy_ms": busy,
        "components": [
            {"component": name, "phase": part, "ms": ms, "share": ms / busy}
            for (name, part), ms in sorted(rows.items(), key=lambda row: -row[1])
        ],
        "kinds": {name: ms / busy for name, ms in sorted(kinds.items(), key=lambda kind: -kind[1])},
    }


def component(program: Program, i: Instruction, modules: Collection[str] = ()) -> str:
    """Returns the component of an instruction: a name of the table, else the innermost class that is one of `modules`."""
    if phase(i.op_name) == "optimizer":
        return "optimizer"
    frames = [frame for inner in (i, *_fused(program, i)) for frame in program.frames(inner)]
    shared = (_named(f"{'/'.join(Path(file).parts[-2:])}:{function}") for file, function in frames)
    own = (name for _, function in frames if (name := function.rpartition(".")[0]) in modules)
    return next(filter(None, shared), None) or next(own, "(other)" if frames else "(compiler)")


@functools.cache
def _named(function: str) -> str:
    return next((name for pattern, name in _COMPONENTS if pattern.search(function)), "")


def _fused(program: Program, i: Instruction) -> list[Instruction]:
    """Returns the instructions inside a fusion, its result first."""
    if i.opcode != "fusion":
        return []
    return [j for names in i.called.values() for name in names for j in reversed(program.computations[name].instructions)]


def kind(program: Program, around: Computation, i: Instruction) -> str:
    """Returns the kind of an instruction, see `profile`."""
    if products.flops(program, around, i):
        return "matmul"
    if i.opcode.removesuffix("-start").removesuffix("-done") in KINDS + UNREAD:
        return "communication"
    if i.opcode == "custom-call":
        return "custom call"
    return "data movement" if i.opcode.removesuffix("-start").removesuffix("-done") in _MOVES else "elementwise"


def table(summary: dict[str, Any]) -> list[str]:
    """Returns the summary as lines of text."""
    if not summary["components"]:
        return ["the trace has no operation of the compiled step"]
    by_name: dict[str, dict[str, float]] = defaultdict(dict)
    for row in summary["components"]:
        by_name[row["component"]][row["phase"]] = row["ms"]
    by_name = dict(sorted(by_name.items(), key=lambda item: -sum(item[1].values())))
    phases = [part for part in PHASES if any(part in row for row in by_name.values())]
    rows = []
    for name, row in by_name.items():
        cells, total = [f"{row[part]:,.2f}" if part in row else "" for part in phases], sum(row.values())
        rows.append([name, *cells, f"{total:,.2f}", f"{total / summary['busy_ms']:.1%}"])
    head = ["ms of a step", *phases, "all", "share"]
    lines = [f"  {line}" for line in text_table(head, rows, range(1, len(head)))]
    kinds = ", ".join(f"{name} {share:.1%}" for name, share in summary["kinds"].items())
    idle = 1 - summary["busy_ms"] / summary["step_ms"]
    return [
        f"Profile of {summary['steps']} steps: {summary['step_ms']:,.2f} ms each with tracing, "
        f"nothing running in {idle:.1%} of it",
        *lines,
        f"  by kind: {kinds}",
    ]
