"""The page and the trace of a pod plan: the page parses, loads nothing, says that its numbers are modelled, and bears what a plan
may lack."""

import copy
import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from trainers.hlo.formatting import NBSP, seconds, short, size
from trainers.pods.drawings import parts_of
from trainers.pods.page import page, ticks, timeline
from trainers.pods.report import as_text
from trainers.pods.report import table as markdown
from trainers.pods.simulation import Loop, Row, Run, Simulation, Start, Wait, Work
from trainers.pods.trace import LANES, trace, tracks

VOID = {"meta", "br", "img", "link", "input", "hr"}


def layer(start: float, *, backward: bool) -> list[dict[str, Any]]:
    """Spans of one layer, hand-made: attention, then experts between two all-to-alls that are partly waited for."""
    scale = 2.1 if backward else 1.0
    spans: list[dict[str, Any]] = []

    def add(lane: str, label: str, kind: str, a_ms: float, b_ms: float) -> None:
        spans.append(
            {"lane": lane, "label": label, "kind": kind, "start": start + a_ms * scale / 1e3, "end": start + b_ms * scale / 1e3}
        )

    add("links", "all-gather of attention weights", "all-gather", 0, 9)
    add("links", "all-gather of expert weights", "all-gather", 3, 31)
    for i in range(6):
        add("matrix", f"attention product {i}", "matrix", i * 5, i * 5 + 4.2)
        add("vector", f"norm & softmax <{i}>", "vector", i * 5 + 4.2, i * 5 + 4.9)
        add("dma", "prefetch of weights", "copy", i * 5 + 0.5, i * 5 + 3)
    add("kernel", "flash attention", "kernel", 30, 36)
    add("links", "all-to-all of tokens", "all-to-all", 36, 44)
    add("wait", "all-to-all of tokens", "all-to-all", 37, 44)
    for i in range(9):
        add("matrix", f"expert product {i}", "matrix", 44 + i * 5, 44 + i * 5 + 4.8)
        add("dma", "expert activations", "copy", 44 + i * 5, 44 + i * 5 + 4)
        add("dma", "prefetch of expert weights", "copy", 46 + i * 5, 46 + i * 5 + 4)
    add("links", "all-to-all of answers", "all-to-all", 88, 97)
    add("wait", "all-to-all of answers", "all-to-all", 89, 97)
    add("vector", "residual", "vector", 97, 99)
    if backward:
        add("links", "reduce-scatter of gradients", "reduce-scatter", 50, 86)
    return spans


def table(names: str, *lines: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), line, strict=True)) for line in lines]


