"""Forecasts without a model, for one to beat: the last frame as it is, and the last frame moved on.

T frames, H rows, W columns.
"""

from collections.abc import Callable

import numpy as np
from scipy import ndimage

Nowcast = Callable[[np.ndarray, int], np.ndarray]  # (frames [T, H, W], one step apart, steps ahead) -> frame [H, W]

_APART = 6  # steps between the two frames whose displacement is taken


def persistence(frames_THW: np.ndarray, lead: int) -> np.ndarray:
    """Returns the last frame."""
    return frames_THW[-1]


def translation(frames_THW: np.ndarray, lead: int) -> np.ndarray:
    """Returns the last frame, moved on as a whole at the speed of the last steps."""
    apart = min(_APART, len(frames_THW) - 1)
    speed = displacement(frames_THW[-1 - apart], frames_THW[-1]) / apart
    return moved(frames_THW[-1], np.broadcast_to(speed[:, None, None] * lead, (2, *frames_THW.shape[1:])))


def displacement(before_HW: np.ndarray, after_HW: np.ndarray) -> np.ndarray:
    """Returns by how many (rows, columns) a frame must be moved to be most like another one: where their correlation is greatest.

    Rain is taken as log(1 + x), so that a few cells do not decide alone, and fades out towards the edges. (0, 0) where a frame is
    empty.
    """
    size = np.array(before_HW.shape)
    fade_HW = np.outer(*map(np.hanning, before_HW.shape))
    a, b = (np.fft.rfft2(np.log1p(np.maximum(x, 0)) * fade_HW) for x in (before_HW, after_HW))
    likeness_HW = np.fft.irfft2(b * np.conj(a), s=before_HW.shape)
    if not likeness_HW.max() > 0:
        return np.zeros(2)
    at = np.array(np.unravel_index(np.argmax(likeness_HW), before_HW.shape))
    return np.where(at > size // 2, at - size, at).astype(float)


def moved(frame_HW: np.ndarray, by_2HW: np.ndarray) -> np.ndarray:
    """Returns a frame whose points have come from `by` (rows, columns) before, between points linearly; 0 comes from outside."""
    places = np.indices(frame_HW.shape) - by_2HW
    return ndimage.map_coordinates(frame_HW, places, order=1, cval=0.0)


NOWCASTS: dict[str, Nowcast] = {"persistence": persistence, "translation": translation}
