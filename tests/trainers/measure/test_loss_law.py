"""The law of the loss: a known one is recovered from its points, with noise too, and predicts beyond them."""

import numpy as np
import pytest

from trainers.measure.loss_law import Law, Point, fit

KNOWN = Law(floor=1.7, log_a=14.0, log_b=16.5, size=0.3, tokens=0.38, experts=0.0)
MIXTURE = Law(floor=1.7, log_a=14.0, log_b=16.5, size=0.3, tokens=0.38, experts=0.3)


def points(law: Law, experts: tuple[int, ...] = (1,), noise: float = 0.0) -> list[Point]:
    """Runs of five sizes and three numbers of tokens that have the losses of a law, and noise relative to them."""
    draws = np.random.default_rng(0)
    sizes = [(n, d, e) for n in (3e4, 6e4, 1e5, 1.6e5, 2.3e5) for d in (5e5, 1e6, 2e6) for e in experts]
    return [Point(n, d, e, law.loss(n, d, e) * (1 + noise * draws.standard_normal())) for n, d, e in sizes]


@pytest.mark.integration
@pytest.mark.parametrize("law, experts", [(KNOWN, (1,)), (MIXTURE, (4, 8, 16))])
def test_a_known_law_is_recovered(law, experts):
    """Its points are met to a hundredth of a per cent, and a run with ten times the FLOPs of the largest to a tenth."""
    fitted = fit(points(law, experts))
    assert fitted.error(points(law, experts)) < 1e-4
    assert fitted.loss(8e5, 6e6, experts[-1]) == pytest.approx(law.loss(8e5, 6e6, experts[-1]), rel=1e-3)
    assert fitted.experts == pytest.approx(law.experts, abs=0.05)


def test_noise_of_a_seed_moves_a_prediction_little():
    """Losses of runs vary by some .2 % with the seed: a prediction at ten times the FLOPs then is within a per cent."""
    fitted = fit(points(KNOWN, noise=0.002))
    assert fitted.loss(8e5, 6e6) == pytest.approx(KNOWN.loss(8e5, 6e6), rel=0.01)


def test_fewer_runs_than_constants_are_refused():
    """A law through as many points as it likes would say nothing."""
    with pytest.raises(ValueError, match="4 runs: a law with 5 constants needs as many"):
        fit(points(KNOWN)[:4])