FORWARD, BACKWARD = 0.099, 0.2079
SPANS = layer(0.0, backward=False) + layer(FORWARD, backward=True)
SHAPE = "bf16[64,2048,8192] x bf16[64,8192,32768]"
MOE = "encoder.layers.moe"
REPORT: dict[str, Any] = {
    "experiment": "bert/480b_moe",
    "topology": "v4:8x16x16",
    "chips": 2048,
    "devices": 2048,
    "mesh": {"data": 256, "model": 8},
    "assignment": {"data": "yz", "model": "x"},
    "torus": {"dims": [8, 16, 16], "wrap": [True, True, True]},
    "layout": "2d_weight_stationary",
    "options": "overlapped",
    "published": "hand-made: 18.1 s a step",
    "fits": True,
    "hbm_gib_per_chip": 27.94,
    "hbm_limit_gib": 30.75,
    "host_gib_per_chip": 0.0,
    "offload": "none",
    "note": "",
    "padded": [],
    "memory": {"parameters": 2.62, "optimizer": 5.24, "batch": 0.04, "temporary": 19.71, "other": 0.33},
    "modelled_step_s": 17.5,
    "modelled_mfu": 0.601,
    "modelled_hfu": 0.772,
    "error_pct": 8.0,
    "expected_mfu": 0.558,
    "units_per_s": {"tokens": 119_800.0},
    "days": 29.0,
    "model_flops": 5.92e18,
    "parts": {"matrix": 14.53, "vector": 0.7, "kernel": 0.0, "communication": 2.05, "memory": 0.15, "bubble": 0.0}
    | {"unpriced": 0.07},
    "exposed_communication_share": 0.117,
    "exposed_all_to_all_share": 0.086,
    "bubble_share": 0.0,
    "collectives": table(
        "kind axes in_loop times bytes seconds exposed_s",
        ("all-to-all", ["data"], True, 384, 3.1e12, 1.9, 1.5),
        ("all-gather", ["model"], True, 768, 6.4e12, 5.1, 0.31),
        ("reduce-scatter", ["model"], True, 512, 4.2e12, 3.4, 0.2),
        ("all-reduce", ["data", "model"], False, 12, 8.1e9, 0.06, 0.04),
        ("collective-permute", None, True, 64, 9.0e8, 0.01, 0.0),
    ),
    "rows": table(
        "kind label component source shape times seconds exposed_s",
        *(("matrix", f"dot_general {i}", MOE, f"moe.py:{120 + i}", SHAPE, 64, 2.9 / i, 2.9 / i) for i in range(1, 8)),
        ("communication", "all-to-all, tokens to experts", MOE, "moe.py:88", "bf16[256,64,8192]", 128, 0.9, 0.74),
        ("vector", 'softmax of router & <top 2> "gates"', f"{MOE}.router", "moe.py:61", "f32[2048,512]", 192, 0.31, 0.31),
        ("memory", "copy-start", "encoder.layers", "", "bf16[8192,8192]", 64, 0.2, 0.15),
    ),
    "components": table(
        "component phase compute_s communication_s",
        *(
            (name, phase, total * share, waits * share)
            for name, total, waits in (
                (MOE, 9.1, 1.6),
                ("encoder.layers.attention", 4.4, 0.3),
                ("encoder.layers.mlp", 1.4, 0.1),
                ("embed", 0.12, 0.02),
                ("head", 0.3, 0.03),
            )
            for phase, share in (("forward", 0.25), ("recomputed", 0.22), ("backward", 0.5), ("optimizer", 0.03))
        ),
    ),
    "spans": SPANS,
    "windows": table(
        "label start end",
        ("one layer, forward and backward", 0.0, FORWARD + BACKWARD),
        ("forward", 0.0, FORWARD),
        ("backward", FORWARD, FORWARD + BACKWARD),
    ),
    "checks_passed": True,
    "problems": [],
    "compile_s": 412.0,
    "versions": {"jax": "0.8.0", "libtpu": "0.0.24"},
}


