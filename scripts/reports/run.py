"""Parts of a page about what happened to a run, from its logs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.reports.page import COLORS, Html, Part, escaped, picture, table

if TYPE_CHECKING:
    from trainers.monitoring.history import History, Start

PALETTE = ["#5aa469", "#8fb8de", "#2f6f9f", "#d9b44a", "#b39ddb", "#7fc8a9", "#a33", "#d98032", "#bbb"]  # steps, then losses
SHOWN = 40  # rows of a table, at most
_LONGEST = 1e9  # seconds that are shown


def parts(h: History) -> list[Part]:
    """Returns the parts; those about what a run does not have are empty."""
    return [
        ("Goodput", goodput_table(h) if h.goodput else "", "Of the time from the first start to the last sign of life."),
        ("Loss", picture(loss, h), "In nats. Dashed lines are restarts."),
        ("Throughput and gradients", picture(rates, h), ""),
        ("Scores", picture(scores, h) if h.scores else "", ""),
        ("Starts and ends", starts_table(h), "A step is lost if it was logged and then trained again."),
        ("Other events", notes_table(h) if h.notes else "", ""),
        (
            "Stalls",
            stalls_table(h),
            "Logged intervals more than three times as slow as the median, but for the first of a start.",
        ),
        ("Expert load", picture(expert_load, h) if h.loads else "", "Tokens of each expert over the mean: 1 is balanced."),
        ("Memory", picture(memory, h), "Peak of each host's fullest device, or of its process where none says."),
        (
            "Processes",
            processes_table(h) + _own(h),
            "A step's own time is without what a process waits for the rows of others; slow is more than 1.2 times the others'.",
        ),
        (
            "Devices",
            devices_table(h),
            "Late: the median time from the first device's end of a step to this one's; slow is more than a fifth of a step.",
        ),
        ("Hosts", hosts_table(h) + _waiting(h), "Waiting: for rows, as a share of the training time."),
    ]


def facts(h: History) -> str:
    """Returns the run's numbers in short."""
    lost = sum(start.lost for start in h.starts)
    slow = sum(stall.seconds for stall in h.stalls)
    values = {
        **({"goodput": f"{h.goodput.share:.1%}"} if h.goodput else {}),
        "last logged": h.seen[:19].replace("T", " "),
        "ran for": _duration(h.trained_s),
        "between starts": _duration(h.idle_s),
        "restarts": max(len(h.starts) - 1, 0),
        "steps lost": lost,
        "stalls": f"{len(h.stalls)}, {_duration(slow)}" if h.stalls else "none",
        f"{h.unit}/s, median": f"{h.rate:,.0f}",
        "hosts": len(h.hosts),
        **({"odd lines, left out": f"{h.left_out:,}"} if h.left_out else {}),
    }
    return f"<dl>{''.join(f'<div><dt>{escaped(k)}</dt><dd>{escaped(v)}</dd></div>' for k, v in values.items())}</dl>"


def _axes(figure: Any, h: History, count: int) -> Sequence[Any]:
    """Returns axes side by side over steps, with a line at each restart."""
    every = figure.subplots(1, count, squeeze=False)[0]
    for axes in every:
        for start in h.starts[1:]:
            axes.axvline(start.restored, color="#bbb", ls="--", lw=0.8)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    return every


def _line(axes: Any, lines: Sequence[Mapping[str, Any]], name: str, **style: Any) -> None:
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def loss(figure: Any, h: History) -> str:
    (axes,) = _axes(figure, h, 1)
    _line(axes, h.steps, "loss", color="#999", label="objective")
    _line(axes, h.steps, "cross_entropy", color=COLORS["high"], label="cross-entropy")
    axes.set(ylabel="loss", title="")
    axes.legend(frameon=False)
    return f"loss from {h.steps[0]['loss']} to {h.steps[-1]['loss']}"


def rates(figure: Any, h: History) -> str:
    left, right = _axes(figure, h, 2)
    _line(left, h.steps, f"{h.unit}_per_s", color=COLORS["middle"])
    left.set(ylabel=f"{h.unit} per second", ylim=(0, None))
    _line(right, h.steps, "gradient_norm", color=COLORS["low"], label="gradient norm")
    _line(right, h.steps, "learning_rate", color=COLORS["high"], label="learning rate")
    right.set_yscale("log")
    right.legend(frameon=False)
    return f"{h.unit} per second, norm of the gradient and learning rate"


