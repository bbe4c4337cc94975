"""RandAugment."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from data.images.randaugment import GROUND, OPERATIONS, SIGNED, randaugment
from tests.helpers.pictures import smooth


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_the_kind_of_picture(name, mode):
    """Size and mode stay, both ways, for colour and grey; at no strength an operation that has one changes nothing."""
    image = Image.fromarray(smooth(12, 16)).convert(mode)
    for strength in (1.0, 0.5, -1.0 if name in SIGNED else 1.0):
        changed = OPERATIONS[name](image, strength)
        assert (changed.size, changed.mode) == (image.size, mode)
        grey = mode == "L" and name == "colour"
        assert name in ("identity", "autocontrast", "equalize") or grey or changed.tobytes() != image.tobytes()
    if name not in ("autocontrast", "equalize"):
        assert_array_equal(np.asarray(OPERATIONS[name](image, 0.0)), np.asarray(image))


def test_strengths_are_those_of_the_tables():
    """A full translation is by 45 % of the picture, solarisation inverts all but black, and posters keep four bits."""
    image = Image.fromarray(np.full((20, 40), 201, np.uint8))
    moved = np.asarray(OPERATIONS["translate_x"](image, 1.0))
    assert_array_equal(moved[0], [201] * 22 + [GROUND] * 18)
    assert np.asarray(OPERATIONS["solarize"](image, 1.0))[0, 0] == 255 - 201
    assert np.asarray(OPERATIONS["posterize"](image, 1.0))[0, 0] == 201 // 16 * 16
    assert np.asarray(OPERATIONS["brightness"](image, -1.0))[0, 0] == 20


def test_operations_are_drawn_from_the_generator():
    """The same state gives the same picture; over many draws every operation comes, signs both ways."""
    image = Image.fromarray(smooth(12, 16))
    twice = [randaugment(image, np.random.default_rng(3), 2, 9).tobytes() for _ in range(2)]
    assert twice[0] == twice[1]
    rng = np.random.default_rng(0)
    results = {randaugment(image, rng, 1, 10).tobytes() for _ in range(400)}
    # Each operation gives one picture, and those with a sign two.
    assert len(results) == len(
        {OPERATIONS[name](image, s).tobytes() for name in OPERATIONS for s in (1.0, -1.0) if s > 0 or name in SIGNED}
    )
    assert randaugment(image, rng, 0, 10) is image and len(OPERATIONS) == 14
