"""Series that would be learned from as they should not be: nothing seen in them, or numbers that stand for what is missing."""

import numpy as np

from data.task import DataError

# What files write for what is missing; netCDF's own default is the last. A float32 of the series is one of them exactly.
_FILLS = (-999.0, -9999.0, -99999.0, -32768.0, 1e20, -1e20, 9.969209968386869e36)


_NUMBERS = 1 << 24  # that are looked at at a time


def refuse_unmasked(frames: np.ndarray, variables: tuple[str, ...], factors: tuple[float, ...], source: str) -> None:
    """Raises DataError for a variable that is nowhere seen, or has one of the usual numbers for missing values, alone.

    Such a number is alone where it is farther from all other values than these are from each other: -9999 mm of rain, but not
    -999 m2/s2 of geopotential.

    Args:
      frames: [N, H, W, C], NaN where the file itself says that a value is missing.
      factors: what the variables were multiplied by.
    """
    slab = max(1, _NUMBERS // max(1, frames[0, ..., 0].size))
    fills = [np.float32(fill) for fill in _FILLS]
    for channel, (variable, factor) in enumerate(zip(variables, factors, strict=True)):
        marked = np.array([fill * np.float32(factor) for fill in fills])
        counts, low, high = np.zeros(len(fills), np.int64), np.inf, -np.inf
        for start in range(0, len(frames), slab):
            values = frames[start : start + slab, ..., channel]
            values = values[np.isfinite(values)]
            for place, fill in enumerate(marked):
                is_fill = values == fill
                if number := int(is_fill.sum()):
                    counts[place] += number
                    values = values[~is_fill]
            if values.size:
                low, high = min(low, float(values.min())), max(high, float(values.max()))
        if low > high and not counts.any():
            raise DataError(f"{source}: variable {variable!r} has no value at all, all are missing")
        for place in np.flatnonzero(counts):
            if low > high or max(low - marked[place], marked[place] - high) > high - low:
                raise DataError(
                    f"{source}: variable {variable!r} is {_FILLS[place]:g} at {counts[place]:,} points, far from all others: if"
                    " it stands for missing values, write it into the file as the variable's _FillValue"
                )