class Page(HTMLParser):
    """Elements with their attributes, and the text inside figures and tiles; refuses tags that do not balance."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.figures: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "figure" or dict(attrs).get("class") == "tile":
            self.figures.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.figures and ("figure" in self.open or "li" in self.open):
            self.figures[-1] += data


def changed(**values: Any) -> dict[str, Any]:
    return copy.deepcopy(REPORT) | values


BARE = {key: REPORT[key] for key in ("experiment", "topology", "chips", "mesh", "modelled_step_s", "parts")}
ONE = changed(
    topology="v5e:1x1",
    chips=1,
    mesh={"data": 1},
    torus={"dims": [1, 1], "wrap": [False, False]},
    assignment={"data": ""},
    collectives=[],
    exposed_communication_share=0.0,
    exposed_all_to_all_share=0.0,
)
FLAT = changed(
    topology="v5e:16x16",
    chips=256,
    mesh={"data": 16, "expert": 4, "model": 4},
    assignment={"data": "x", "expert": "y4", "model": "y4"},
    torus={"dims": [16, 16], "wrap": [True, True]},
)
VARIANTS = {
    "full": REPORT,
    "bare": BARE,
    "none": {key: None for key in REPORT} | BARE,
    "no spans, no days": changed(spans=[], days=None),
    "no all-to-all": changed(collectives=REPORT["collectives"][1:], exposed_all_to_all_share=None),
    "two dimensions": FLAT,
    "one chip": ONE,
    "too big": changed(
        fits=False,
        hbm_gib_per_chip=41.2,
        memory=REPORT["memory"] | {"temporary": 32.97},
        checks_passed=False,
        problems=["does not fit: 41.20 of 30.75 GiB"],
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_page_parses_loads_nothing_and_says_that_it_is_modelled(name: str):
    """Also of a plan that lacks what is optional."""
    text = page(VARIANTS[name])
    parsed = Page(text)
    assert not re.search(r"https?://|@import|url\(|<script", text)
    for tag, attributes in parsed.elements:
        assert tag not in ("link", "iframe", "object", "embed", "use", "image") and not {"href", "src", "srcset"} & set(
            attributes
        ), tag
        if attributes.get("role") == "img":
            assert attributes["aria-label"], tag
        if tag == "svg":
            assert attributes["role"] == "img"
    assert parsed.figures and all("modelled" in figure.lower() for figure in parsed.figures)
    assert "None" not in parsed.text and "nan" not in re.findall(r"\w+", parsed.text)


def test_every_section_of_a_full_plan_is_there():
    """Sections appear by their data, so a full plan has them all."""
    text = page(REPORT).replace(NBSP, " ")
    titles = "Where the step goes,What runs when,On the torus,Memory of a chip,Communication,Components,Costliest rows"
    for title in (*titles.split(","), "How far to trust it", "Checks and versions"):
        assert f"<h2>{title}</h2>" in text, title
    for words in ("17.5 s", "± 8%", "expected 55.8%", "29.0", "libtpu"):
        assert words in text, words
    assert "What runs when" not in page(BARE) and "<figure" in page(BARE)


@pytest.mark.parametrize("where", ["label", "component", "source", "shape", "kind"])
def test_names_are_escaped_wherever_they_stand(where: str):
    """A name with markup and quotes is shown, not obeyed."""
    evil = """<b onclick="x">&'</b>"""
    report = copy.deepcopy(REPORT)
    for item in (*report["rows"], *report["collectives"], *report["components"], *report["spans"], *report["windows"]):
        if where in item:
            item[where] = evil
    report |= dict.fromkeys(("experiment", "published", "layout"), evil)
    report |= {"options": {evil: evil}, "versions": {evil: evil}}
    report |= {"problems": [evil], "mesh": {evil: 256, "model": 8}, "assignment": {evil: "yz", "model": "x"}}
    text = page(report)
    parsed = Page(text)
    assert evil not in text and not any("onclick" in attributes for _, attributes in parsed.elements)
    assert evil in parsed.text


def test_the_first_window_is_drawn():
    """In microseconds from its start, with the spans that lie in it, cut to it; without windows, all spans."""
    text = page(changed(windows=[{"label": "backward", "start": FORWARD, "end": FORWARD + BACKWARD}]), "plan.trace.json")
    assert 'viewBox="0 0 207900.0' in text and "(backward, 99.00 to 306.90 ms of 306.90 ms)" in text and "plan.trace.json" in text
    spans = [{"lane": "matrix", "label": "p", "kind": "", "start": i * 1e-3, "end": (i + 1) * 1e-3} for i in range(20)]
    assert timeline(spans)["width"] == pytest.approx(20e3) and len(timeline(spans)["lanes"][0]["boxes"]) == 20
    (lane,) = timeline(spans, [{"label": "some", "start": 4.5e-3, "end": 6e-3}])["lanes"]
    assert [(round(x), round(width)) for x, width, *_ in lane["boxes"]] == [(0, 500), (500, 1000)]


