"""Progress on standard error: whether, where and in which form it is shown."""

import io
import sys

import pytest

from data import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream(monkeypatch):
    """Sets standard error, and shows progress; every state is written at once."""

    def of(made: io.StringIO) -> io.StringIO:
        monkeypatch.setattr(sys, "stderr", made)
        for name in ("REDRAWN", "LINES"):
            monkeypatch.setattr(progress, name, 0)
        monkeypatch.setitem(progress._state, "shown", True)
        monkeypatch.delenv("TQDM_DISABLE")
        return made

    return of


def test_a_terminal_has_a_line_that_is_rewritten_and_goes(stream):
    """The states follow each other on one line, which is empty in the end."""
    err = stream(Terminal())
    assert list(progress.track(range(4), "scoring", "examples")) == [0, 1, 2, 3]
    states = err.getvalue().split("\r")
    assert "\n" not in err.getvalue() and not states[-1].strip() and not states[-2].strip()
    for count in range(5):
        assert any("scoring |" in state and f"{25 * count} %  {count}/4 examples  00:00, " in state for state in states)


def test_a_file_has_lines(stream):
    """Without a terminal nothing is rewritten: each state is a line, without a bar."""
    err = stream(io.StringIO())
    with progress.bar("writing weights", 2e6, "B") as advance:
        advance(0.5e6)
        advance(3e6)  # more than was expected
    first, *_, last = err.getvalue().splitlines()
    assert first.startswith("writing weights 0 %  0.00/2.00MB  00:00, ")
    assert last.startswith("writing weights 100 %  2.00M/2.00MB")
    assert "\r" not in err.getvalue() and "|" not in err.getvalue()


def test_short_work_writes_no_line_to_a_file(stream, monkeypatch):
    """The first line comes after ten seconds of a clock."""
    err = stream(io.StringIO())
    monkeypatch.setattr(progress, "LINES", 10.0)
    now = [0.0]
    tqdm = progress._tqdm()
    monkeypatch.setattr(tqdm, "__init__", _with_clock(tqdm.__init__, lambda: now[0]))
    with progress.bar("scoring", 100, "examples") as advance:
        for _ in range(100):
            now[0] += 0.25
            advance(1)
    lines = err.getvalue().splitlines()
    assert [line.partition("  ")[0] for line in lines] == ["scoring 40 %", "scoring 80 %"]
    assert lines[0].endswith("00:10, 00:15 left")


def _with_clock(init, clock):
    """Returns a constructor that replaces a bar's clock."""

    def made(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self._time, self.start_t, self.last_print_t = clock, clock(), clock()

    return made


def test_nothing_is_shown_inside_work_that_is_shown_or_unasked(stream, monkeypatch):
    """One bar at a time; a single piece of work has no progress; and none is shown before a command asks for it."""
    err = stream(Terminal())
    for _ in progress.track(range(2), "outer", "files"):
        list(progress.track(range(3), "inner", "windows"))
    assert "outer" in err.getvalue() and "inner" not in err.getvalue()
    list(progress.track(range(2), "later", "files"))
    assert "later" in err.getvalue()
    list(progress.track(range(1), "single", "prompts"))
    progress.show(False)
    list(progress.track(range(3), "unasked", "files"))
    assert "single" not in err.getvalue() and "unasked" not in err.getvalue()


def test_a_line_stands_above_a_bar(stream):
    """It is written whole, and the bar again below it."""
    err = stream(Terminal())
    with progress.bar("transcribing", 60, "s of sound") as advance:
        advance(30.5)
        progress.say("error: a.wav: no sound")
        advance(30)
    shown = err.getvalue()
    assert "\rerror: a.wav: no sound\n" in shown and "60/60 s of sound" in shown.partition("no sound")[2]
