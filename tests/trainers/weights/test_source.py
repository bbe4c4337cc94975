"""Weights read a piece at a time."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from models.gpt.config import GptConfig
from models.parts.attention.config import GroupedQuery, Rotary
from models.parts.transformer_config import Dense
from trainers.weights.source import Arrays, pieces

CONFIG = GptConfig(
    vocab=8,
    layers=2,
    model_dim=4,
    attention=GroupedQuery(heads=2, head_dim=2),
    positions=Rotary(),
    feed_forward=Dense(hidden_dim=8),
)


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5, 6), (0, 4)])
@pytest.mark.parametrize("most", [1, 6, 7, 13, 30, 1000])
def test_pieces_are_the_whole_in_order(shape, most):
    """However few numbers come at a time, one after the other they are the parameter, and no piece is larger than allowed."""
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    read = list(pieces(Arrays(CONFIG, {"w": array}), "w", most))
    assert_array_equal(np.concatenate([piece.reshape(-1) for piece in read]), array.reshape(-1))
    assert all(piece.size <= most for piece in read)
