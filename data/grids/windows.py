"""Windows of a prepared series: which there are, and a window as the model gets it. Numpy alone.

T frames, H rows, W columns, C channels.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.grids import motion
from data.grids.config import Area, GridData
from data.reading.caches import read_manifest
from data.task import Example

FRAMES = "frames.npy"
TIMES = "times.npy"
MOTION = "motion.npy"
_UNEVEN = 0.15


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A cache's series: frames on disk, of which only what a window needs is read, and statistics of the training frames."""

    folder: Path

    @functools.cached_property
    def frames(self) -> np.ndarray:
        """[N, H, W, C], float32, NaN where nothing was seen."""
        return np.load(self.folder / FRAMES, mmap_mode="r")

    @functools.cached_property
    def motion(self) -> np.ndarray:
        """[N, 2, H / 4, W / 4], float32: the motion at the end of each window, 0 at other frames (data/grids/motion.py)."""
        return np.load(self.folder / MOTION, mmap_mode="r")

    @functools.cached_property
    def times(self) -> np.ndarray:
        """[N], datetime64."""
        return np.load(self.folder / TIMES)

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the folder alone: other processes open the files themselves."""
        return {"folder": self.folder}


def segments(times: np.ndarray, starts: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Divides a series into pieces without a gap in time, each within one split.

    Args:
      times: rising.
      starts: numbers of the frames with which splits begin, the first of which is 0.

    Returns:
      (pieces as (first frame, frame after the last); the frames after which there is a gap: a step that is more than 15 % longer
      or shorter than the usual one. Months differ by 10 %).
    """
    steps = np.diff(times) / np.timedelta64(1, "s")
    usual = np.median(steps)
    gaps = np.flatnonzero(np.abs(steps - usual) > _UNEVEN * usual).tolist()
    cuts = sorted({0, *starts, *(gap + 1 for gap in gaps), len(times)})
    return list(itertools.pairwise(cuts)), gaps


def last_frames(pieces: list[tuple[int, int]], before: int, after: int) -> np.ndarray:
    """Returns the last input frames of all windows that lie in one piece, with so many frames before and after."""
    whole = [np.arange(start + before, end - after) for start, end in pieces]
    return np.concatenate([np.zeros(0, np.int64), *whole])


def window(prepared: Prepared, data: GridData, at: int, lead: int, over: Sequence[bool] = (False, False)) -> Example:
    """Returns a window as the model gets it: arrays as `GridData.features` says.

    Args:
      at: the number of its last input frame.
      lead: steps from there to the target.
      over: whether it is mirrored over rows (top to bottom) and over columns.
    """

    def laid(frames_THWC: np.ndarray, rows: int, columns: int) -> np.ndarray:
        axes = tuple(axis for axis, flip in zip((1, 2), over, strict=True) if flip)
        return np.flip(fitted(frames_THWC, rows, columns), axes)

    manifest, area = prepared.manifest, data.area
    chosen = [manifest["names"].index(name) for name in data.channels]
    points_HW = area.height * area.scale, area.width * area.scale
    first = at - (data.frames - 1) * data.every
    frames = prepared.frames[first : at + 1 : data.every][..., chosen]
    frames_THWC = laid(frames, *points_HW)
    target_HW1 = prepared.frames[at + lead][..., [manifest["names"].index(data.target)]]
    target_HW = laid(target_HW1[None], *area.points)[0, ..., 0]
    seen_THWC, seen_HW = np.isfinite(frames_THWC), np.isfinite(target_HW)
    inputs, seen = positions(standardised(frames_THWC, seen_THWC, manifest, data.channels), seen_THWC, area)
    arrays = {
        "inputs": inputs,
        "seen": seen,
        "lead_time": np.array(lead, np.int32),
        "targets": np.where(seen_HW, target_HW, np.float32(0)),
        "weights": seen_HW.astype(np.float32),
    }
    if data.ahead:
        last_HWC = prepared.frames[at][..., chosen]
        places = motion.origins(prepared.motion[at], lead, *last_HWC.shape[:2])
        frame_1HWC = laid(motion.carried(last_HWC, places)[None], *points_HW)
        seen_1HWC = np.isfinite(frame_1HWC)
        values, share = positions(standardised(frame_1HWC, seen_1HWC, manifest, data.channels), seen_1HWC, area)
        arrays["ahead"] = np.concatenate([values, share], axis=-1)[0]
    return arrays


def fitted(frames: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Returns the centre of frames [T, H, W, C], surrounded by missing points where there are too few."""
    for axis, size in ((1, rows), (2, columns)):
        spare = frames.shape[axis] - size
        if spare > 0:
            frames = np.take(frames, range(spare // 2, spare // 2 + size), axis=axis)
        elif spare < 0:
            pad = [(0, 0)] * frames.ndim
            pad[axis] = (-spare // 2, -spare - -spare // 2)
            frames = np.pad(frames, pad, constant_values=np.nan)
    return frames


def standardised(
    frames_THWC: np.ndarray, seen_THWC: np.ndarray, manifest: dict[str, Any], channels: tuple[str, ...]
) -> np.ndarray:
    """Returns values in standard deviations from the mean of the training frames, 0 where nothing was seen."""
    values = np.where(seen_THWC, frames_THWC, np.float32(0))
    for place, name in enumerate(channels):
        number = manifest["names"].index(name)
        values[..., place] = transformed(values[..., place], name in manifest["logarithmic"])
        values[..., place] -= np.float32(manifest["mean"][number])
        values[..., place] /= np.float32(manifest["std"][number])
    return values * seen_THWC


def transformed(values: np.ndarray, logarithmic: bool) -> np.ndarray:
    """Returns log(1 + x), or x."""
    return np.log1p(np.maximum(values, 0)) if logarithmic else values


def positions(values_THWC: np.ndarray, seen_THWC: np.ndarray, area: Area) -> tuple[np.ndarray, np.ndarray]:
    """Returns (values, share of points seen) of squares of points: stacked as channels, or the mean of what was seen."""
    (h, w), t, s, c = area.positions, len(values_THWC), area.scale, values_THWC.shape[-1]
    shape = (t, h, s, w, s, c)
    share = seen_THWC.reshape(shape).mean(axis=(2, 4), dtype=np.float32)
    if area.stacked:
        return values_THWC.reshape(shape).swapaxes(2, 3).reshape(t, h, w, s * s * c), share
    mean = values_THWC.reshape(shape).mean(axis=(2, 4), dtype=np.float32)
    return mean / np.maximum(share, 1 / s**2), share
