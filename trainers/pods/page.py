"""Shows a plan for a pod as one self-contained page: how long a step takes, where time and memory go, and
how the mesh is placed on the torus.

`page(report)` takes plain data, as in JSON. These keys are required:

  experiment, topology ("v4:8x16x16"), chips, mesh {axis: size}, modelled_step_s, parts {"matrix", "vector", "kernel",
  "communication", "memory", "bubble", "unpriced": seconds of the step; only exposed ones of communication and memory}.

All others may be missing, None or empty; the page then leaves out their part:

  layout, options, published (text); error_pct (of predicted runs that were held out), modelled_mfu, modelled_hfu,
    modelled_mfu_all_slots (of a mixture), expected_mfu (derated by the calibration), units_per_s, days, model_flops
  fits, hbm_gib_per_chip, hbm_limit_gib, memory {"parameters", "optimizer", "batch", "temporary", "other": GiB}
  torus {"dims": [8, 16, 16], "wrap": [true, ..]}, assignment {mesh axis: "y4z"}
  exposed_communication_share, exposed_all_to_all_share, bubble_share
  collectives [{kind, axes (None: along none), in_loop, times, bytes (on one device a step), seconds, exposed_s}]
  rows [{kind, label, component, source, shape, times, seconds, exposed_s}], the costliest first
  components [{component, phase ("forward", "recomputed", "backward", "optimizer", "other"), compute_s, communication_s}]
  spans [{start, end, lane (one of drawings.LANES), label, kind}], of a part of the step that represents all of it
  windows [{label, start, end}], intervals of that part to look at; the first is shown initially
  checks_passed, problems [text], compile_s, versions {name: version}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.pods.drawings import axis_class, bar, esc, key, parts_of, timeline, torus
from trainers.programs.units import percent, seconds, short, size

Report = Mapping[str, Any]

HERE = Path(__file__).parent
PARTS = {
    "matrix": "matrix units",
    "vector": "vector units",
    "kernel": "kernels",
    "communication": "exposed communication",
    "memory": "exposed memory copies",
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
PHASES = ("forward", "recomputed", "backward", "optimizer", "other")
MOST = 12  # rows of a picture; smaller ones share one row


def page(report: Report) -> str:
    """Returns the page, as text to write to an .html file in UTF-8."""
    title = f"{report['experiment']} on {report['topology']}: modelled step"
    body = (
        tiles(report)
        + split(report)
        + lanes(report)
        + beside(placement(report), memory(report))
        + beside(communication(report), components(report))
        + costliest(report)
        + beside(trust(report), made_with(report))
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing may be loaded, whatever a label says.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">"
        f"<title>{esc(title)}</title><style>\n{(HERE / 'page.css').read_text()}</style></head>\n"
        f"<body>{header(report)}<main>{body}</main>\n"
        f"<script>\n{(HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def error(r: Report) -> str:
    """Returns the error of a modelled time, in words that follow a number."""
    return f"± {r['error_pct']:.3g}%" if r.get("error_pct") is not None else "error not calibrated"


def section(title: str, content: str) -> str:
    """Returns a card."""
    return f"\n<section><h2>{title}</h2>{content}</section>"


def beside(*cards: str) -> str:
    """Returns cards side by side where there is room; empty ones are left out."""
    nonempty = [card for card in cards if card]
    return f'<div class="pair">{"".join(nonempty)}</div>' if len(nonempty) > 1 else "".join(nonempty)


def figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _value(name: str, cls: str, value: str, share: str) -> str:
    """Returns a line of a picture's values: swatch, name, value, share."""
    swatch = f'<i class="swatch {cls}"></i>'
    return f'<li>{swatch}<span class="name">{esc(name)}</span><b>{value}</b><i class="n">{share}</i></li>'


# --- head ---------------------------------------------------------------------------------------------------------


