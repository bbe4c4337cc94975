"""Shows a plan for a pod as one self-contained page: how long a step takes, where time and memory go, and
how the mesh is placed on the torus.

`page(report)` takes plain data, as in JSON. These keys are required:

  experiment, topology ("v4:8x16x16"), chips, mesh {axis: size}, modelled_step_s, parts {"matrix", "vector", "kernel",
  "communication", "memory", "host", "bubble", "unpriced": seconds of the step; of communication and copies, exposed ones}.

All others may be missing, None or empty; the page then leaves out their part:

  layout, options, published (text); error_pct (of predicted runs that were held out), modelled_mfu, modelled_hfu,
    modelled_mfu_all_slots (of a mixture), expected_mfu (derated by the calibration), units_per_s, days, model_flops
  fits, hbm_gib_per_chip, hbm_limit_gib, memory {"parameters", "optimizer", "batch", "temporary", "other": GiB}
  host_gib_per_chip, in the host's memory
  torus {"dims": [8, 16, 16], "wrap": [true, ..]}, assignment {mesh axis: "y4z"}
  exposed_communication_share, exposed_all_to_all_share, bubble_share
  collectives [{kind, axes (None: along none), in_loop, times, bytes (on one device a step), seconds, exposed_s}]
  rows [{kind, label, component, source, shape, times, seconds, exposed_s}], the costliest first
  components [{component, phase ("forward", "recomputed", "backward", "optimizer", "other"), compute_s, communication_s}]
  spans [{start, end, lane (one of trace.LANES), label, kind}], of a part of the step that represents all of it
  windows [{label, start, end}], intervals of that part to look at; the first is drawn
  checks_passed, problems [text], compile_s, versions {name: version}

page.html is the page's template. trainers/pods/trace.py gives all spans to viewers of traces.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.sharding.layout import SLICE
from trainers.hlo.formatting import percent, seconds, short, size
from trainers.pods.drawings import axis_class, parts_of, torus
from trainers.pods.trace import LANES, Span, tracks

Report = Mapping[str, Any]

PARTS = {
    "matrix": "matrix units",
    "vector": "vector units",
    "kernel": "kernels",
    "communication": "exposed communication",
    "memory": "exposed memory copies",
    "host": "exposed copies from and to the host",
    "bubble": "pipeline bubble",
    "unpriced": "not priced",
}
MEMORY = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "batch": "batch",
    "temporary": "temporary, at the peak",
    "other": "other",
}
PHASES = dict.fromkeys(("forward", "recomputed", "backward", "optimizer", "other"), "compute_s") | {
    "communication": "communication_s"
}
MOST = 12  # rows of a picture; smaller ones share one row
TRACKS, GAP = 5, 10  # tracks of a lane that are drawn, and pixels between lanes


class Segment(NamedTuple):
    """A part of a bar; its colour is a class of page.css."""

    name: str
    value: float
    color: str
    words: str


def page(report: Report, trace: str = "") -> str:
    """Returns the page, as text to write to an .html file in UTF-8.

    Args:
      trace: the name of the file beside it that has all spans as trace events.
    """
    import jinja2

    r = defaultdict(lambda: None, report)
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"seconds": seconds, "percent": percent}
    error = f"± {r['error_pct']:.3g}%" if r["error_pct"] is not None else "error not calibrated"
    shown, more = collectives(r)
    return environment.get_template("page.html").render(
        r=r,
        error=error,
        kinds=PARTS,
        facts=facts(r),
        tiles=tiles(r),
        hbm=hbm(r),
        split=split(r, error),
        timeline=timeline(r["spans"] or (), r["windows"] or (), trace),
        placement=placement(r),
        memory=memory(r),
        collectives=shown,
        more_collectives=more,
        components=(by_component := components(r)),
        phases=[(_phase(phase), phase) for phase in PHASES if any(c["seconds"][phase] for c in by_component)],
    )


def _listed(segments: Iterable[Segment]) -> list[str]:
    return [f"{segment.name} {segment.words}" for segment in segments if segment.value]


def facts(r: Report) -> list[tuple[str, str | None]]:
    return [
        ("Slice", f"{r['topology']}, {r['chips']:,} chip{'s' * (r['chips'] != 1)}"),
        ("Mesh", " × ".join(f"{name} {n}" for name, n in r["mesh"].items())),
        ("Layout", r["layout"]),
        ("Compiler options", _options(r["options"])),
        ("Model work a step", f"{short(r['model_flops'])}FLOP" if r["model_flops"] else None),
        ("Published", r["published"]),
    ]


def _options(options: Any) -> str:
    """Returns options in words, whether they are a name, a list or a mapping."""
    if isinstance(options, Mapping):
        options = [f"{name}={value}" for name, value in options.items()]
    return ", ".join(map(str, options)) if isinstance(options, list) else options or ""


def tiles(r: Report) -> list[tuple[str, str, str]]:
    """Returns the headline numbers: name, value ("–" if it is not known) and note."""
    expected = r["expected_mfu"]
    derated = f"expected {percent(expected)}, derated by the calibration" if expected is not None else ""
    return [
        ("step", seconds(r["modelled_step_s"]), "error of runs held out" if r["error_pct"] is not None else ""),
        ("MFU", percent(r["modelled_mfu"]), derated),
        ("MFU, all slots", percent(r["modelled_mfu_all_slots"]), "if experts' empty slots were work"),
        ("HFU", percent(r["modelled_hfu"]), "recomputed work counts"),
        *((f"{unit}/s", short(rate), "") for unit, rate in (r["units_per_s"] or {}).items()),
        ("days", "–" if r["days"] is None else f"{r['days']:,.1f}", "for the experiment's steps"),
    ]


def hbm(r: Report) -> Segment | None:
    """Returns a chip's memory, used of usable."""
    used, limit = r["hbm_gib_per_chip"], r["hbm_limit_gib"]
    if used is None or not limit:
        return None
    return Segment("used", used, "matrix" if used <= limit else "communication", f"{used:.2f} of {limit:.2f} GiB")


