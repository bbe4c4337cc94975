"""Caches of gridded series: from packages, from a user's files, and what is refused."""

import dataclasses
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.grids import sources
from data.grids.caches import ENTRIES, GridCache, Selection
from data.grids.windows import Prepared
from data.prepare import prepare
from data.reading.caches import read_manifest
from data.task import DataError
from tests.helpers.archives import fetched
from tests.helpers.grids import EVENT, FIELDS, showers, times, write_grid_cache, write_series


def test_it_is_made_once_and_anew_when_the_file_changes(tmp_path):
    """The manifest says what the series is; the same file is not read again."""
    lines: list[str] = []
    folder = write_grid_cache(tmp_path, motion=False)
    manifest = read_manifest(folder)
    assert (manifest["names"], manifest["target"], manifest["minutes"], manifest["steps"]) == (["rain", "wind"], "rain", 5.0, 60)
    assert (manifest["rows"], manifest["columns"]) == (18, 20) and not manifest["gaps"]
    settings = dataclasses.replace(GridCache.from_source(str(tmp_path / "toy.nc")), **FIELDS)  # pyright: ignore
    prepare("toy", settings, data_dir=tmp_path, progress=lines.append)
    assert "up to date" in lines[0]
    write_series(tmp_path / "toy.nc", showers(steps=70), times(70))
    prepare("toy", settings, data_dir=tmp_path, progress=lines.append)
    assert read_manifest(folder)["steps"] == 70
    assert "read 1 file: toy.nc" in lines


def test_channels_have_names_and_factors(tmp_path):
    """The settings say what a variable is called and multiplied by; another channel may be the target."""
    folder = write_grid_cache(tmp_path, channels=("r", "w"), factors=(12.0, 1.0), logarithmic=("r",), target="w")
    manifest = read_manifest(folder)
    assert manifest["names"] == ["r", "w"] and manifest["target"] == "w"
    assert_allclose(Prepared(folder).frames[3, ..., 0], 12 * showers()[3].astype(np.float32), rtol=1e-6)


def test_dry_windows_are_left_out_as_the_settings_say(tmp_path):
    """Training windows whose last frame has too few events are left out; of held-out windows every n-th of the others is kept."""
    all_of = read_manifest(write_grid_cache(tmp_path, "all"))
    usual = float(np.median((showers() >= EVENT).mean(axis=(1, 2))))
    wettest = Selection(event=EVENT, train_share=usual, held_share=0.01, held_every=2)
    wet = read_manifest(write_grid_cache(tmp_path, "wet", selection=wettest))
    assert 0 < wet["parts"]["all"]["rows"] < all_of["parts"]["all"]["rows"] == all_of["windows"]["train"]
    assert vars(wettest).items() <= wet.items()  # as in manifests written before
    assert wet["held_out"]["test"] == (all_of["held_out"]["test"] + 1) // 2
    with pytest.raises(
        DataError, match="train: none of its 36 windows of 7 steps can be used; the series has 60 steps and 0 gaps"
    ):
        write_grid_cache(tmp_path, "dry", selection=Selection(event=EVENT, train_share=0.99))


def test_splits_begin_at_times(tmp_path):
    """And are refused where they are none, or lie outside the series."""
    folder = write_grid_cache(tmp_path, validation="2020-01-01T02:00", test="2020-01-01T03:20")
    first = [json.loads((folder / f"{split}.jsonl").read_text().splitlines()[0]) for split in ("validation", "test")]
    assert first == [{"at": 26, "time": "2020-01-01T02:10"}, {"at": 42, "time": "2020-01-01T03:30"}]
    with pytest.raises(DataError, match=r"validation='soon': is no time, as 2018-05-17 or 2018-05-17T12:00"):
        write_grid_cache(tmp_path, validation="soon")
    with pytest.raises(
        DataError, match="must be two times, rising, inside the series, which is 2020-01-01T00:00 to 2020-01-01T04:55"
    ):
        write_grid_cache(tmp_path, test="2021-01-01")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variables": ()}, r"toy.nc: name its --variables; it has rain, wind"),
        ({"variables": ("rane",)}, r"toy.nc: no variable 'rane'; did you mean 'rain'\?"),
        ({"variables": ("lone",)}, r"variable 'lone' has shape \(60,\), expected \[time, rows, columns\]"),
        ({"channels": ("a",)}, r"channels=\('a',\): 1 names for 2 variables"),
        ({"factors": (1.0,)}, r"factors=\(1.0,\): 1 values for 2 variables"),
        ({"logarithmic": ("snow",)}, "no channel 'snow'; the series has rain, wind"),
        ({"motion": True}, "frames=3, every=1: motion is found from 7 steps, which a window must have"),
    ],
)
def test_what_cannot_be_prepared_is_named(tmp_path, fields, message):
    """Variables, names, factors."""
    with pytest.raises(DataError, match=message):
        write_grid_cache(tmp_path, **fields)