def test_spans_of_a_track_do_not_cover_each_other():
    """Transfers at the same time lie on tracks of their own."""
    spans = [{"start": a, "end": b} for a, b in ((0, 4), (1, 3), (3, 5), (3.5, 6), (5, 7))]
    assert [[(s["start"], s["end"]) for s in track] for track in tracks(spans)] == [
        [(0, 4), (5, 7)],
        [(1, 3), (3, 5)],
        [(3.5, 6)],
    ]


def test_the_trace_has_every_span_once_and_none_overlap_in_a_thread():
    """Read from JSON: threads have names; the durations of a lane sum to those of its spans; windows are events as well."""
    read = json.loads(json.dumps(trace(REPORT)))
    events = read["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"M", "X"} and {event["tid"] for event in complete} == names.keys()
    assert len(complete) == len(SPANS) + 3 and "one chip of bert/480b_moe" in events[0]["args"]["name"]
    for lane in LANES:
        own = [span for span in SPANS if span["lane"] == lane]
        drawn = [event for event in complete if re.fullmatch(rf"{LANES[lane].name}( \d+)?", names[event["tid"]])]
        assert sorted(event["name"] for event in drawn) == sorted(span["label"] for span in own)
        assert sum(event["dur"] for event in drawn) == pytest.approx(1e6 * sum(span["end"] - span["start"] for span in own))
    for thread in names:
        times = sorted((event["ts"], event["ts"] + event["dur"]) for event in complete if event["tid"] == thread)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(times))


def test_a_trace_is_that_of_the_schedule_that_was_simulated():
    """A product, a transfer beside it and the wait for that, in loops: events have the spans' times and iterations."""
    row = Row("p", "matrix", "dot_general", "forward", "", "", (), True, 0, 0.0)
    gather = dataclasses.replace(row, name="g", kind="all-gather", label="all-gather")
    body = [Start(Work(gather, 3e-6, frozenset("x")), "g"), Run(Work(row, 2e-6)), Wait("g", "done")]
    simulation = Simulation()
    simulation.run([Loop("layers", 2, body)])
    _, spans = simulation.finish()
    events = [e for e in trace(BARE | {"spans": [dataclasses.asdict(s) for s in spans]})["traceEvents"] if e["ph"] == "X"]
    assert sorted((e["ts"], e["dur"], e["name"], e["args"]["layers"]) for e in events) == [
        (0, 2, "dot_general", "iteration 1 of 2"),
        (0, 3, "all-gather", "iteration 1 of 2"),
        (2, 1, "all-gather", "iteration 1 of 2"),
        (3, 2, "dot_general", "iteration 2 of 2"),
        (3, 3, "all-gather", "iteration 2 of 2"),
        (5, 1, "all-gather", "iteration 2 of 2"),
    ]


def test_a_large_timeline_stays_small():
    """A few thousand spans are a file of well under a megabyte."""
    many = [
        {"lane": lane, "label": "fusion.123", "kind": "loop", "start": i * 1e-4, "end": (i + 1) * 1e-4}
        for i in range(750)
        for lane in ("matrix", "vector", "links", "dma")
    ]
    assert len(page(changed(spans=many))) < 7e5


def test_a_shared_torus_axis_is_read_in_parts():
    """Letters without a number take the whole side."""
    assert parts_of("y4z", [8, 16, 16]) == [("y", 4), ("z", 16)]
    assert parts_of("", [8, 16]) == parts_of(None, [8, 16]) == parts_of("z", [8, 16]) == []
    text = page(FLAT)
    assert "expert 4 ways and model 4 ways" in text and "4 of y’s 16" in text


