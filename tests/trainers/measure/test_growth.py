"""Curves of cost: their experiments are valid and vary in one size alone, their arithmetic is by hand, and each really runs."""

import dataclasses
from typing import Any

import pytest

from configs import registry
from trainers.measure import growth
from trainers.measure.growth import CURVES
from trainers.plan import make_plan

FIELDS = {
    "batch": {"data.batch_size"},
    "length": {"data.batch_size", "data.length"},
    "experts": {"model.moe.experts.count"},
    "layers": {"model.layers"},
    "devices": {"layout.mesh.data"},
}
POINT = {"step_ms": 4.0, "optimizer_ms": 1.0, "gradients_ms": 3.0, "tokens_per_s": 5e4, "compile_s": 4.0} | {
    "host_ms": 4.0,
    "batch_ms": 1.0,
    "wall_ms": 9.0,
}


def faked(name: str, *growth: float) -> growth.Curve:
    """The curve with so many of its points; their times are those of POINT, so many times."""

    def measure(experiments, rounds):
        assert len(experiments) == len(growth) and rounds == 7
        return [{key: g * POINT[key] for key in CURVES[name].columns} for g in growth]

    return dataclasses.replace(CURVES[name], sizes=CURVES[name].sizes[: len(growth)], measure=measure)


@pytest.mark.parametrize("curve", CURVES.values(), ids=lambda c: c.name)
def test_a_curve_varies_one_size(curve):
    """Every point is a valid experiment that fits its layout; only what the curve is about differs, and the sizes increase."""
    first, *others = [curve.experiment(n) for n in curve.sizes]
    assert list(curve.sizes) == sorted(set(curve.sizes)) and others
    for e in others:
        assert {line.split(":")[0] for line in registry.differences(first, e)} == FIELDS[curve.name]
    for e in (first, others[-1]):
        make_plan(e, abstract=True)


def test_lengths_have_the_same_tokens():
    """A row is as many times longer as there are fewer rows."""
    data: list[Any] = [CURVES["length"].experiment(n).data for n in CURVES["length"].sizes]
    assert {d.batch_size * d.length for d in data} == {2048} and [d.length for d in data] == list(CURVES["length"].sizes)


def test_ratios_and_goals():
    """Ratios are to the first point, goals are in the column's unit: so many times the first, or a figure of their own."""
    points = growth.measure(faked("experts", 1.0, 1.1, 1.5), 7)
    assert [p["size"] for p in points] == [8, 16, 32]
    assert [p["ratio"] for p in points] == pytest.approx([1, 1.1, 1.5])
    assert [p["goal"] for p in points] == [5.0, 5.0, 5.0]
    assert growth.claim(CURVES["experts"], points) == "experts 8 -> 32: 1.50x (goal: at most 1.25x)"
    points = growth.measure(faked("devices", 0.25, 0.5, 0.375), 7)
    assert [p["goal"] for p in points] == [2.0, 2.0, 2.0]
    assert growth.claim(CURVES["devices"], points) == "devices 2 -> 8: 2.00 ms at most (goal: at most 2 ms)"


def test_goals_follow_flops():
    """Twice the rows may take twice the time; rows twice as long, half as many, take a little more, which is attention's."""
    rows = growth.measure(faked("batch", 1.0, 1.5), 7)
    assert [p["goal"] for p in rows] == [4.0, 8.0]
    short, long = (p["goal"] for p in growth.measure(faked("length", 1.0, 1.0), 7))
    assert short == 4.0 < long < 1.1 * short


def test_a_table_is_read_as_text_and_as_markdown():
    """A line a point, columns aligned, with the claim below; a report has both and says each curve once."""
    said: list[str] = []
    result = growth.report([faked("batch", 1.0, 1.5), faked("layers", 1.0, 1.0, 1.05)], 7, said.append)
    assert [text.splitlines() for text in said] == [
        [
            "| rows of 128 tokens | step, ms | tokens/s | ratio |",
            "| -----------------: | -------: | -------: | ----: |",
            "|                  1 |     4.00 |   50,000 |  1.00 |",
            "|                  2 |     6.00 |   75,000 |  1.50 |",
            "",
            "batch 1 -> 2: 1.50x (goal: at most 2x, as the model's FLOPs)",
        ],
        [
            "| layers | compiling, s | ratio |",
            "| -----: | -----------: | ----: |",
            "|      2 |         4.00 |  1.00 |",
            "|      4 |         4.00 |  1.00 |",
            "|      8 |         4.20 |  1.05 |",
            "",
            "layers 2 -> 8: 1.05x (goal: at most 1.1x, flat)",
        ],
    ]
    assert list(result["curves"]) == ["batch", "layers"] and len(result["curves"]["layers"]["points"]) == 3


def test_sizes_beyond_the_devices_are_left_out():
    """Sizes of 4, 8 and 16 give two points where there are eight devices."""
    curve = dataclasses.replace(faked("devices", 1.0, 1.0), sizes=(4, 8, 16))
    assert [p["size"] for p in growth.measure(curve, 7)] == [4, 8]


@pytest.mark.integration
@pytest.mark.nightly
def test_tiny_points_are_measured():
    """Real steps, one round of each kind: all columns are there."""
    e = registry.tiny(registry.load("gshard_m4.bench_67m"))
    (point,) = growth.step_and_optimizer_times([e], 1)
    assert point.keys() == CURVES["experts"].columns.keys() and point["optimizer_ms"] > 0
    e = growth.tiny_gpt(2)
    (point,) = growth.host_times([e], 1)
    assert point.keys() == CURVES["devices"].columns.keys() and 0 < point["batch_ms"] < point["host_ms"]
    (point,) = growth.step_times([e], 1)
    assert point.keys() == CURVES["batch"].columns.keys() and min(point.values()) > 0
    (point,) = growth.compile_times([e], 1)
    assert point["compile_s"] > 0