def hdf5(path: Path, shape: tuple[int, int, int] = (9, 4, 4), **options: Any) -> Path:
    """Writes a series of which no number is stored."""
    with h5py.File(path, "w") as file:
        for axis, (name, size) in enumerate(zip(("time", "y", "x"), shape, strict=True)):
            scale = file.create_dataset(name, (size,), "i8", chunks=(min(size, 1024),))
            scale.make_scale(name)
            if not axis:
                scale.attrs["units"] = "minutes since 2020-01-01"
        rain = file.create_dataset("rain", shape, "f4", **({"chunks": (1, *shape[1:])} | options))
        for axis, name in enumerate(("time", "y", "x")):
            rain.dims[axis].attach_scale(file[name])
    return path


def external(path: Path) -> None:
    hdf5(path.with_name("other.nc"))
    with h5py.File(path, "w") as file:
        file["rain"] = h5py.ExternalLink("other.nc", "rain")


def raw(path: Path) -> None:
    hdf5(path, chunks=None, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def of_netcdf3(path: Path) -> None:
    """A header with a list of 2**31 - 1 dimensions, none of which is there."""
    path.write_bytes(b"CDF\1" + struct.pack(">iii", 0, 10, 2**31 - 1))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (os.mkfifo, r"g\.nc is no regular file$"),
        (Path.mkdir, r"g\.nc: xarray cannot open it: "),
        (lambda path: path.symlink_to("/dev/zero"), r"zero is no regular file$"),
        (external, r"g\.nc: 'rain' is in another file, which is not opened$"),
        (raw, r"g\.nc: 'rain' is in another file, which is not opened$"),
        (of_netcdf3, r"g\.nc: xarray cannot open it: "),
        (lambda path: hdf5(path, (3, 100_000, 100_000), chunks=(1, 64, 64)), "has 10,000,000,000 numbers at a time, more than"),
        (lambda path: hdf5(path, (2**31, 4, 4)), "has 2,147,483,648 times, more than"),
        (lambda path: hdf5(path, (512, 1024, 1024), chunks=(512, 1024, 512)), "'rain' has chunks of 1,073,741,824 bytes$"),
    ],
)
def test_hostile_files_are_refused_before_memory_is_asked_for(write, message, tmp_path):
    """A pipe is not waited for, no other file is read in place of this, and the sizes in a header are compared first."""
    write(tmp_path / "g.nc")
    settings = GridCache.from_source(str(tmp_path / "g.nc"))
    assert settings is not None
    settings = dataclasses.replace(settings, variables=("rain",))
    with pytest.raises(DataError, match=message) as caught, sources.opened(settings, tmp_path):
        pass
    assert len(str(caught.value).splitlines()) == 1


def test_a_series_that_the_disk_cannot_hold_is_not_begun(tmp_path, monkeypatch):
    """Its file may be small: what was never stored, or packs well, is large in a cache."""
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(DataError, match=r"the series has 172,800 bytes of frames, and the disk of .* has 1,000 free$"):
        write_grid_cache(tmp_path)
    assert not (tmp_path / "caches" / "toy").exists()


