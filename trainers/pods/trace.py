"""The timeline of a pod plan as trace events, which ui.perfetto.dev and chrome://tracing open.

The format is Chrome's Trace Event Format: one process for the chip, a thread for each unit that works on its own, complete events
("ph": "X") with times in microseconds. Transfers that run at the same time lie on threads of their own, as spans of a thread may
not overlap.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Lane:
    """Spans of one unit: their name, and the height and colour that the page draws them in."""

    name: str
    height: int
    color: str


LANES = {
    "matrix": Lane("matrix units", 24, "matrix"),
    "vector": Lane("vector units", 24, "vector"),
    "kernel": Lane("kernels", 24, "kernel"),
    "wait": Lane("waits", 12, "communication"),
    "links": Lane("links", 12, "links"),
    "dma": Lane("DMA", 8, "memory"),
    "host": Lane("host link", 8, "host"),
}

Span = Mapping[str, Any]


def trace(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spans and windows of a report (see trainers/pods/page.py) as a JSON object of trace events."""
    spans = report.get("spans") or ()
    lanes = {"parts of the step": list(report.get("windows") or ())}
    lanes |= {lane.name: [span for span in spans if span["lane"] == key] for key, lane in LANES.items()}
    about = f"{report['experiment']} on {report['topology']}"
    events = [_metadata("process_name", 0, {"name": f"one chip of {about}, modelled"})]
    threads = [(lane, number, track) for lane, own in lanes.items() for number, track in enumerate(tracks(own), 1)]
    for thread, (lane, number, track) in enumerate(threads):
        events.append(_metadata("thread_name", thread, {"name": lane if number == 1 else f"{lane} {number}"}))
        events.append(_metadata("thread_sort_index", thread, {"sort_index": thread}))
        events += [_complete(span, thread) for span in track]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"about": f"{about}: modelled, not measured"}}


def _metadata(name: str, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": thread, "name": name, "args": arguments}


def _complete(span: Span, thread: int) -> dict[str, Any]:
    start, end = nanoseconds(span)
    loops = {name: f"iteration {iteration + 1} of {trips}" for name, iteration, trips in span.get("loops") or ()}
    name, kind = span.get("label") or span["lane"], span.get("kind") or ""
    times = {"ts": start / 1e3, "dur": (end - start) / 1e3}
    return {"ph": "X", "pid": 0, "tid": thread, "name": name, "cat": kind, **times, "args": {"kind": kind, **loops}}


def nanoseconds(span: Span) -> tuple[int, int]:
    """Returns start and end as whole nanoseconds, so that neighbours do not overlap by a rounding error."""
    return round(1e9 * span["start"]), round(1e9 * span["end"])


def tracks(spans: Iterable[Span]) -> list[list[Span]]:
    """Returns spans on tracks on which they do not overlap: each, in the order of time, is on the first that is free."""
    result: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span["start"]):
        track = next((track for track in result if nanoseconds(track[-1])[1] <= nanoseconds(span)[0]), None)
        if track is None:
            result.append(track := [])
        track.append(span)
    return result
