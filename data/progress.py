"""Progress of long work on standard error: a bar on a terminal, elsewhere a line every ten seconds. `tqdm` draws both.

Commands call `show`; until then, with --json, and where tqdm's $TQDM_DISABLE is set, nothing is written. Work inside work that is
shown is not shown.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

REDRAWN, LINES = 0.1, 10.0
"""Seconds between two states of a bar, and between two lines; work that ends sooner writes no line."""

_state = {"shown": False, "busy": False}


def show(visible: bool = True) -> None:
    """Shows the progress of what follows in this process, or no longer."""
    _state["shown"] = visible


@contextlib.contextmanager
def bar(what: str, total: float | None, unit: str) -> Iterator[Callable[[float], Any]]:
    """Shows how much of some work is done, and the time that the remainder takes at this speed.

    Args:
      what: names the work, such as "scoring".
      total: the amount of work, which need not be exact; None where it is unknown, and then only what is done is shown.
      unit: in which it is counted, such as "examples"; "B" is written with prefixes.

    Yields:
      A function that is called with each amount that is done.
    """
    visible = shown() and not _state["busy"] and (total is None or total > 1)
    live = visible and sys.stderr.isatty()
    space = "" if unit == "B" else " "
    drawing = "|{bar:24}| " if live else ""
    form = f"{drawing}{{percentage:.0f}} %  {{n_fmt}}/{{total_fmt}}{space}{unit}  {{elapsed}}, {{remaining}} left"
    done = 0.0
    with _tqdm()(
        total=None if total is None else max(1, round(total)),
        file=sys.stderr if live else _Lines(sys.stderr),
        disable=not visible,
        leave=False,
        dynamic_ncols=True,
        mininterval=REDRAWN if live else LINES,
        delay=0 if live else LINES,
        miniters=0 if total is None else 1,
        unit_scale=unit == "B",
        bar_format=f"{what} {form}" if total is not None else f"{what} {{n_fmt}}{space}{unit}  {{elapsed}}",
    ) as drawn:

        def advance(amount: float) -> None:
            nonlocal done
            done += amount
            drawn.update((int(done) if drawn.total is None else min(int(done), drawn.total)) - drawn.n)

        busy, _state["busy"] = _state["busy"], _state["busy"] or visible
        try:
            yield advance
        finally:
            _state["busy"] = busy


def track(items: Sequence[T], what: str, unit: str) -> Iterator[T]:
    """Yields items one after the other, and shows how many are done; see `bar`."""
    with bar(what, len(items), unit) as advance:
        for item in items:
            yield item
            advance(1)


def shown() -> bool:
    """Returns whether progress is shown."""
    return _state["shown"] and not os.environ.get("TQDM_DISABLE")


def say(line: str) -> None:
    """Writes a line on standard error, above a bar that may be there."""
    _tqdm().write(line, file=sys.stderr)


@functools.cache
def _tqdm() -> Any:
    """Returns the class that draws; it is imported when something is drawn, because a command's --help must not wait for it."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread that redraws bars
    return tqdm


class _Lines:
    """A stream that makes a line of each state of a bar."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if state := text.strip():
            self._stream.write(f"{state}\n")

    def flush(self) -> None:
        self._stream.flush()
