"""A run's history is read from its logs, and drawn as a page."""

import fcntl
import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from configs.registry import ConfigError
from models.errors import UserError
from scripts import report
from scripts.reports import page, run
from trainers import runlog
from trainers.monitoring import history


def lines(path: Path, *values: dict) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def at(second: int) -> str:
    return f"2026-01-02T03:{second // 60:02d}:{second % 60:02d}.000+00:00"


@pytest.fixture
def workdir(tmp_path) -> Path:
    """Three starts: preempted at step 2, killed after step 8 with a save at 6, then at work; step 6 took 21 s instead of 1 s."""
    start = {"event": "start", "experiment": "a.b", "host": "one"}
    lines(
        tmp_path / "run.jsonl",
        {**start, "time": at(0), "restored": None},
        {"event": "stop", "time": at(10), "step": 2, "exit_code": runlog.PREEMPTED},
        {**start, "time": at(30), "restored": 2},
        {**start, "time": at(100), "restored": 6},
        {"event": "rewind", "time": at(112), "to": 6},
        {
            "event": "goodput",
            "time": at(113),
            "since": 1767323000.5,
            "step": 8,
            "steps": 2,
            "seconds": {"steps": 2.0, "data": 1.0},
        },
    )
    seen = [(2, 9), (4, 40), (6, 80), (8, 90), (8, 110), (10, 115)]
    steps = [{"time": at(t), "step": n, "waited_s": [0.1, 38.0 if n == 6 else 0.2], "memory_gib": [1.0, 2.0]} for n, t in seen]
    of_processes = {"steps": 2, "busy_s": [1.0, 1.0], "idle_s": [0.0, 1.0], "cpu_s": [0.5, 0.5]}
    steps[-1] |= of_processes | {"late_s": [0.0, 0.1, 0.0, 0.2], "device_gib": [1.0, 1.0, 2.0, 2.0]}
    lines(tmp_path / "hosts.jsonl", {"time": at(1), "hosts": ["one", "<two>"]}, *steps)
    rates = {2: 100, 4: 100, 6: 100 / 21, 8: 100, 10: 100}
    lines(
        tmp_path / "metrics.jsonl",
        *(
            {
                "step": n,
                "loss": 3.0 - n / 10,
                "tokens": 100,
                "tokens_per_s": rate,
                "gradient_norm": 1.0,
                "learning_rate": 1e-3,
                "memory_gib": 1.0,
                "moe/load_decoder": [1.5, 0.5],
            }
            for n, rate in rates.items()
        ),
        {"step": 10, "eval/cross_entropy": 2.5},
    )
    return tmp_path


def test_lost_steps_stalls_and_times_are_those_of_the_logs(workdir):
    h = history.read(workdir)
    assert [(s.restored, s.last, s.exit_code, s.lost) for s in h.starts] == [(0, 2, 75, 0), (2, 8, None, 2), (6, 10, None, 0)]
    assert (h.trained_s, h.idle_s) == (10 + 60 + 15, 20 + 10)
    (stall,) = h.stalls  # two steps, 20 s longer than usual
    assert (stall.step, round(stall.per_step), round(stall.seconds)) == (6, 21, 40)
    assert stall.waited_most == "process 1 on <two>: 38.0 s"
    assert h.state == "killed: no word of its end" and h.loads == ["moe/load_decoder"]


def test_a_folder_in_use_is_running(workdir):
    with (workdir / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert history.read(workdir).state == "running"


def test_the_page_is_one_file_and_names_hosts_safely(workdir):
    """Every part is there, nothing is loaded from elsewhere, and a host's name is no markup."""

    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.headings, self.sources, self.text = 0, [], ""

        def handle_starttag(self, tag, attrs):
            self.headings += tag == "h2"
            self.sources += [value for name, value in attrs if name in ("src", "href")]

        def handle_data(self, data):
            self.text += data

    tags = Tags()
    tags.feed(report.write(workdir).read_text())
    assert tags.headings == 12 and all(source.startswith("data:image/png") for source in tags.sources)
    assert "stopped by a signal, saved" in tags.text and "<two>" in tags.text and "rewindto=6" in tags.text


def test_a_run_without_scores_or_experts_has_no_pictures_of_them(workdir):
    kept = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()][:5]
    lines(workdir / "metrics.jsonl", *({k: v for k, v in line.items() if "moe" not in k} for line in kept))
    text = report.write(workdir).read_text()
    assert text.count("<h2>") == 10 and "Expert load" not in text


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run has logged a step"):
        report.write(tmp_path)
    assert not list(tmp_path.iterdir())