def split(r: Report, error: str) -> dict[str, Any]:
    """Returns the parts of the step."""
    step = r["modelled_step_s"]
    times = {name: r["parts"].get(name) or 0.0 for name in PARTS}
    segments = [Segment(words, times[name], name, seconds(times[name], step)) for name, words in PARTS.items()]
    shares = {
        "exposed communication": r["exposed_communication_share"],
        "exposed all-to-all": r["exposed_all_to_all_share"],
        "pipeline bubble": r["bubble_share"],
    }
    listed = ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share)
    return {
        "segments": segments,
        "alt": f"Modelled step: {'; '.join(_listed(segments))}",
        "caption": f"Modelled step of {seconds(step)} ({error}){f': {listed} of it' if listed else ''}. "
        "What is hidden behind computation takes no time of its own.",
    }


def timeline(spans: Sequence[Span], windows: Sequence[Span] = (), trace: str = "") -> dict[str, Any]:
    """Returns lanes of spans over time, in microseconds of the first window (without windows: of all); {} without spans."""
    spans = [s for s in spans if s["lane"] in LANES]
    if not spans:
        return {}
    zero, last = min(s["start"] for s in spans), max(s["end"] for s in spans)
    label, start, end = [*((w["label"], w["start"], w["end"]) for w in windows), ("all", zero, last)][0]
    width = max(1e6 * (end - start), 1e-3)
    lanes, top = [], 0
    for key, lane in LANES.items():
        own = tracks(s for s in spans if s["lane"] == key and s["start"] < end and s["end"] > start)
        boxes = [
            (
                1e6 * (max(s["start"], start) - start),
                max(1e6 * (min(s["end"], end) - max(s["start"], start)), 0.1),
                top + min(number, TRACKS - 1) * lane.height,
                lane.height - 1,
                f"{s.get('label') or key}{f' ({kind})' if (kind := s.get('kind')) else ''}, {seconds(s['end'] - s['start'])}",
            )
            for number, track in enumerate(own)
            for s in track
        ]
        if own:
            height = min(len(own), TRACKS) * lane.height
            lanes.append(
                {"name": lane.name, "color": lane.color, "top": top, "height": height, "boxes": boxes, "band": key == "wait"}
            )
            top += height + GAP
    interval = f"{label}, {1e3 * (start - zero):.2f} to {1e3 * (end - zero):.2f} ms of {1e3 * (last - zero):.2f} ms"
    caption = (
        f"Modelled timeline of a part of the step that represents the whole ({interval}): what a chip computes, and below it "
        "what its links and copies do meanwhile. Where it waits for them, a band runs through all lanes."
    )
    if trace:
        caption += f" All spans are in {trace}, which ui.perfetto.dev opens."
    shown = sum(len(lane["boxes"]) for lane in lanes)
    alt = f"Modelled timeline: {shown} of {len(spans)} spans in {len(lanes)} lanes; shown is {interval}."
    return {
        "lanes": lanes,
        "width": width,
        "height": top,
        "ticks": ticks(start - zero, end - zero),
        "caption": caption,
        "alt": alt,
    }


