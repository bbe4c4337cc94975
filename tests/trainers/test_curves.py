"""The inputs that tests/parity/curves.py passes to `transformers`: packed rows taken apart, and the settings of an optimizer."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from configs import registry
from configs.optimizers import AdamW, Constant, Linear
from tests.parity import curves, tunings

PACKED = {  # two examples in a row, and one; the third token of each is learned
    "tokens": np.array([[5, 6, 7, 8, 9, 3, 0], [4, 5, 6, 0, 0, 0, 0]], np.int32),
    "segments": np.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 0, 0, 0, 0]], np.int32),
    "loss_weights": np.array([[0, 0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0, 0]], np.int32),
}


def test_packed_examples_get_a_row_each():
    """Padding is masked, and what is not learned has no label."""
    given = tunings.learned(PACKED)
    assert_array_equal(given["input_ids"], [[5, 6, 7], [8, 9, 3], [4, 5, 6]])
    assert_array_equal(given["attention_mask"], np.ones((3, 3)))
    assert_array_equal(given["labels"], [[-100, -100, 7], [-100, -100, 3], [-100, -100, 6]])


def test_unequal_examples_are_padded():
    """Inputs with zeros, labels with what `transformers` ignores."""
    sides = {"inputs": [[1, 2, 3, 4]], "inputs_segments": [[1, 1, 1, 2]], "targets": [[9, 8, 7]], "targets_segments": [[1, 2, 2]]}
    given = tunings.written({name: np.array(x, np.int32) for name, x in sides.items()})
    assert_array_equal(given["input_ids"], [[1, 2, 3], [4, 0, 0]])
    assert_array_equal(given["attention_mask"], [[1, 1, 1], [1, 0, 0]])
    assert_array_equal(given["labels"], [[9, -100], [8, 7]])


def test_chosen_answers_come_before_rejected_ones():
    """Segments 1 and 2 of a row are a pair."""
    pairs = {name: x[:1] for name, x in PACKED.items()}
    assert_array_equal(tunings.in_pairs(pairs)["input_ids"], [[5, 6, 7], [8, 9, 3]])


def test_the_other_side_is_told_the_settings():
    """A schedule that it has no name for, or that ends above 0, is not compared."""
    e = tunings.trained(registry.load("gpt.quickstart"), 50, peak=1e-3)
    settings = {
        "rate": 1e-3,
        "warmup": 5,
        "decay": 0.01,
        "b2": 0.999,
        "schedule": "linear",
        "clip": 1.0,
        "loss": "own",
        "beta": 0,
    }
    assert curves.settings(e, "own") == settings
    for schedule in (Constant(value=1e-3), Linear(peak=1e-3, steps=50, floor=0.1)):
        with pytest.raises(AssertionError):
            curves.settings(dataclasses.replace(e, optimizer=AdamW(schedule=schedule)), "own")
