"""A slow process or device is told from the others by the lines of hosts.jsonl."""

from typing import Any

import pytest

from scripts.reports import run
from trainers.monitoring import health, history
from trainers.monitoring.health import Device

# Ten steps a line, of two processes with two devices each; the second waits for its rows for eight seconds of ten.
LINE: dict[str, Any] = {
    "step": 10,
    "steps": 10,
    "waited_s": [0.0, 8.0],
    "memory_gib": [1.0, 1.0],
    "busy_s": [10.0, 2.0],
    "idle_s": [0.0, 8.0],
    "cpu_s": [3.0, 1.0],
    "late_s": [0.0, 0.001, 0.0, 0.3],
    "device_gib": [5.0, 6.0, 5.0, 5.5],
}


def test_who_reads_slowly_is_slow_and_the_others_wait():
    """Both take ten seconds for ten steps; the first has waited for eight of them."""
    first, second = health.processes_of([LINE, LINE, LINE | {"step": 40, "idle_s": [0.0, 0.0], "busy_s": [2.0, 2.0]}], 2)
    assert (first.own, first.waited, first.idle, first.cpu, first.slow) == (0.2, 16, 0, 0.3, False)
    assert (second.own, second.waited, second.idle, second.cpu, second.slow) == (1.0, 0, 16, 0.1, True)
    assert [line["own_s"] for line in health.own_times([LINE], 2)] == [[0.2, 1.0]]


def test_equal_processes_are_not_slow():
    line = LINE | {"idle_s": [1.0, 1.5], "busy_s": [9.0, 8.5]}
    assert [process.slow for process in health.processes_of([line], 2)] == [False, False]


def test_a_device_that_ends_its_steps_late_is_slow():
    """By more than a fifth of a step: 0.3 s of 1.0 s, but not of 10 s."""
    assert health.devices_of([LINE], 2) == [
        Device(process=0, gib=5.0, late=0.0, slow=False),
        Device(process=0, gib=6.0, late=0.001, slow=False),
        Device(process=1, gib=5.0, late=0.0, slow=False),
        Device(process=1, gib=5.5, late=0.3, slow=True),
    ]
    assert not any(device.slow for device in health.devices_of([LINE | {"steps": 1}], 2))


def test_nothing_is_said_of_what_no_line_tells():
    """Lines of older trainers, or of another number of processes, and devices of a backend that does not tell their memory."""
    old = {name: LINE[name] for name in ("step", "waited_s", "memory_gib")}
    assert health.processes_of([old], 2) == [] == health.devices_of([old], 2)
    assert health.processes_of([LINE], 4) == [] == health.devices_of([LINE], 4)
    untold = {name: x for name, x in LINE.items() if name not in health.OF_DEVICE}
    assert health.devices_of([untold], 2) == [] and len(health.processes_of([untold], 2)) == 2
    assert [device.gib for device in health.devices_of([untold | {"late_s": [0.0] * 4}], 2)] == [None] * 4


@pytest.mark.parametrize(
    "broken",
    [{"busy_s": [1.0]}, {"cpu_s": "much"}, {"idle_s": [0.0, None]}, {"late_s": [1.0, 2.0, 3.0]}, {"steps": -1}, {"late_s": []}],
)
def test_lines_of_other_types_are_not_read(broken):
    assert health.is_sound(LINE) and not health.is_sound(LINE | broken)


def test_the_page_marks_them():
    """The tables begin with the slowest."""
    h = history.History(
        **{"experiment": "", "state": "", "steps": [], "scores": [], "starts": [], "stalls": [], "hosts": ["one", "<two>"]},
        **{"host_lines": [LINE], "notes": [], "unit": "", "rate": 0.0, "left_out": 0, "goodput": None},
    )
    first, second = run.processes_table(h).split("<tr>")[2:]
    assert "&lt;two&gt;" in first and ">1,000.0<" in first and ">slow<" in first and ">8.0<" in second and "slow" not in second
    first, *others = run.devices_table(h).split("<tr>")[2:]
    assert ">300.0<" in first and ">slow<" in first and len(others) == 3 and not any("slow" in row for row in others)
