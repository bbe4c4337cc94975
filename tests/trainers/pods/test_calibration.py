"""The error of modelled figures: that of predicting published runs which the correction has not seen."""

import json
from typing import Any

import pytest

from models.sharding import torus
from models.sharding.layout import LayoutError
from scripts import plan
from trainers.pods import calibration
from trainers.pods.points import POINTS
from trainers.runtime.chips import PodError, parse_slice


def rows(*points: tuple[str, str, float]) -> list[calibration.Row]:
    """Lines of the table from (slice, group, published over modelled)."""
    return [
        {"name": str(i), "topology": slice, "group": group, "published_mfu": ratio / 2, "modelled_mfu": 0.5, "mixture": False}
        for i, (slice, group, ratio) in enumerate(points)
    ]


V4 = rows(("v4:2x2x1", "A", 0.8), ("v4:2x2x1", "A", 0.9), ("v4:2x2x1", "B", 1.0))
BOTH = rows(("v4:2x2x1", "A", 0.8), ("v4:2x2x1", "A", 0.9), ("v4:2x2x1", "B", 1.0), ("v5e:2x2", "A", 1.2), ("v5e:2x2", "B", 1.1))


def test_a_held_out_point_is_predicted_from_the_others():
    """Runs are at 0.8, 0.9 and 1.0 of their modelled figures: the first is predicted at 0.95, 18.75 % too much, the second
    at 0.9, which is right, and the third at 0.85, 15 % too little."""
    # Two others are fewer than a generation needs, but here they are all points that there are.
    assert [calibration.held_out(row, V4) for row in V4] == pytest.approx([0.1875, 0.0, -0.15])


def test_a_group_is_held_out_as_a_whole():
    """Both runs of A are predicted from B's at 1.0; without B's, A's at 0.85."""
    errors = [calibration.held_out(row, V4, without="group") for row in V4]
    assert errors == pytest.approx([0.25, 1 / 0.9 - 1, -0.15])


def test_the_error_is_the_root_mean_square_of_held_out_points(tmp_path, monkeypatch):
    """The factor is from all points of a generation, the error from points left out. A generation with fewer than three has the
    factor of all, and the error of points that are predicted without their generation."""
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    monkeypatch.setattr(calibration, "POINTS", dict.fromkeys("01234"))
    calibration.FILE.write_text(json.dumps({"points": BOTH}))
    result = calibration.error("v5e")
    assert (result.points, result.factor) == pytest.approx((5, 1.0))
    # v4's points are predicted from v5e's, whose mean is 1.15, and v5e's from v4's.
    off = [1.15 / 0.8 - 1, 1.15 / 0.9 - 1, 1.15 / 1.0 - 1, 0.9 / 1.2 - 1, 0.9 / 1.1 - 1]
    assert result.held_out_pct == pytest.approx(100 * (sum(x**2 for x in off) / 5) ** 0.5)
    # Of v4's three, two others are too few to predict the third: all four others do.
    off = [1.05 / 0.8 - 1, 1.025 / 0.9 - 1, 1.0 / 1.0 - 1]
    assert calibration.error("v4").held_out_pct == pytest.approx(100 * (sum(x**2 for x in off) / 3) ** 0.5)
    assert calibration.error("v4").factor == pytest.approx(0.9)
    assert calibration.error("v4").points == 3
    assert calibration.rms([0.3, -0.4]) == pytest.approx(100 * 0.125**0.5)


def test_mixtures_are_a_kind_of_their_own(tmp_path, monkeypatch):
    """Three mixtures on whatever chips have a factor of their own, which no dense model's uses; fewer have the dense models'."""
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    monkeypatch.setattr(calibration, "POINTS", dict.fromkeys("01234567"))
    mixtures = [row | {"mixture": True} for row in rows(("v4:2x2x1", "A", 0.5), ("v5p:2x2x1", "A", 0.6), ("v6e:2x2", "A", 0.7))]
    table = [*BOTH, *(row | {"name": str(i)} for i, row in enumerate(mixtures, len(BOTH)))]
    calibration.write(table)
    assert calibration.error(calibration.MIXTURE).factor == pytest.approx(0.6)
    assert calibration.error("v4").factor == pytest.approx(0.9)
    assert calibration.error("v6e").factor == calibration.factor(calibration.MIXTURE, table[:-1]) == pytest.approx(1.0)
    assert "| mixture | 3 | 0.60 |" in "\n".join(calibration.errors(table))


