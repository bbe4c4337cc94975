"""Tests of which part of a picture is taken."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from data.images import crops

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def test_resized_crops_have_the_drawn_areas_and_ratios():
    """In a square picture areas are spread evenly over their range up to what fits, and logarithms of ratios over theirs."""
    rng = np.random.default_rng(0)
    boxes = np.array([crops.resized(rng, 400, 400, (0.1, 0.5), RATIO) for _ in range(4000)])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = wide * high / 400**2, wide / high
    assert 0.099 < area.min() < 0.11 and 0.49 < area.max() < 0.502
    assert area.mean() == pytest.approx(0.3, abs=0.01) and area.std() == pytest.approx(0.4 / math.sqrt(12), rel=0.05)
    assert 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.345
    assert np.log(ratio).mean() == pytest.approx(0, abs=0.01)
    assert np.log(ratio).std() == pytest.approx(math.log(16 / 9) / math.sqrt(12), rel=0.05)
    for start, size in ((boxes[:, 0], wide), (boxes[:, 1], high)):  # anywhere in the room that is left
        assert (start / (400 - size)).mean() == pytest.approx(0.5, abs=0.02)
        assert start.min() == 0 and (start + size).max() == 400


@given(st.integers(1, 1000), st.integers(1, 1000), st.sampled_from([28, 64, 224]), st.integers(0, 2**32))
@example(29, 29, 28, 0)
@example(900, 1200, 224, 0)
def test_boxes_lie_in_the_picture(width, height, size, seed):
    """Whatever the picture's size, random and centred boxes are inside, to the last bit, and not empty."""
    rng = np.random.default_rng(seed)
    centred = [crops.centred(width, height, shape, share) for shape in ((size, size), (32, 64)) for share in (1, 0.875, 0)]
    for left, top, right, bottom in (crops.resized(rng, width, height, AREA, RATIO), *centred):
        assert 0 <= left < right <= width and 0 <= top < bottom <= height


def test_a_picture_that_no_draw_fits_is_cut_in_the_middle():
    """The box of a strip is the largest in range, in the middle, as its whole area can't have the ratio."""
    rng = np.random.default_rng(0)
    assert crops.resized(rng, 1000, 30, (1.0, 1.0), RATIO) == (480, 0, 520, 30)
    assert crops.resized(rng, 30, 1000, (1.0, 1.0), RATIO) == (0, 480, 30, 520)


def test_centred_boxes():
    """A box has the result's proportions and the share of the tighter side; 0 takes everything."""
    assert crops.centred(500, 400, (224, 224), 0.875) == (75, 25, 425, 375)
    assert crops.centred(500, 400, (100, 200), 1.0) == (0, 75, 500, 325)
    assert crops.centred(500, 400, (224, 224), 0.0) == (0, 0, 500, 400)


def test_shifts_go_every_way_and_bring_in_zeros():
    """Each of the 25 shifts by up to two pixels comes, equally often; nothing is lost inside."""
    picture = np.arange(1, 17, dtype=np.uint8).reshape(4, 4, 1)
    padded = np.pad(picture, ((2, 2), (2, 2), (0, 0)))
    windows = {padded[y : y + 4, x : x + 4].tobytes(): 0 for y in range(5) for x in range(5)}
    rng = np.random.default_rng(0)
    for _ in range(2500):
        windows[crops.shifted(rng, picture, 2).tobytes()] += 1
    assert len(windows) == 25 and min(windows.values()) > 60
    assert_array_equal(crops.shifted(rng, picture, 0), picture)
