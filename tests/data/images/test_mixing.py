"""Two pictures mixed."""

import math

import numpy as np
import pytest

from data.images import mixing


def test_blends_keep_the_larger_part():
    """Shares are the larger of the two that Beta(alpha, alpha) gives: at 1, evenly from a half to 1; at 0.2, mostly near 1."""
    rng = np.random.default_rng(0)
    even = np.array([mixing.drawn_blend(rng, 1.0) for _ in range(4000)])
    assert even.min() >= 0.5 and even.max() < 1 and even.mean() == pytest.approx(0.75, abs=0.01)
    assert even.std() == pytest.approx(0.5 / math.sqrt(12), rel=0.05)
    rare = np.array([mixing.drawn_blend(rng, 0.2) for _ in range(4000)])
    assert np.mean(rare > 0.95) > 0.5


def test_boxes_have_the_drawn_area_where_they_fit():
    """A box has the picture's proportions, as much of it as was drawn, and is cut off at the edges."""
    rng = np.random.default_rng(0)
    boxes = [mixing.drawn_box(rng, 1.0, 200, 100) for _ in range(4000)]
    areas = np.array([mixing.area(box, 200, 100) for box in boxes])
    assert 0 <= areas.min() < 0.001 and 0.8 < areas.max() <= 1
    inside = [
        (rows.stop - rows.start, columns.stop - columns.start)
        for rows, columns in boxes
        if rows.start and columns.start and rows.stop < 200 and columns.stop < 100 and rows.stop - rows.start > 40
    ]
    assert len(inside) > 100 and all(abs(high - 2 * wide) <= 3 for high, wide in inside)
    # E[(share of the side that lies inside)^2] for a centre that is anywhere: the mean of s (1 - s / 4) each way, s^2 even.
    sides = np.sqrt(np.random.default_rng(1).random(100_000))
    assert areas.mean() == pytest.approx(np.mean((sides * (1 - sides / 4)) ** 2), abs=0.01)