def test_bad_files_are_named(tmp_path):
    """No netCDF, times that go back, a first dimension without times; a source that nobody knows."""
    (tmp_path / "broken.nc").write_bytes(b"not a file of grids")
    settings = dataclasses.replace(GridCache.from_source(str(tmp_path / "broken.nc")), **FIELDS)  # pyright: ignore
    with pytest.raises(DataError, match=r"broken.nc: xarray cannot open it: "):
        prepare("broken", settings, data_dir=tmp_path, progress=lambda line: None)
    back = times(60)[::-1]
    with pytest.raises(DataError, match="its times do not rise: 2020-01-01T04:55 is followed by 2020-01-01T04:50"):
        write_grid_cache(tmp_path, at=back)
    with pytest.raises(DataError, match="its first dimension 'time' holds no times, but int64"):
        write_grid_cache(tmp_path, at=np.arange(60))
    with pytest.raises(DataError, match=r"source='radolann': no such source; did you mean 'radolan'\?"):
        prepare("x", GridCache(source="radolann"), data_dir=tmp_path, progress=lambda line: None)
    assert GridCache.from_source(str(tmp_path / "missing.nc")) is None and GridCache.from_source("tfds:mnist") is None


def test_missing_times_are_refused(tmp_path):
    """One among them would hide every gap."""
    at = times(60)
    at[[7, 20]] = np.datetime64("NaT")
    with pytest.raises(DataError, match=r"toy\.nc: 2 of its 60 times are missing \(NaT\), first number 8$"):
        write_grid_cache(tmp_path, at=at)


@pytest.mark.parametrize(
    ("change", "factor", "message"),
    [
        (lambda rain: np.full_like(rain, np.nan), 1.0, r"made\.nc: variable 'rain' has no value at all, all are missing$"),
        (lambda rain: np.where(rain > 3, -9999, rain), 1.0, r"variable 'rain' is -9999 at [\d,]+ points, far from all others"),
        (lambda rain: np.where(rain > 3, -999, rain), 0.1, r"variable 'rain' is -999 at [\d,]+ points, far from all others"),
        (lambda rain: np.where(rain > 3, np.float32(1e20), rain), 12.0, r"variable 'rain' is 1e\+20 at [\d,]+ points"),
        (lambda rain: np.full_like(rain, -9999), 1.0, r"variable 'rain' is -9999 at 18,000 points"),
        (lambda rain: 300 * rain - 9999 + 1e-3 * (rain == 0), 1.0, ""),  # a number among others
        (lambda rain: np.where(rain > 3, np.nan, rain), 1.0, ""),
    ],
)
def test_what_stands_for_missing_values_is_no_value(tmp_path, change, factor, message):
    """Series that are nowhere seen, and the usual numbers for missing points that a file does not declare, are refused; where
    such a number lies among the others it is one."""
    rain = change(showers(50)).astype(np.float32)
    if not message:
        rain[3, 2, 2] = -999 if np.nanmin(rain) < 0 else rain[3, 2, 2]
    settings = GridCache.from_source(str(write_series(tmp_path / "made.nc", rain, times(50))))
    assert settings is not None
    settings = dataclasses.replace(settings, **FIELDS | {"factors": (factor, 1.0)})

    def made() -> None:
        prepare("made", settings, data_dir=tmp_path, progress=lambda line: None)

    if not message:
        return made()
    with pytest.raises(DataError, match=message):
        made()
    assert not (tmp_path / "caches" / "made").exists()


@pytest.mark.network
def test_the_real_radar_is_as_described(monkeypatch):
    """3168 frames of 190 x 228, of which 2.5 % are missing, 7.2 % of the others wet, and at most 237 mm/h."""
    folder = fetched(*sources.PACKAGES["radolan"].packages)
    with sources.opened(ENTRIES["radolan"], folder.parent) as series:
        assert (len(series.times), series.rows, series.columns) == (3168, 190, 228)
        day = series.read(288 * 10, 288 * 11, (12.0,))
    assert day.shape == (288, 190, 228, 1) and abs(np.nanmean(day >= 0.2) - 0.134) < 0.005 and np.nanmax(day) < 240


@pytest.mark.slow
@pytest.mark.network
def test_the_winds_are_as_described():
    """132 months of both components, without a gap."""
    folder = fetched(*sources.PACKAGES["navy_winds"].packages)
    with sources.opened(ENTRIES["navy_winds"], folder.parent) as series:
        frames = series.read(0, 132, (1.0, 1.0))
    assert frames.shape == (132, 73, 144, 2) and np.isfinite(frames).all()
