"""Optical flow on a grid: a field of motion from the last frames, and frames carried on along it. Numpy and SciPy alone.

The field is Lucas and Kanade's (1981): around each point, the motion that best explains, in the least squares, how values change
in time by how they change in space; weights fall off around the point, first slowly, then faster. Frames are carried along it
backwards (semi-Lagrangian): a point's value is that of the place that it comes from, along a path that follows the field.

T frames, H rows, W columns, and (2: rows, columns) of motion.
"""

import numpy as np
from scipy import ndimage

from data.grids.baselines import displacement

NEEDED = 7  # frames, a step apart, that a field is made of
COARSE = 4  # points of the grid in each direction for one of a field

_APART = 3  # steps between the frames of a pair
_FINE = 2  # points in each direction that are averaged before
_WIDTHS = (24.0, 12.0, 8.0)  # standard deviations of the weights, in points after averaging
_REPEATS = 2
_LARGEST = 3.0  # correction, in averaged points a step
_STIFF = 0.01  # of the greatest gradient's square: where values are flat, what has been found stays


def field(frames_THW: np.ndarray) -> np.ndarray:
    """Returns the motion [2, H / 4, W / 4], float32, in points of the grid a step.

    Args:
      frames_THW: the last frames, a step apart; missing values count as 0. Rain is best taken as log(1 + x).
    """
    frames_THW = np.nan_to_num(frames_THW)
    t, h, w = frames_THW.shape
    size = (-(-h // COARSE), -(-w // COARSE))
    start = displacement(frames_THW[-min(t, NEEDED)], frames_THW[-1]) / (min(t, NEEDED) - 1) / _FINE
    small = frames_THW[:, : h // _FINE * _FINE, : w // _FINE * _FINE].reshape(t, h // _FINE, _FINE, w // _FINE, _FINE)
    small = [ndimage.gaussian_filter(x, 1.0) for x in small.mean(axis=(2, 4))]
    pairs = [(end - _APART, end) for end in range(t - 1, _APART - 1, -_APART)][:2]
    motion = np.broadcast_to(start[:, None, None], (2, *small[0].shape)).copy()
    places = np.indices(small[0].shape).astype(float)
    for width in _WIDTHS:
        for _ in range(_REPEATS):
            parts = np.zeros((5, *small[0].shape))
            for before, after in pairs:
                # Both frames at the middle of the way between them, as far as it is known.
                a = _at(small[before], places - motion * (_APART / 2))
                b = _at(small[after], places + motion * (_APART / 2))
                (down, right), change = np.gradient((a + b) / 2), b - a
                parts[:3] += np.stack([down * down, down * right, right * right]) * _APART
                parts[3:] += np.stack([down * change, right * change])
            yy, yx, xx, y, x = (ndimage.gaussian_filter(part, width, truncate=2.5) for part in parts)
            stiff = _STIFF * (yy + xx).max() + 1e-9
            yy, xx = yy + stiff, xx + stiff
            change = np.stack([yx * x - xx * y, yx * y - yy * x]) / (yy * xx - yx * yx)
            motion += np.clip(change, -_LARGEST, _LARGEST)
    return _resized(motion * _FINE, size).astype(np.float32)


def origins(motion: np.ndarray, lead: int, height: int, width: int) -> np.ndarray:
    """Returns the places [2, H, W], in rows and columns, that points come from after so many steps of a motion that stays."""
    places = np.indices(motion.shape[1:]).astype(float)
    way = np.zeros(motion.shape)
    for _ in range(lead):
        way += np.stack([_at(part, places - way / COARSE) for part in motion])
    return np.indices((height, width)) - _resized(way, (height, width))


def carried(frame_HWC: np.ndarray, places_2HW: np.ndarray) -> np.ndarray:
    """Returns the frame [H, W, C] that comes from these places, between points linearly; NaN where nothing was seen or known."""
    moved = []
    for c in range(frame_HWC.shape[-1]):
        values = frame_HWC[..., c]
        seen = np.isfinite(values)
        share = ndimage.map_coordinates(seen.astype(np.float32), places_2HW, order=1, cval=0.0)
        total = ndimage.map_coordinates(np.where(seen, values, 0), places_2HW, order=1, cval=0.0)
        moved.append(np.where(share > 0.5, total / np.maximum(share, 0.5), np.nan))
    return np.stack(moved, axis=-1).astype(np.float32)


def _at(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return ndimage.map_coordinates(values, places, order=1, mode="nearest")


def _resized(motion: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns a field at another resolution of the same area."""
    factors = [have / want for have, want in zip(motion.shape[1:], size, strict=True)]
    axes = [(np.arange(n) + 0.5) * factor - 0.5 for n, factor in zip(size, factors, strict=True)]
    places = np.stack(np.meshgrid(*axes, indexing="ij"))
    return np.stack([_at(part, places) for part in motion])
