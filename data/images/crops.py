"""Crops: boxes in pixels, from its size and, for random ones, from a generator. NumPy only."""

import math

import numpy as np

from data.images.pictures import Box

_TRIES = 10


def centred(width: int, height: int, shape: tuple[int, int], share: float) -> Box:
    """Returns the box around the middle of a picture with the proportions of the result.

    Args:
      width, height: of the picture, in pixels.
      shape: height and width of the result.
      share: of the picture that the box has in its tighter direction; 0 takes the whole picture, whatever its proportions.
    """
    if not share:
        return 0.0, 0.0, float(width), float(height)
    scale = share * min(width / shape[1], height / shape[0])
    wide, high = scale * shape[1], scale * shape[0]
    # Of the whole side, rounding alone would put the box's edges a hair outside.
    left, top = max(0.0, (width - wide) / 2), max(0.0, (height - high) / 2)
    return left, top, min(float(width), left + wide), min(float(height), top + high)


def resized(rng: np.random.Generator, width: int, height: int, area: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """Returns a random box, in whole pixels, with a share of the picture's area and a ratio of width to height in these ranges.

    The area is drawn evenly, the ratio evenly on a logarithmic scale. A draw that does not fit into the picture is drawn
    again, ten times at most; then the box is the largest in the middle whose ratio is in range, as in torchvision.
    """
    for _ in range(_TRIES):
        wanted = rng.uniform(*area) * width * height
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = (int(rng.integers(0, room + 1)) for room in (width - wide, height - high))
            return left, top, left + wide, top + high
    aspect = min(max(width / height, ratio[0]), ratio[1])
    wide, high = min(width, max(1, round(height * aspect))), min(height, max(1, round(width / aspect)))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def shifted(rng: np.random.Generator, pixels_HWC: np.ndarray, pad: int) -> np.ndarray:
    """Returns a picture [H, W, C] moved by up to `pad` pixels each way; 0 comes in from beyond its edges."""
    height, width, _ = pixels_HWC.shape
    down, right = (int(offset) for offset in rng.integers(-pad, pad + 1, 2))
    moved_HWC = np.zeros_like(pixels_HWC)
    moved_HWC[max(down, 0) : height + down, max(right, 0) : width + right] = pixels_HWC[
        max(-down, 0) : height - down, max(-right, 0) : width - right
    ]
    return moved_HWC
