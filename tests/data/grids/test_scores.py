"""Scores of forecasts, forecasts without a model, and motion."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.grids import baselines, metrics, motion
from models.parts.losses import Ratio

# Of ten points, four where the event came; probabilities above 0, 1/4, 1/2 and 3/4.
HITS = np.array([[[4.0, 4, 3, 1]]])
FORECAST = np.array([[[10.0, 6, 3, 1]]])


def test_decisions_are_the_best_by_csi():
    """From probability 1/2 on, three are forecast and came, of four."""
    assert metrics.best_cuts(HITS, FORECAST).tolist() == [[2]]
    assert_allclose(metrics.csi(HITS, FORECAST, HITS[..., :1]), [[[0.4, 4 / 6, 3 / 4, 1 / 4]]])


def test_reliability_is_the_distance_of_probabilities_from_shares():
    """Points within each quarter of probability, beside the share of them where it came."""
    within, came = [4, 3, 2, 1], [0, 1, 2, 1]
    want = sum(n * (middle - c / n) ** 2 for n, c, middle in zip(within, came, (0.125, 0.375, 0.625, 0.875), strict=True)) / 10
    assert_allclose(metrics.reliability(HITS, FORECAST), [[want]])


def test_scores_use_the_decisions_that_are_given():
    """The decisions are those of another split: here from probability 3/4 on."""
    totals = {
        "exceeded": Ratio(HITS, FORECAST),  # pyright: ignore[reportArgumentType]
        "brier": Ratio(np.array([[2.0]]), np.array([[10.0]])),  # pyright: ignore[reportArgumentType]
        "crps": Ratio(np.array([3.0]), np.array([10.0])),  # pyright: ignore[reportArgumentType]
    }
    scores = metrics.scores(totals, np.array([[3]]), (0.2,), (1,))
    assert scores["lead_1/csi_0.2"] == 0.25 and scores["lead_1/brier_0.2"] == 0.2 and scores["lead_1/crps"] == 0.3


def moving(speed: tuple[float, float], steps: int = 9, size: tuple[int, int] = (96, 120)) -> np.ndarray:
    """Frames [T, H, W] of blobs that move by so many rows and columns a step."""
    rng = np.random.default_rng(0)
    y, x = np.indices(size)
    at = rng.uniform(0, 1, (40, 2)) * np.array(size)
    strength = rng.exponential(3, 40)
    frames = np.zeros((steps, *size))
    for t in range(steps):
        for (row, column), s in zip(at, strength, strict=True):
            frames[t] += s * np.exp(-((y - row - t * speed[0]) ** 2 + (x - column - t * speed[1]) ** 2) / 30)
    return frames


def test_persistence_and_translation():
    """A field that moves as a whole is forecast by its translation, to about a point, and not by the last frame."""
    frames = moving((1, -2))
    inner = (slice(30, 66), slice(30, 90))
    assert (baselines.persistence(frames[:7], 2) == frames[6]).all()
    assert_allclose(baselines.displacement(frames[0], frames[6]), (6, -12), atol=1)
    errors = [np.abs(f(frames[:7], 2) - frames[8])[inner].mean() for f in baselines.NOWCASTS.values()]
    assert errors[1] < errors[0] / 4
    assert (baselines.translation(np.zeros((7, 16, 16)), 2) == 0).all()


@pytest.mark.parametrize("speed", [(0.0, 0.0), (0.6, -1.3), (-2.0, 1.5)])
def test_the_field_of_motion_is_that_of_what_moves(speed):
    """Where there is something, within a fifth of a point a step; also with points missing."""
    frames = moving(speed)[:7]
    frames[3, 40:44, 50:60] = np.nan
    field = motion.field(np.log1p(frames))
    assert field.shape == (2, 24, 30) and field.dtype == np.float32
    assert_allclose(field[:, 8:16, 8:22].mean(axis=(1, 2)), speed, atol=0.2)


def test_frames_are_carried_along_a_field():
    """A field of one motion carries like a translation; what comes from outside or from missing points is missing."""
    frame = moving((0, 0))[0][..., None].astype(np.float32)
    frame[10, 10] = np.nan
    field = np.broadcast_to(np.array([1.0, -2.0])[:, None, None], (2, 24, 30)).astype(np.float32)
    moved = motion.carried(frame, motion.origins(field, 3, 96, 120))
    assert_allclose(moved[10:40, 20:60], frame[7:37, 26:66], rtol=1e-4, atol=1e-5)
    assert np.isnan(moved[:3]).all() and np.isnan(moved[:, -6:]).all() and np.isnan(moved[13, 4])
    assert_allclose(motion.carried(frame, motion.origins(0 * field, 3, 96, 120)), frame, rtol=1e-5)


def test_motion_turns_with_the_field():
    """In a field that turns, paths are bent: after a quarter of a turn what was right of the centre is above or below it."""
    y, x = np.indices((24, 30)) * 4.0 + 1.5
    steps = 30
    turn = np.pi / 2 / steps
    field = np.stack([-(x - 60) * turn, (y - 48) * turn]).astype(np.float32)
    frame = np.exp(-((np.indices((96, 120))[0] - 48) ** 2 + (np.indices((96, 120))[1] - 80) ** 2) / 30)[..., None].astype(
        np.float32
    )
    moved = np.nan_to_num(motion.carried(frame, motion.origins(field, steps, 96, 120)))[..., 0]
    row, column = np.unravel_index(np.argmax(moved), moved.shape)
    assert abs(row - 28) <= 3 and abs(column - 60) <= 3