def test_numbers_read_well():
    """Three digits or so, in the unit that fits; in a column all in one unit."""

    def said(f: Callable[..., str], *values: float | None, **more: float) -> list[str]:
        return [f(value, **more).replace(NBSP, " ") for value in values]

    assert said(seconds, 17.5, 0.312, 4.5e-5, 0.0, None) == ["17.5 s", "312 ms", "45.0 µs", "0.00 s", "–"]
    assert said(seconds, 14.53, 0.07, total=17.5) == ["14.53 s", "0.07 s"]
    assert said(short, 512, 119_800.0, 5.92e18) == ["512", "119.8 k", "5.9 E"]
    assert said(size, 100, 3 * 2**20, 2**41) == ["100 B", "3.0 MiB", "2.0 TiB"]
    assert [words for _, words in ticks(0.099, 0.307)] == ["100 ms", "150 ms", "200 ms", "250 ms"]


@pytest.mark.parametrize(
    ("scale", "step", "lines"),
    [(1, "17.5 s", ["matrix 14.53 s", "vector 0.70 s"]), (1e-6, "17.5 µs", ["matrix 14.53 µs", "vector 0.70 µs"])],
)
def test_the_text_has_the_unit_of_the_step(scale, step, lines):
    """The parts, collectives and costliest operations of a step are in its unit, so that a small model's are no zeros."""

    def scaled(row: dict) -> dict:
        return row | {key: row[key] * scale for key in ("seconds", "exposed_s")}

    parts = {name: s * scale for name, s in REPORT["parts"].items()}
    tables = {name: [*map(scaled, REPORT[name])] for name in ("collectives", "rows")}
    planned = changed(modelled_step_s=17.5 * scale, parts=parts, calibrated_on=3, modelled_mfu_all_slots=None, **tables)
    text = as_text(planned).replace(NBSP, " ")
    words = " ".join(text.split())
    assert f"step {step}, MFU" in words and all(line in words for line in lines)
    unit = step.split()[1]
    assert f"all-to-all data 384 2887.10 1.90 {unit} 1.50 {unit} " in words
    assert f"2.90 {unit} matrix dot_general 1 " in words


def test_a_mixture_s_plan_shows_what_empty_slots_would_add():
    """Beside the figure that counts the experts of a token, with the error of published mixtures."""
    mixture = changed(
        modelled_mfu=0.032, modelled_mfu_all_slots=0.25, error_pct=20.0, expected_mfu=0.024, calibrated_on=3, remat="full"
    )
    text = Page(page(mixture)).text
    assert "3.2%" in text and "MFU, all slots" in text and "25.0%" in text
    lines = as_text(mixture)
    assert "MFU 0.032" in lines and "MFU would be 0.250" in lines
    assert "expected MFU 0.024 +-20 %: 3 published runs reached 0.75 of what was modelled" in lines
    row, dense = markdown([mixture, changed(modelled_mfu_all_slots=None, remat="full")])[2:]
    assert " | 0.032 | 0.250 | " in row and " | 0.601 |  | " in dense


def test_a_report_without_an_error_claims_none():
    """A page says so where a report has no published runs behind it."""
    text = Page(page(changed(error_pct=None, expected_mfu=None, calibrated_on=0))).text
    assert "error not calibrated" in text and "No published runs" in text and "Derated" not in text


def test_a_plan_says_what_lies_in_the_host_s_memory():
    """How much, of how much, and how long copies of it hold the step up."""
    parts = REPORT["parts"] | {"matrix": 12.53, "host": 2.0}
    offloading = changed(
        parts=parts,
        host_gib_per_chip=28.5,
        host_limit_gib=167.6,
        offload="layer_in",
        remat="full",
        calibrated_on=10,
        modelled_mfu_all_slots=None,
    )
    text = Page(page(offloading)).text
    assert "exposed copies from and to the host" in text and "28.50 GiB more lie in the host's memory" in text
    lines = as_text(offloading)
    assert "in the host's memory: 28.5 of 167.6 GiB a chip, offload=layer_in" in lines and "  host " in lines
    row, other = markdown([offloading, changed(remat="full", modelled_mfu_all_slots=None)])[2:]
    assert "| full, host layer_in |" in row and "| full |" in other
    assert "host's memory" not in Page(page(REPORT)).text