HOSTILE: tuple[Any, ...] = (
    "<script src=//a.b>",
    "2026-01-02T03:00:00<script>",
    '"><script>',
    "a\ud800<script>",
    None,
    True,
    -1,
    2**70,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    [],
    ["<script>"],
    {"<script>": "<script>"},
    [[]],
    "x" * 10**5,
    "$\\frac$",
    "9999-99-99",
)


def places(workdir: Path) -> list[tuple[str, int, str | None]]:
    """Every value in every log: (file, line, key), and lines as a whole; of lines with the same keys those of the last."""
    last: dict[tuple[str, ...], int] = {}
    for file in ("run.jsonl", "hosts.jsonl", "metrics.jsonl"):
        for number, line in enumerate(map(json.loads, (workdir / file).read_text().splitlines())):
            last[file, *line] = number
    return [(file, number, key) for (file, *keys), number in last.items() for key in (*keys, None)]


def changed(text: str, number: int, key: str | None, value: Any, *, named: bool) -> str:
    """Returns a log in which a value, or its name, or a whole line is another."""
    written = [json.loads(line) for line in text.splitlines()]
    if key is None:
        written[number] = value
    elif named:
        written[number] = {(str(value) if name == key else name): x for name, x in written[number].items()}
    else:
        written[number][key] = value
    return "".join(json.dumps(line) + "\n" for line in written)


class Markup(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes = set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.integration
def test_no_value_of_a_folder_becomes_markup_or_a_traceback(workdir, monkeypatch):
    """Each value and each name in the logs in turn is each of many others: the page is written or refused in one line, holds no
    tag or attribute that a sound one has not, and says how many lines are left out."""
    monkeypatch.setattr(run, "picture", lambda draw, data, size=(9, 3.4): page.escaped(draw(Undrawn(), data)))
    sound = Markup(report.write(workdir).read_text())
    for file, number, key in places(workdir):
        text = (workdir / file).read_text()
        for value, named in (*((value, False) for value in HOSTILE), *((value, True) for value in HOSTILE[:4])):
            (workdir / file).write_text(changed(text, number, key, value, named=named))
            try:
                text_of_page = report.write(workdir).read_text()
            except UserError as error:
                assert len(str(error).splitlines()) == 1
                continue
            markup = Markup(text_of_page)
            assert markup.tags <= sound.tags and markup.attributes <= sound.attributes, (file, number, key, value)
            assert "<script" not in text_of_page
        (workdir / file).write_text(text)


class Undrawn:
    """Stands for a figure and what is on it: of what is drawn only the numbers are computed."""

    def subplots(self, rows: int = 1, columns: int = 1, squeeze: bool = True) -> Any:
        return Undrawn() if squeeze else [[Undrawn()] * columns] * rows

    def __getattr__(self, name: str) -> Any:
        return Undrawn()

    def __getitem__(self, at: Any) -> Any:
        return Undrawn()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Undrawn()


def test_drawn_pictures_take_whatever_is_left(workdir):
    """Odd names and numbers in the logs of metrics are left out of the pictures too, which are drawn, and counted."""
    first = {"step": 1, "loss": 3.0, "moe/load_decoder": [1.0], "$\\frac$_per_s": 3.0, "eval/a/b": 1.0, "eval/$x$": 2.0}
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    lines(workdir / "metrics.jsonl", first, *rows, {"step": 11, "loss": "low", "eval/a/b": 1.0}, {"step": 10**400, "loss": 1.0})
    text = report.write(workdir).read_text()
    assert "odd lines, left out</dt><dd>3<" in text and "Expert load" in text
    assert history.read(workdir).unit == "tokens"


def test_a_log_that_is_no_file_is_refused(workdir):
    """A pipe is not waited for."""
    for name in ("metrics.jsonl", "run.jsonl", "hosts.jsonl", ".lock"):
        (workdir / name).rename(workdir / "kept") if (workdir / name).exists() else (workdir / "kept").touch()
        os.mkfifo(workdir / name)
        with pytest.raises(ConfigError, match=f"{name} is no regular file"):
            report.write(workdir)
        (workdir / name).unlink()
        (workdir / "kept").rename(workdir / name)