def header(r: Report) -> str:
    facts = {
        "Slice": f"{r['topology']}, {r['chips']:,} chip{'s' * (r['chips'] != 1)}",
        "Mesh": " × ".join(f"{name} {n}" for name, n in r["mesh"].items()),
        "Layout": r.get("layout"),
        "Compiler options": _options(r.get("options")),
        "Model work a step": f"{short(r['model_flops'])}FLOP" if r.get("model_flops") else None,
        "Published": r.get("published"),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{esc(fact)}</dd></div>" for name, fact in facts.items() if fact)
    return (
        '\n<header><p class="kicker">Pod plan · modelled, not measured</p>'
        f'<h1>{esc(r["experiment"])}</h1><dl class="facts">{items}</dl></header>'
    )


def _options(options: Any) -> str:
    """Returns options in words, whether they are a name, a list or a mapping."""
    if isinstance(options, Mapping):
        options = [f"{name}={value}" for name, value in options.items()]
    return ", ".join(map(str, options)) if isinstance(options, list) else options or ""


def tiles(r: Report) -> str:
    """Returns the headline numbers, each marked as modelled and with its error."""
    expected = r.get("expected_mfu")
    derated = f"expected {percent(expected)}, derated by the calibration" if expected is not None else ""
    figures = (
        ("step", seconds(r["modelled_step_s"]), "error of runs held out" if r.get("error_pct") is not None else ""),
        ("MFU", percent(r.get("modelled_mfu")), derated),
        ("MFU, all slots", percent(r.get("modelled_mfu_all_slots")), "if experts' empty slots were work"),
        ("HFU", percent(r.get("modelled_hfu")), "recomputed work counts"),
        *((f"{unit}/s", short(rate), "") for unit, rate in (r.get("units_per_s") or {}).items()),
        ("days", "–" if r.get("days") is None else f"{r['days']:,.1f}", "for the experiment's steps"),
    )
    items = [_tile(name, value, f'<span class="off">{error(r)}</span>', note) for name, value, note in figures if value != "–"]
    if r.get("fits") is not None:
        verdict = '<b class="good">✓ fits</b>' if r["fits"] else '<b class="bad">✗ too big</b>'
        items.append(_tile("memory", verdict, *hbm(r)))
    return f'\n<ul class="tiles">{"".join(items)}</ul>'


def _tile(name: str, value: str, below: str, note: str) -> str:
    return (
        f'<li class="tile"><span class="name">modelled {name}</span><span class="value">{value}</span>{below}'
        f'<span class="note">{note}</span></li>'
    )


def hbm(r: Report) -> tuple[str, str]:
    """Returns a small bar of a chip's memory, used of usable, and the same in words."""
    used, limit = r.get("hbm_gib_per_chip"), r.get("hbm_limit_gib")
    if used is None or not limit:
        return "", "as the compiler allocates it"
    words = f"{used:.2f} of {limit:.2f} GiB"
    color = "matrix" if used <= limit else "communication"
    return bar([("used", used, color, words)], f"modelled {words}", scale=max(used, limit), limit=limit), words


# --- time ---------------------------------------------------------------------------------------------------------


def split(r: Report) -> str:
    step = r["modelled_step_s"]
    segments = [
        (words, r["parts"].get(name) or 0.0, name, seconds(r["parts"].get(name) or 0.0, step)) for name, words in PARTS.items()
    ]
    items = "".join(_value(name, cls, words, percent(value / step)) for name, value, cls, words in segments if value)
    alt = "Modelled step: " + "; ".join(f"{name} {words}" for name, value, _, words in segments if value)
    shares = {
        "exposed communication": r.get("exposed_communication_share"),
        "exposed all-to-all": r.get("exposed_all_to_all_share"),
        "pipeline bubble": r.get("bubble_share"),
    }
    listed = ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share)
    caption = (
        f"Modelled step of {seconds(step)} ({error(r)}){f': {listed} of it' if listed else ''}. "
        "What is hidden behind computation takes no time of its own."
    )
    picture = f'<div class="tall">{bar(segments, alt)}</div><ul class="values">{items}</ul>'
    return section("Where the step goes", figure(picture, caption))


def lanes(r: Report) -> str:
    picture = timeline(r.get("spans") or (), r.get("windows") or ())
    if not picture:
        return ""
    caption = (
        "Modelled timeline of a part of the step that stands for the whole: what a chip computes, and below it what its links "
        "and copies do meanwhile. Where it waits for them, a band runs through all lanes. Point at a span for its name."
    )
    return section("What runs when", figure(picture, caption))


def communication(r: Report) -> str:
    collectives = sorted(r.get("collectives") or (), key=lambda c: (-(c.get("exposed_s") or 0), -(c.get("seconds") or 0)))
    if not collectives:
        return ""
    shown, remaining = collectives[:MOST], collectives[MOST:]
    scale = max(c.get("seconds") or 0 for c in shown) or 1.0
    lines = "".join(f"<li>{_collective(c, scale, r['mesh'])}</li>" for c in shown)
    if remaining:
        total, exposed = (sum(c.get(k) or 0 for c in remaining) for k in ("seconds", "exposed_s"))
        lines += f'<li class="note">{len(remaining)} more: {seconds(total)}, of it exposed {seconds(exposed)}</li>'
    names = key([("exposed", "communication"), ("hidden behind computation", "hidden")])
    caption = f"Modelled time of collectives in a step ({error(r)}), by kind and mesh axes, and their bytes on one chip."
    return section("Communication", figure(f'{names}<ul class="bars">{lines}</ul>', caption))