def scores(figure: Any, h: History) -> str:
    """Draws the evaluation's scores, at most four."""
    names = h.score_names[:4]
    for axes, name in zip(_axes(figure, h, len(names)), names, strict=True):
        _line(axes, h.scores, name, color=COLORS["high"], marker=".")
        axes.set_title(name.removeprefix("eval/"), fontsize=10)
    return f"scores: {', '.join(names)}"


def expert_load(figure: Any, h: History) -> str:
    names, lines = h.loads, h.load_lines
    every = figure.subplots(1, len(names), squeeze=False)[0]
    image = None
    for axes, name in zip(every, names, strict=True):
        image = _heat(axes, lines, name, cmap="RdBu_r", vmin=0, vmax=2)
        axes.set_title(name.removeprefix("moe/load_"), fontsize=10)
        axes.set_xlabel("step")
    every[0].set_ylabel("expert")
    figure.colorbar(image, ax=list(every), label="load over mean")
    return f"load of {len(lines[-1][names[-1]])} experts over time"


def _heat(axes: Any, lines: Sequence[Mapping[str, Any]], name: str, **style: Any) -> Any:
    """Draws a list of numbers of each line as colours over steps."""
    values = list(zip(*(line[name] for line in lines), strict=True))
    extent = (lines[0]["step"], lines[-1]["step"] + 1, len(values) - 0.5, -0.5)
    return axes.imshow(values, aspect="auto", interpolation="nearest", extent=extent, **style)


def memory(figure: Any, h: History) -> str:
    (axes,) = _axes(figure, h, 1)
    _line(axes, h.steps, "memory_gib", color="#999", label="process 0")
    if h.host_lines:
        by_step = [{"step": line["step"], "most": max(line["memory_gib"])} for line in h.host_lines]
        _line(axes, by_step, "most", color=COLORS["low"], label="fullest host")
    axes.set(ylabel="GiB", ylim=(0, None))
    axes.legend(frameon=False, loc="lower right")
    return "memory over steps"


def waiting(figure: Any, h: History) -> str:
    """Draws the seconds that each host waited for rows, between logged steps."""
    lines = [line for line in h.host_lines if len(line["waited_s"]) == len(h.hosts)]
    axes = figure.subplots()
    image = _heat(axes, lines, "waited_s", cmap="Oranges", vmin=0)
    axes.set(xlabel="step", ylabel="process")
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axes, label="s waiting for rows")
    return "seconds that each process waited for rows"


def _waiting(h: History) -> str:
    several = len(h.hosts) > 1 and any(len(line["waited_s"]) == len(h.hosts) for line in h.host_lines)
    return picture(waiting, h, size=(9, 2.6)) if several else ""


def goodput_table(h: History) -> str:
    """Returns a bar of the parts of the run's time, and the same as a table."""
    from trainers.monitoring.goodput import LOSSES, STEPS

    assert h.goodput is not None
    parts = [(STEPS, h.goodput.share), *h.goodput.losses()]
    color = {name: PALETTE[at % len(PALETTE)] for at, name in enumerate((STEPS, *LOSSES))}
    pieces = "".join(f'<span style="width:{share:.2%};background:{color[name]}"></span>' for name, share in parts)
    notes = {STEPS: f"{h.goodput.steps:,} steps that were not lost"} | LOSSES
    rows = [
        [
            Html(f'<span style="color:{color[name]}">&#9632;</span>&nbsp;{escaped(name)}'),
            _duration(h.goodput.seconds[name]),
            f"{share:.1%}",
            notes[name],
        ]
        for name, share in parts
    ]
    return f'<div class="bar">{pieces}</div>' + _table(["", "time", "share", ""], rows, {1, 2})


def own_times(figure: Any, h: History) -> str:
    """Draws the own time of each process's steps, between logged steps."""
    from trainers.monitoring import health

    lines = health.own_times(h.host_lines, len(h.hosts))
    axes = figure.subplots()
    image = _heat(axes, lines, "own_s", cmap="Reds", vmin=0)
    axes.set(xlabel="step", ylabel="process")
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axes, label="s of own time a step")
    return "own time of each process's steps"


