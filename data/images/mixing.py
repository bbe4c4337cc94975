"""Two pictures mixed: blended (mixup), or a box of one pasted into the other (cutmix). NumPy only.

A mixed picture keeps its own class with a weight w, and has the other's with 1 - w.
"""

import numpy as np

Box = tuple[slice, slice]  # rows and columns


def drawn_blend(rng: np.random.Generator, alpha: float) -> float:
    """Returns the share of the first picture in a blend, Beta(alpha, alpha) of the two, its larger part: 0.5 to 1.

    Taking the larger part changes no blend of a pair that is mixed both ways, and a picture's first class stays the one that it
    mostly shows.
    """
    share = float(rng.beta(alpha, alpha))
    return max(share, 1 - share)


def drawn_box(rng: np.random.Generator, alpha: float, height: int, width: int) -> Box:
    """Returns a box with a picture's proportions, 1 - Beta(alpha, alpha) of its area, around a point drawn evenly.

    What lies beyond the picture's edges is cut off, as in the paper, so the pasted share is often smaller.
    """
    side = float(np.sqrt(1 - rng.beta(alpha, alpha)))

    def span(size: int) -> slice:
        middle, half = int(rng.integers(size)), round(size * side) // 2
        return slice(max(middle - half, 0), min(middle + half, size))

    return span(height), span(width)


def area(box: Box, height: int, width: int) -> float:
    """Returns the share of a picture that a box covers."""
    rows, columns = box
    return (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