def _collective(c: Mapping[str, Any], scale: float, mesh: Mapping[str, int]) -> str:
    time, exposed = c.get("seconds") or 0.0, c.get("exposed_s") or 0.0
    names = c.get("axes") or ()
    axes = " × ".join(f'<i class="swatch {axis_class(mesh, name)}"></i>{esc(name)}' for name in names)
    over = f" over {axes}" if names else ""
    alt = f"modelled {c['kind']} over {', '.join(names) or 'no whole mesh axis'}: {seconds(time)}, exposed {seconds(exposed)}"
    segments = [
        ("exposed", min(exposed, time), "communication", seconds(exposed)),
        ("hidden", max(time - exposed, 0.0), "hidden", seconds(max(time - exposed, 0.0))),
    ]
    chart = bar(segments, alt, scale=scale)
    facts = [
        f"{c['times']:,} times" if c.get("times") else "",
        size(c["bytes"]) if c.get("bytes") else "",
        "in a loop" if c.get("in_loop") else "outside loops",
    ]
    return (
        f'<div class="line"><span class="name">{esc(c["kind"])}{over}</span>'
        f'<span class="n">{seconds(time)}, {_exposed(exposed)}</span></div>{chart}'
        f'<div class="note">{", ".join(filter(None, facts))}</div>'
    )


def _exposed(time: float) -> str:
    return f"exposed {seconds(time)}" if time else "all hidden"


def components(r: Report) -> str:
    times: dict[str, dict[str, float]] = {}
    for c in r.get("components") or ():
        by_phase = times.setdefault(c["component"] or "outside components", {})
        phase = c["phase"] if c["phase"] in PHASES else "other"
        by_phase[phase] = by_phase.get(phase, 0.0) + (c.get("compute_s") or 0.0)
        by_phase["communication"] = by_phase.get("communication", 0.0) + (c.get("communication_s") or 0.0)
    if not times:
        return ""
    ranked = sorted(times, key=lambda name: -sum(times[name].values()))
    if len(ranked) > MOST:
        ranked, remaining = ranked[: MOST - 1], ranked[MOST - 1 :]
        name = f"{len(remaining)} more components"
        times[name] = {phase: sum(times[n].get(phase, 0.0) for n in remaining) for phase in (*PHASES, "communication")}
        ranked.append(name)
    scale = max(sum(by_phase.values()) for by_phase in times.values())
    lines, seen = [], set()
    for name in ranked:
        by_phase = {phase: times[name].get(phase, 0.0) for phase in (*PHASES, "communication")}
        seen |= {phase for phase, value in by_phase.items() if value}
        total = sum(by_phase.values())
        segments = [(_phase(phase), value, phase, seconds(value, total)) for phase, value in by_phase.items()]
        listed = [f"{words} {text}" for words, value, _, text in segments if value]
        chart = bar(segments, f"modelled {name}: {', '.join(listed)}", scale=scale)
        waits = by_phase["communication"]
        lines.append(
            f'<li><div class="line"><span class="name">{esc(name)}</span><span class="n">{seconds(total)}'
            f"{f', {_exposed(waits)}' if waits else ''}</span></div>{chart}"
            f'<div class="note">{", ".join(listed[:-1] if waits else listed)}</div></li>'
        )
    names = key([(_phase(phase), phase) for phase in (*PHASES, "communication") if phase in seen])
    caption = f"Modelled time by component ({error(r)}): what it computes in each phase, and the communication that it waits for."
    return section("Components", figure(f'{names}<ul class="bars">{"".join(lines)}</ul>', caption))


def _phase(name: str) -> str:
    return "exposed communication" if name == "communication" else name


