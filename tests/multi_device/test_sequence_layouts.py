"""Layouts that cut positions, and dense 2D ones, against one device: equal numbers, and what travels is what should."""

import functools

import jax
import pytest
from numpy.testing import assert_allclose

from models.common import layouts
from models.common.layout import LayoutError
from tests.multi_device.test_layouts_equal import LOSSES, M4, experiment, no_program_cache, train
from trainers import state

__all__ = ["no_program_cache"]  # a fixture of this module as well
MESH = (2, 4)
# (experiment, layout, dropout). What goes round in a ring, or lies in zigzag order, draws dropout in another order.
CASES = [
    ("gpt.quickstart", "sequence_parallel", 0.1),
    ("gpt.quickstart", "two_d_attempt_1", 0.1),
    ("gpt.quickstart", "fsdp_within_data", 0.1),
    ("gpt.quickstart", "context_gathered", 0.1),
    ("gpt.gspmd_64b", "context_ring", 0.0),
    ("gpt.gspmd_64b", "context_ring_balanced", 0.0),
    ("gpt.gspmd_64b", "two_d_sequence", 0.0),
    ("bert.quickstart_pairs", "sequence_parallel", 0.1),
    ("bert.quickstart_pairs", "context_gathered", 0.1),
    ("bert.quickstart_pairs", "context_ring", 0.0),
    (M4, "sequence_parallel", 0.1),
]


@functools.cache
def on_mesh(name: str, layout: str, dropout: float) -> tuple[list[dict], dict]:
    return train(name, layouts.LAYOUTS[layout](*MESH), jax.devices(), steps=3, dropout=dropout)


@functools.cache
def one_device(name: str, dropout: float) -> list[dict]:
    return train(name, layouts.data_parallel(1, 1), jax.devices()[:1], steps=3, dropout=dropout)[0]


@pytest.mark.parametrize(("name", "layout", "dropout"), CASES)
def test_losses_equal_one_device(name, layout, dropout):
    """The first three losses and gradient norms equal those of one device to 1e-9."""
    found, _ = on_mesh(name, layout, dropout)
    for got, want in zip(found, one_device(name, dropout), strict=True):
        for key in LOSSES:
            assert_allclose(got[key], want[key], rtol=1e-9, err_msg=f"{key} of {name} under {layout}")


def sent(name: str, layout: str, dropout: float, kind: str) -> dict[str, int]:
    """How many arrays of which shape the step sends by this kind of collective."""
    return on_mesh(name, layout, dropout)[1].get(kind, {"shapes": {}})["shapes"]


def test_layouts_communicate_as_they_should():
    """A sequence-sharded residual stream is gathered where sub-layers want it whole, and a whole one never is; with positions
    cut, keys and values (2 heads of 8) are gathered, or in a ring travel by piece, in zigzag order by half a piece."""
    residual = "f64[8,16,16]"  # a device's share of 16 rows of 16 positions
    assert sent("gpt.quickstart", "sequence_parallel", 0.1, "all-gather")[residual] >= 4
    assert sent("gpt.gspmd_64b", "two_d_sequence", 0.0, "all-gather")[residual] >= 4
    assert residual not in sent("gpt.quickstart", "two_d_attempt_1", 0.1, "all-gather")
    assert sent("gpt.quickstart", "context_gathered", 0.1, "all-gather")["f64[8,16,2,8]"] >= 1
    for layout, piece in (("context_ring", "f64[1,8,4,4,8]"), ("context_ring_balanced", "f64[1,8,2,4,8]")):
        assert "f64[8,16,4,8]" not in sent("gpt.gspmd_64b", layout, 0.0, "all-gather")
        # Keys and values forward, these and their gradients backward, each in the first step and in the loop.
        assert sent("gpt.gspmd_64b", layout, 0.0, "collective-permute")[piece] >= 12
        assert not sent("gpt.gspmd_64b", layout, 0.0, "all-to-all")
    assert not sent("gpt.quickstart", "fsdp_within_data", 0.1, "collective-permute")


def test_routing_groups_are_not_cut():
    """Positions of an MoE layer's tokens cannot be cut: the error names the component and the rule."""
    wrong = experiment(M4, layouts.context_ring(*MESH))
    with pytest.raises(LayoutError, match=r"'encoder.moe', layout 'context_ring': rule 'length' -> \('model',\), but"):
        state.plan(wrong)