def _own(h: History) -> str:
    from trainers.monitoring import health

    several = len(h.hosts) > 1 and health.own_times(h.host_lines, len(h.hosts))
    return picture(own_times, h, size=(9, 2.6)) if several else ""


def processes_table(h: History) -> str:
    from trainers.monitoring import health

    def row(number: int, process: health.Process) -> list[str]:
        numbers = [f"{1000 * process.own:,.1f}", f"{process.idle:,.1f}", f"{process.waited:,.1f}", f"{1000 * process.cpu:,.1f}"]
        return [str(number), h.hosts[number], *numbers, _slow(process.slow)]

    every = sorted(enumerate(health.processes_of(h.host_lines, len(h.hosts))), key=lambda item: -item[1].own)
    head = ["process", "host", "own ms/step", "s without rows", "s for others' rows", "CPU ms/step", ""]
    return _table(head, [row(*item) for item in every], {0, 2, 3, 4, 5}) if every else ""


def devices_table(h: History) -> str:
    from trainers.monitoring import health

    def row(number: int, device: health.Device) -> list[str]:
        gib = [] if device.gib is None else [f"{device.gib:.2f}"]
        late = [] if device.late is None else [f"{1000 * device.late:,.1f}"]
        return [str(number), str(device.process), h.hosts[device.process], *gib, *late, _slow(device.slow)]

    every = sorted(enumerate(health.devices_of(h.host_lines, len(h.hosts))), key=lambda item: -(item[1].late or 0.0))
    if not every:
        return ""
    slowest = every[0][1]  # of all devices alike
    gib, late = ["GiB"] * (slowest.gib is not None), ["late, ms"] * (slowest.late is not None)
    return _table(
        ["device", "process", "host", *gib, *late, ""], [row(*item) for item in every], {0, 1, *range(3, 3 + len(gib + late))}
    )


def _slow(slow: bool) -> str:
    return Html('<span class="bad">slow</span>') if slow else ""


def starts_table(h: History) -> str:
    from trainers.monitoring.history import ENDS

    def row(start: Start) -> list[str]:
        code = start.exit_code
        end = start.silence if code is None else ENDS.get(code, f"exit code {code}")
        error = f'<br><span class="bad">{escaped(start.error)}</span>' if start.error else ""
        return [
            start.time[:19].replace("T", " "),
            start.host,
            f"{start.restored:,}",
            f"{start.last:,}",
            Html(escaped(end) + error),
            f"{start.lost:,}",
        ]

    return _table(["started", "on", "at step", "last step", "end", "steps lost"], [row(s) for s in h.starts], {2, 3, 5})


def notes_table(h: History) -> str:
    rows = [[time[:19].replace("T", " "), name, text[:200]] for time, name, text in h.notes]
    return _table(["at", "event", ""], rows, set())


def stalls_table(h: History) -> str:
    if not h.stalls:
        return "<p>none</p>"
    worst = sorted(h.stalls, key=lambda stall: -stall.seconds)
    rows = [[f"{s.step:,}", f"{s.per_step:.2f}", _duration(s.seconds), s.waited_most or "no host waited for rows"] for s in worst]
    return _table(["before step", "s/step", "time lost", "most waiting for rows"], rows, {0, 1, 2})


def hosts_table(h: History) -> str:
    rows = []
    for number, name in enumerate(h.hosts):
        mine = [line for line in h.host_lines if len(line["waited_s"]) > number]
        waited = sum(line["waited_s"][number] for line in mine)
        peak = max((line["memory_gib"][number] for line in mine), default=0.0)
        share = waited / h.trained_s if h.trained_s else 0.0
        rows.append([str(number), name, f"{len(mine):,}", f"{waited:.1f}", f"{share:.1%}", f"{peak:.2f}"])
    rows.sort(key=lambda row: -float(row[3]))
    return _table(["process", "host", "logged", "s waiting", "waiting", "GiB"], rows, {0, 2, 3, 4, 5})


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[int]) -> str:
    """Returns a table of the first SHOWN rows; the columns of `numbers` are aligned to the right."""
    more = f'<p class="note">and {len(rows) - SHOWN:,} more</p>' if len(rows) > SHOWN else ""
    return table(head, rows[:SHOWN], numbers) + more


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(min(seconds, _LONGEST))))
