"""Small gridded series: made-up showers in netCDF files, and caches of them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from data.grids.caches import GridCache, Selection
from data.prepare import prepare
from data.stages import Progress

EVENT = 0.2
FIELDS: dict[str, Any] = {
    "variables": ("rain", "wind"),
    "frames": 3,
    "leads": 4,
    "logarithmic": ("rain",),
    "selection": Selection(event=EVENT),
}


def showers(steps: int = 60, rows: int = 18, columns: int = 20, seed: int = 0) -> np.ndarray:
    """Rates [N, H, W], mm/h, of showers that move a column a step."""
    rng = np.random.default_rng(seed)
    rain = rng.exponential(4, (rows, columns + steps)) * (rng.random((rows, columns + steps)) < 0.3)
    return np.stack([rain[:, steps - t : steps - t + columns] for t in range(steps)])


def times(steps: int, without: range = range(0)) -> np.ndarray:
    """So many times, 5 minutes apart, some left out."""
    numbers = [i for i in range(steps + len(without)) if i not in without]
    return np.datetime64("2020-01-01T00:00", "ns") + np.array(numbers) * np.timedelta64(5, "m")


def write_series(path: Path, rain: np.ndarray, at: np.ndarray) -> Path:
    """Writes a netCDF file, or a Zarr store, with a series of rain and one of wind, 10 m/s more with every row."""
    import xarray

    wind = np.broadcast_to(10.0 * np.arange(rain.shape[1])[:, None], rain.shape)
    dims = ("time", "y", "x")
    dataset = xarray.Dataset({"rain": (dims, rain), "wind": (dims, wind)}, coords={"time": at})
    dataset["lone"] = ("time", np.zeros(len(at)))
    dataset.to_netcdf(path, engine="h5netcdf")
    return path


def write_grid_cache(
    root: Path,
    name: str = "toy",
    at: np.ndarray | None = None,
    steps: int = 60,
    progress: Progress = lambda line: None,
    **fields: Any,
) -> Path:
    """Prepares a cache of such a series in a data folder."""
    rain = showers(steps).astype(np.float32)
    rain[7, 4:6, 5] = np.nan
    at = times(len(rain)) if at is None else at
    settings = GridCache.from_source(str(write_series(root / f"{name}.nc", rain[: len(at)], at)))
    assert settings is not None
    settings = dataclasses.replace(settings, **FIELDS | fields)
    return prepare(name, settings, data_dir=root, progress=progress)