def ticks(start: float, end: float) -> list[tuple[float, str]]:
    """Returns round times of a window: their place in percent of its width, and the time in words."""
    start, end = 1e6 * start, 1e6 * end
    rough = max(end - start, 1e-3) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    digits = max(0, 3 - math.floor(math.log10(step) + 1e-9))
    places = {i * step: (i * step - start) / (end - start) for i in range(math.ceil(start / step), math.floor(end / step) + 1)}
    return [(100 * place, f"{time / 1e3:.{digits}f} ms") for time, place in places.items() if place < 0.9]


def placement(r: Report) -> dict[str, Any]:
    """Returns the torus and where each mesh axis lies on it."""
    if not r["torus"]:
        return {}
    mesh, assignment, dims = r["mesh"], r["assignment"] or {}, r["torus"]["dims"]
    wrap = r["torus"].get("wrap") or [False] * len(dims)
    links = "a dashed line is the link that closes a ring" if any(wrap) else "no side closes to a ring"
    caption = f"The slice that is modelled, dots for its chips, with the mesh axes beside the torus axes they lie along; {links}."
    return {
        "picture": torus(dims, wrap, mesh, assignment),
        "axes": [(axis_class(mesh, name), name, n, _place(name, assignment.get(name), dims)) for name, n in mesh.items()],
        "caption": caption if max(dims) > 1 else "The slice that is modelled is one chip, without links.",
    }


def _place(name: str, assigned: str | None, dims: Sequence[int]) -> str:
    if name == SLICE:
        return "over the network between slices"
    parts = parts_of(assigned, dims)
    sides = dict(zip("xyz", dims, strict=False))
    words = [f"{letter}" if n == sides[letter] else f"{n} of {letter}’s {sides[letter]}" for letter, n in parts]
    return "along " + " and ".join(words) if parts else "not cut"