def costliest(r: Report) -> str:
    rows = (r.get("rows") or ())[:10]
    if not rows:
        return ""
    step = r["modelled_step_s"]
    lines = []
    for row in rows:
        kind = row["kind"] if row["kind"] in PARTS else "other"
        where = " · ".join(esc(row[k]) for k in ("component", "source") if row.get(k))
        shape = f"<div><code>{esc(row['shape'])}</code></div>" if row.get("shape") else ""
        times = f"{row['times']:,}" if row.get("times") is not None else "–"
        lines.append(
            f'<tr><td><div class="label">{esc(row["label"])}</div>{shape}<div class="note">{where}</div></td>'
            f'<td><i class="swatch {kind}"></i>{esc(row["kind"])}</td>'
            f'<td class="n" data-head="times">{times}</td><td class="n" data-head="time">{seconds(row.get("seconds"), step)}</td>'
            f'<td class="n" data-head="exposed">{seconds(row.get("exposed_s"), step)}</td>'
            f'<td class="n" data-head="share">{percent((row.get("exposed_s") or 0.0) / step)}</td></tr>'
        )
    head = "<th>what</th><th>kind</th>" + "".join(f'<th class="n">{h}</th>' for h in ("times", "time", "exposed", "share"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    note = (
        f'<p class="note">Modelled times of a step ({error(r)}), all runs together. '
        "Exposed is what adds to the step; share says how much of it.</p>"
    )
    return section("Costliest rows", table + note)


# --- space --------------------------------------------------------------------------------------------------------


def placement(r: Report) -> str:
    shape, mesh = r.get("torus"), r["mesh"]
    if not shape:
        return ""
    assignment = r.get("assignment") or {}
    dims = shape["dims"]
    wrap = shape.get("wrap") or [False] * len(dims)
    items = "".join(
        _value(name, axis_class(mesh, name), str(n), _torus_axes(assignment.get(name), dims)) for name, n in mesh.items()
    )
    links = "a dashed line is the link that closes a ring" if any(wrap) else "no side closes to a ring"
    caption = (
        f"The slice that is modelled, dots for its chips, with the mesh axes beside the torus axes they lie along; {links}."
        if max(dims) > 1
        else "The slice that is modelled is one chip, without links."
    )
    picture = torus(dims, wrap, mesh, assignment) + f'<ul class="values">{items}</ul>'
    return section("On the torus", figure(picture, caption))


def _torus_axes(assigned: str | None, dims: Sequence[int]) -> str:
    parts = parts_of(assigned, dims)
    sides = dict(zip("xyz", dims, strict=False))
    words = [f"{letter}" if n == sides[letter] else f"{n} of {letter}’s {sides[letter]}" for letter, n in parts]
    return "along " + " and ".join(words) if parts else "not cut"


def memory(r: Report) -> str:
    parts, limit = r.get("memory"), r.get("hbm_limit_gib")
    if not parts:
        return ""
    segments = [(words, parts.get(name) or 0.0, name, f"{parts.get(name) or 0.0:.2f} GiB") for name, words in MEMORY.items()]
    total = sum(value for _, value, _, _ in segments)
    whole = limit or total or 1.0
    items = "".join(_value(name, cls, words, percent(value / whole)) for name, value, cls, words in segments if value)
    listed = "; ".join(f"{name} {words}" for name, value, _, words in segments if value)
    caption = f"Modelled memory of one chip, {total:.2f} GiB, as the compiler allocates it"
    if limit:
        difference = f"{abs(limit - total):.2f} GiB"
        items += _value("free", "free", difference, percent((limit - total) / limit)) if total <= limit else ""
        room = f"{difference} {'free' if total <= limit else 'too much'}"
        caption += f"; the upright line is the limit, {limit:.2f} GiB: {room}"
        listed += f"; limit {limit:.2f} GiB, {room}"
    chart = bar(segments, f"Modelled memory of a chip: {listed}", scale=max(total, limit or 0.0), limit=limit)
    picture = f'<div class="tall">{chart}</div><ul class="values">{items}</ul>'
    return section("Memory of a chip", figure(picture, f"{caption}."))


# --- trust --------------------------------------------------------------------------------------------------------


def trust(r: Report) -> str:
    lines = [
        "<p><b>Modelled, not measured.</b> The TPU's own compiler compiled the step for this slice; its time is the "
        "sum of what a model says of each operation. No chip ran it.</p>"
    ]
    if r.get("error_pct") is not None:
        expected = r.get("expected_mfu")
        derated = f" Derated by the calibration, MFU is expected at {percent(expected)}." if expected is not None else ""
        lines.append(
            "<p>Of published runs, rebuilt and predicted by a calibration that had not seen them, the figures missed what was "
            f"published by {r['error_pct']:.3g}% (root mean square).{derated}</p>"
        )
    else:
        lines.append("<p>No published runs of such a model on this chip calibrate the figures: their error is not known.</p>")
    if r.get("published"):
        lines.append(f"<p>Published: {esc(r['published'])}</p>")
    return section("How far to trust it", "".join(lines))


def made_with(r: Report) -> str:
    problems, passed = r.get("problems") or (), r.get("checks_passed")
    if passed is None:
        lines = ["<p>No checks were made.</p>"]
    elif passed:
        lines = ['<p class="good">✓ All checks passed.</p>']
    else:
        lines = ['<p class="bad">✗ Checks failed.</p>']
    if problems:
        lines.append(f'<ul class="problems">{"".join(f"<li>{esc(p)}</li>" for p in problems)}</ul>')
    if r.get("compile_s") is not None:
        lines.append(f"<p>Compiled in {seconds(r['compile_s'])}.</p>")
    if r.get("versions"):
        items = "".join(f"<dt>{esc(name)}</dt><dd>{esc(version)}</dd>" for name, version in r["versions"].items())
        lines.append(f'<dl class="versions">{items}</dl>')
    return section("Checks and versions", "".join(lines))
