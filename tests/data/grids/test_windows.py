"""Windows of a gridded series: what is in them, and which there are."""

import dataclasses
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from data.grids import windows
from data.grids.config import Area, GridData
from data.grids.task import GridTask
from data.grids.windows import Prepared
from data.kinds import task_of
from data.reading.caches import examples, read_manifest
from data.reading.examples import open_source
from data.task import DataError
from models.metnet2.config import DetailConfig, Edges, MetNet2Config
from models.parts.nested import changed
from tests.helpers.grids import showers, times, write_grid_cache

DATA = GridData(
    cache="toy",
    batch_size=2,
    channels=("rain", "wind"),
    target="rain",
    frames=3,
    leads=4,
    area=Area(height=10, width=10, scale=2, target_height=6, target_width=4),
    thresholds=(0.2, 1.0),
    scored=(1, 4),
)
MODEL = MetNet2Config(
    channels=2,
    masks=2,
    leads=4,
    crop=(6, 4),
    detail=DetailConfig(upsample=2),
    bins=Edges(lower_edges=(0.2, 1.0)),
    thresholds=(0.2, 1.0),
)
STACKED = changed(DATA, {"area.stacked": True}), dataclasses.replace(MODEL, channels=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("grids")
    write_grid_cache(root)
    return root


@pytest.fixture(autouse=True)
def here(root, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(root))


def prepared(root) -> Prepared:
    return Prepared(root / "caches" / "toy")


def test_the_target_is_the_inner_part_of_a_later_frame(root):
    """At each point as it was, in its unit; the 18 x 20 points of the grid are the centre of the 20 x 20 that are asked for."""
    w = windows.window(prepared(root), DATA, at=10, lead=4)
    assert_allclose(w["targets"], showers()[14, 3:15, 6:14], rtol=1e-6)
    assert w["lead_time"] == 4 and w["weights"].all()
    shapes = {name: (array.shape, array.dtype) for name, array in w.items()}
    assert shapes == {name: (f.shape, np.dtype(f.dtype)) for name, f in DATA.features().items()}


def test_inputs_are_means_of_standardised_points(root):
    """Rain as log(1 + x), less the mean of the training frames, over their deviation; the last frame is the window's."""
    manifest = read_manifest(root / "caches" / "toy")
    w = windows.window(prepared(root), DATA, at=10, lead=1)
    logs = (np.log1p(showers()[8:11].astype(np.float32)) - manifest["mean"][0]) / manifest["std"][0]
    assert_allclose(w["inputs"][:, 1, 2, 0], logs[:, 1:3, 4:6].mean(axis=(1, 2)), rtol=1e-4)
    trained = np.log1p(showers().astype(np.float32))[:42]
    trained[7, 4:6, 5] = np.nan
    assert_allclose(manifest["mean"][0], np.nanmean(trained), rtol=1e-5)
    assert_allclose(manifest["std"][0], np.nanstd(trained), rtol=1e-4)


def test_missing_points_are_masked(root):
    """The mean of a position half of whose points are missing is that of the others; beyond the grid nothing is seen."""
    w = windows.window(prepared(root), DATA, at=7, lead=1)
    assert w["seen"][2, 2, 2, 0] == 0.75 and w["seen"][2, 3, 2, 0] == 0.75 and w["seen"][1].min(axis=2)[1:-1].all()
    assert w["seen"][:, 0, :, 0].max() == 0.5  # a row of points of padding above, and one below
    assert np.isfinite(w["inputs"]).all()
    points = np.log1p(showers()[7, 3:5, 4:6].astype(np.float32))
    manifest = read_manifest(root / "caches" / "toy")
    seen = (points.ravel()[[0, 1, 2]] - manifest["mean"][0]) / manifest["std"][0]
    assert_allclose(w["inputs"][2, 2, 2, 0], seen.mean(), rtol=1e-4)
    whole = changed(DATA, {"area.target_height": 10, "area.target_width": 10})
    none = windows.window(prepared(root), whole, at=6, lead=1)
    assert none["weights"].sum() == 18 * 20 - 2 and not none["targets"][none["weights"] == 0].any()


def test_stacked_positions_keep_every_point(root):
    """Channels of a position are its points, row by row, of each all variables."""
    w = windows.window(prepared(root), STACKED[0], at=10, lead=1)
    mean = windows.window(prepared(root), DATA, at=10, lead=1)
    points = w["inputs"].reshape(*w["inputs"].shape[:3], 2, 2, 2)
    assert_allclose(points.mean(axis=(3, 4))[:, 1:-1], mean["inputs"][:, 1:-1], atol=1e-5)


def test_windows_are_a_function_of_seed_and_index(root):
    """Two readers agree in any order; another seed draws others; every lead time comes."""
    a, b = (open_source(dataclasses.replace(DATA, flip=True), MODEL) for _ in range(2))
    b = pickle.loads(pickle.dumps(b))  # as other processes get it
    forward, backward = [a.row(i) for i in range(40)], [b.row(i) for i in reversed(range(40))][::-1]
    assert all(np.array_equal(x[k], y[k]) for x, y in zip(forward, backward, strict=True) for k in x)
    other = open_source(dataclasses.replace(DATA, flip=True, seed=1), MODEL)
    assert sum(np.array_equal(x["inputs"], other.row(i)["inputs"]) for i, x in enumerate(forward)) < 4
    assert set(Counter(int(x["lead_time"]) for x in forward)) == {1, 2, 3, 4}


@pytest.mark.parametrize(("data", "model"), [(DATA, MODEL), STACKED])
def test_mirrored_windows_are_windows_of_a_mirrored_grid(root, data, model):
    """The points of stacked positions turn too: what comes out is some mirror image of the window as it is."""
    task, row = GridTask(dataclasses.replace(data, flip=True)), {"at": np.array(10)}
    seen = set()
    for seed in range(12):
        window = task.augment(row, np.random.default_rng(seed), prepared(root))
        plain = windows.window(prepared(root), data, 10, int(window["lead_time"]))
        grid, whole = (points(x["inputs"], data) for x in (window, plain))
        same = [f for f in ((), (1,), (2,), (1, 2)) if np.allclose(grid, np.flip(whole, f), atol=1e-5)]
        assert len(same) == 1
        assert_array_equal(window["targets"], np.flip(plain["targets"], tuple(axis - 1 for axis in same[0])))
        seen.add(same[0])
    assert len(seen) == 4


def points(inputs: np.ndarray, data: GridData) -> np.ndarray:
    """Stacked positions as a finer grid."""
    if not data.area.stacked:
        return inputs
    t, h, w, _ = inputs.shape
    return inputs.reshape(t, h, w, 2, 2, 2).swapaxes(2, 3).reshape(t, 2 * h, 2 * w, 2)


def test_splits_follow_each_other_and_share_no_frame(root):
    """The frames of training windows lie before those of the validation, and these before the test's."""
    cache = root / "caches" / "toy"
    source: Any = open_source(DATA, MODEL)
    assert {int(source.source.row(i)["at"]) for i in range(200)} == set(range(2, 42 - 4))
    assert [e["at"] for e in examples(cache, "validation")] == list(range(44, 51 - 4))
    assert [e["at"] for e in examples(cache, "test")] == list(range(53, 60 - 4))
    held = GridTask(DATA).held_out(cache, cache, "test", 2)
    assert held.count == 2 and [int(row["lead_time"]) for row in held.rows] == [1, 4, 1, 4]
    assert len(held.rows[1:3]) == 2


def test_no_window_spans_a_gap_in_time(tmp_path, monkeypatch):
    """Windows that would are left out and counted, and the gap is named in one line."""
    lines: list[str] = []
    folder = write_grid_cache(tmp_path, at=times(60, without=range(20, 25)), progress=lines.append)
    messages = [line for line in lines if "gap" in line]
    assert messages == [
        "a gap in time: 2020-01-01T01:35 is followed by 2020-01-01T02:05, where the usual step is 5 minutes",
        "6 of 42 windows left out, with a gap in time in them",
    ], messages
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    manifest = read_manifest(folder)
    assert manifest["gaps"] == [["2020-01-01T01:35", "2020-01-01T02:05"]]
    assert manifest["windows"]["train"] == (20 - 6) + (22 - 6) and manifest["parts"]["all"]["left_out"] == 6
    source: Any = open_source(DATA, MODEL)
    assert not {int(source.source.row(i)["at"]) for i in range(120)} & set(range(16, 22))


def test_monthly_series_have_no_gaps():
    """Months differ in length by a tenth, and years by less."""
    months = np.arange(np.datetime64("2000-01"), np.datetime64("2003-01")).astype("datetime64[ns]")
    assert windows.segments(months, [0, 20]) == ([(0, 20), (20, 36)], [])
    years = np.arange(np.datetime64("1990"), np.datetime64("2010")).astype("datetime64[ns]")
    assert windows.segments(years, [0]) == ([(0, 20)], [])


def test_steps_off_the_usual_one_are_gaps():
    """A window has one step throughout: a series that goes over to another step has windows of the usual one alone, and a frame
    off its time is in none that goes on to the next."""
    assert windows.segments(at(0, 10, 20, 30, 40, 45, 50, 55), [0])[1] == [4, 5, 6]
    assert windows.segments(at(0, 5, 10, 15, 25, 35), [0])[1] == [3, 4]
    assert windows.segments(at(0, 5, 10, 17, 20, 25, 30), [0]) == ([(0, 3), (3, 4), (4, 7)], [2, 3])
    assert windows.segments(at(0, 5, 10, 15.5, 20, 25), [0])[1] == []


def at(*minutes: float) -> np.ndarray:
    """So many minutes behind noon."""
    return np.datetime64("2020-01-01T12:00", "ns") + np.array([round(60 * m) for m in minutes]) * np.timedelta64(1, "s")


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ({"channels": ("rain", "snow")}, {}, "data.channels: cache 'toy' has no 'snow', but rain, wind"),
        ({"frames": 5}, {}, "data.frames=5, every=1: cache 'toy' has windows of 2 steps before the last frame, not 4"),
        ({"leads": 9}, {}, "data.leads=9: cache 'toy' has windows up to 4"),
        ({}, {"channels": 5}, "model.channels=5: the data has 2"),
        ({}, {"crop": (8, 8)}, r"model.grid=\(16, 16\): the data has \(12, 8\)"),
    ],
)
def test_what_does_not_fit_is_named(data, model, message):
    """Wrong channels, more frames or lead times than the cache has, another model's shapes."""
    with pytest.raises(DataError, match=message):
        open_source(dataclasses.replace(DATA, **data), dataclasses.replace(MODEL, **model))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"area.target_height": 7}, "target_height=7: is not the centre of height=10; the nearest is 8"),
        ({"area.scale": 0}, "scale=0: must be at least 1"),
        ({"target": "snow"}, "data.target='snow': must be one of the channels rain, wind"),
        ({"scored": (5,)}, "data.scored: lead time 5 is not from 1 to data.leads=4"),
    ],
)
def test_impossible_windows_are_refused(fields, message):
    """With the nearest that is possible."""
    with pytest.raises(ValueError, match=message):
        changed(DATA, fields)


def test_the_fingerprint_of_windows_is_that_of_runs_made_before():
    """The fields of an area are taken as if they were the data's own, which they were."""
    assert task_of(registry.load("metnet2.quickstart").data).augmentation == "64ee2ebe9f56a6b8"


def test_random_windows_can_be_learnt():
    """Showers move by the same whole number of positions every step, so the target is some earlier frame's."""
    e = registry.tiny(registry.load("metnet2.quickstart"))
    source = open_source(e.data, e.model)
    row = source.row(0)
    assert all(np.array_equal(row[name], source.row(0)[name]) for name in row)
    for name, feature in e.data.features().items():
        assert row[name].shape == feature.shape and row[name].dtype == np.dtype(feature.dtype)
    assert 0 < (row["targets"] > 0.2).mean() < 0.5