def memory(r: Report) -> dict[str, Any]:
    """Returns the parts of a chip's memory."""
    if not r["memory"]:
        return {}
    limit = r["hbm_limit_gib"]
    segments = [Segment(words, value := r["memory"].get(name) or 0.0, name, f"{value:.2f} GiB") for name, words in MEMORY.items()]
    total = sum(segment.value for segment in segments)
    listed, free = "; ".join(_listed(segments)), []
    caption = f"Modelled memory of one chip, {total:.2f} GiB, as the compiler allocates it"
    if limit:
        difference = f"{abs(limit - total):.2f} GiB"
        room = f"{difference} {'free' if total <= limit else 'too much'}"
        free = [("free", "free", difference, percent((limit - total) / limit))] if total <= limit else []
        caption += f"; the upright line is the limit, {limit:.2f} GiB: {room}"
    if on_host := r["host_gib_per_chip"]:
        caption += f"; {on_host:.2f} GiB more lie in the host's memory"
        listed += f"; limit {limit:.2f} GiB, {room}"
    return {
        "segments": segments,
        "alt": f"Modelled memory of a chip: {listed}",
        "caption": f"{caption}.",
        "free": free,
        "scale": max(total, limit or 0.0),
        "whole": limit or total or 1.0,
    }


def collectives(r: Report) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns (the collectives that are most exposed, the sums of all others)."""
    mesh, rows = r["mesh"], [defaultdict(float, {k: v or 0.0 for k, v in c.items()}) for c in r["collectives"] or ()]
    rows.sort(key=lambda c: (-c["exposed_s"], -c["seconds"]))
    shown, others = rows[:MOST], rows[MOST:]
    scale = max((c["seconds"] for c in shown), default=0.0) or 1.0
    more = {"count": len(others), "seconds": sum(c["seconds"] for c in others), "exposed": sum(c["exposed_s"] for c in others)}
    return [_collective(c, mesh) | {"scale": scale} for c in shown], more


def _collective(c: Mapping[str, Any], mesh: Mapping[str, int]) -> dict[str, Any]:
    time, exposed, names = c["seconds"], c["exposed_s"], c["axes"] or ()
    facts = (
        f"{c['times']:,} times" if c["times"] else "",
        size(c["bytes"]) if c["bytes"] else "",
        "in a loop" if c["in_loop"] else "outside loops",
    )
    hidden, over = max(time - exposed, 0.0), ", ".join(names) or "no whole mesh axis"
    return {
        "kind": c["kind"],
        "axes": [(name, axis_class(mesh, name)) for name in names],
        "seconds": time,
        "exposed": exposed,
        "segments": [
            Segment("exposed", min(exposed, time), "communication", seconds(exposed)),
            Segment("hidden", hidden, "hidden", seconds(hidden)),
        ],
        "alt": f"modelled {c['kind']} over {over}: {seconds(time)}, exposed {seconds(exposed)}",
        "facts": ", ".join(filter(None, facts)),
    }


def components(r: Report) -> list[dict[str, Any]]:
    """Returns the components that take most time, with their seconds by phase; the smallest share one row."""
    times: dict[str, dict[str, float]] = {}
    for c in r["components"] or ():
        by_phase = times.setdefault(c["component"] or "outside components", dict.fromkeys(PHASES, 0.0))
        by_phase[c["phase"] if c["phase"] in PHASES else "other"] += c.get("compute_s") or 0.0
        by_phase["communication"] += c.get("communication_s") or 0.0
    ranked = sorted(times.items(), key=lambda item: -sum(item[1].values()))
    if len(ranked) > MOST:
        ranked, others = ranked[: MOST - 1], [by_phase for _, by_phase in ranked[MOST - 1 :]]
        ranked.append((f"{len(others)} more components", {phase: sum(by[phase] for by in others) for phase in PHASES}))
    return [_component(name, by_phase) for name, by_phase in ranked]


def _component(name: str, by_phase: dict[str, float]) -> dict[str, Any]:
    total, waits = sum(by_phase.values()), by_phase["communication"]
    segments = [Segment(_phase(phase), value, phase, seconds(value, total)) for phase, value in by_phase.items()]
    return {
        "name": name,
        "seconds": by_phase,
        "total": total,
        "waits": waits,
        "segments": segments,
        "alt": ", ".join(_listed(segments)),
        "note": ", ".join(_listed(segment for segment in segments if segment.color != "communication")),
    }


def _phase(name: str) -> str:
    return "exposed communication" if name == "communication" else name