def test_a_table_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """New lines stand beside the stored ones, in the order of the points, and replace older ones of their own."""
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    monkeypatch.setattr(calibration, "POINTS", dict.fromkeys("012"))
    calibration.write(V4[2:])
    calibration.write([V4[0], {**V4[2], "modelled_mfu": 0.6}])
    assert [(row["name"], row["modelled_mfu"]) for row in calibration.stored()] == [("0", 0.5), ("2", 0.6)]
    assert not list(tmp_path.glob("*.tmp"))


def test_points_are_chosen_by_name():
    """All without names, those that the table lacks for "missing"; a wrong name is refused with the nearest."""
    names = list(POINTS)
    assert plan._points([], set(names[:3])) == names
    assert plan._points(["missing"], set(names[3:])) == names[:3]
    assert plan._points([names[4], names[1]], set()) == [names[1], names[4]]
    with pytest.raises(PodError, match="did you mean 'pax_16b'"):
        plan._points(["pax_16"], set())


# Rebuilt, and not compiled yet: `scripts.plan --calibrate missing`.
MISSING = {
    *("v5p_llama31_405b", "v6e_gpt3_175b_int8"),
    # Their steps do not fit: 33.0 of 31.2 GiB, 102.4 and 122.3 of 95.7, 262.9 and 221.6 of 189.5.
    *("v6e_mistral_7b", "v5p_64b", "v5p_deepseek_v3", "tpu7x_deepseek_v3", "tpu7x_deepseek_v3_256"),
}


def test_every_point_is_in_the_table_and_every_line_of_it_is_a_point():
    """No point that was rebuilt is missing but those that are named here, and none is left of an older table; what was published
    is the same in both."""
    written = json.loads(calibration.FILE.read_text())["points"]
    assert {row["name"]: (row["topology"], row["group"], row["published_mfu"]) for row in written} == {
        name: (point.topology, point.group, point.mfu) for name, point in POINTS.items() if name not in MISSING
    }
    assert len(written) >= 49


def test_the_errors_of_all_kinds_are_in_the_table():
    """Each line has its held-out error; the last line is of all."""
    rows = calibration.stored()
    lines = calibration.table(rows)
    names = [row["name"] for row in rows]
    assert all(any(line.startswith(f"| {name} | ") for line in lines) for name in (*names, "v4", "v5e", "v5p", "v6e", "all"))


@pytest.mark.parametrize("name", POINTS)
def test_every_point_lies_on_its_slice(name):
    """The mesh of its layout covers the torus of its slice exactly."""
    e, pod = POINTS[name].experiment(), parse_slice(POINTS[name].topology)
    assert e.layout.devices == pod.devices
    try:
        torus.assignment(e.layout.mesh_of_slice, pod.places, e.layout.torus)
    except LayoutError as error:
        pytest.fail(str(error))


def test_maxtext_scales_are_its_own():
    """`global_parameter_scale` 64 has 64 layers of 8192; 1024 has 128 of 16384, with 256 heads (its README of configurations)."""
    models: dict[str, Any] = {
        name: POINTS[name].experiment().model for name in ("v5e_16b", "v5e_32b", "v5e_64b", "v5p_512b", "v5p_1024b")
    }
    sizes = {name: (m.layers, m.model_dim, m.feed_forward.hidden_dim, m.attention.heads) for name, m in models.items()}
    assert sizes == {
        "v5e_16b": (32, 4096, 28_672, 64),
        "v5e_32b": (32, 8192, 28_672, 64),
        "v5e_64b": (64, 8192, 28_672, 64),
        "v5p_512b": (128, 16_384, 57_344, 128),
        "v5p_1024b": (128, 16_384, 114_688, 256),
    }
