"""A law of the loss of a model in its size, its training tokens and its experts, fitted to runs.

    L(N, D, E) = L0 + ((A / (N E^g))^(a / b) + B / D)^b

N is the number of multiplications that a token needs in the forward pass, D the number of training tokens, E that of experts, 1
of a dense model. For E = 1 it is equation 1.5 of Kaplan et al. (arXiv 2001.08361) with a floor: a small model gains less from
more tokens than a large one, as runs here do, where a sum of one term for each, equation 2 of Hoffmann et al. (arXiv 2203.15556),
has them gain as much. The fit is as Hoffmann's (section 3.3, appendix D.2): the least Huber loss of logarithms, from a grid of
starts. That experts multiply the size to a power g is the simplest form of what Clark et al. (arXiv 2202.01169) find.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

LEAST = 0.01  # nats a token, of a floor
HUBER = 1e-3  # of the difference of logarithms, beyond which a run counts linearly


@dataclasses.dataclass(frozen=True)
class Point:
    """A run: its size N, its tokens D, its experts E, and its loss in nats a token."""

    size: float
    tokens: float
    experts: int
    loss: float


@dataclasses.dataclass(frozen=True)
class Law:
    """The constants of the law, as above; `experts` is g, which is 0 where all runs have as many experts.

    Attributes:
      floor: L0, in nats a token; LEAST where the runs show none.
      log_a, log_b: logarithms of A and B.
      size, tokens: the powers a and b.
    """

    floor: float
    log_a: float
    log_b: float
    size: float
    tokens: float
    experts: float

    def loss(self, size: float, tokens: float, experts: int = 1) -> float:
        """Returns the loss in nats a token."""
        log_size = math.log(size) + self.experts * math.log(experts)
        of_size = self.size / self.tokens * (self.log_a - log_size)
        return self.floor + math.exp(self.tokens * float(np.logaddexp(of_size, self.log_b - math.log(tokens))))

    def error(self, points: Sequence[Point]) -> float:
        """Returns the root of the mean squared relative difference of the law to runs."""
        differences = [self.loss(p.size, p.tokens, p.experts) / p.loss - 1 for p in points]
        return math.sqrt(sum(d * d for d in differences) / len(differences))


def fit(points: Sequence[Point]) -> Law:
    """Returns the law that is nearest to runs.

    Raises:
      ValueError: there are fewer runs than constants.
    """
    from scipy.optimize import least_squares

    several = len({p.experts for p in points}) > 1
    if len(points) < 5 + several:
        raise ValueError(f"{len(points)} runs: a law with {5 + several} constants needs as many")
    log_n, log_d, log_e = (np.log([getattr(p, name) for p in points]) for name in ("size", "tokens", "experts"))
    log_loss = np.log([p.loss for p in points])
    # A and B are taken at the runs' means: at N = D = 1, far from every run, they would hang on the powers.
    mean_n, mean_d = log_n.mean(), log_d.mean()

    def residuals(constants: np.ndarray) -> np.ndarray:
        floor, a, b, size, tokens, experts = constants
        of_size = (a - size * (log_n - mean_n + experts * several * log_e)) / tokens
        above = tokens * np.logaddexp(of_size, b / tokens - (log_d - mean_d))
        return np.logaddexp(floor, above) - log_loss

    # The least floor that is tried, LEAST, is none.
    starts = itertools.product((-3.0, 0.5), (0.5, 1.2), (0.5, 1.2), (0.1, 0.4), (0.1, 0.4), (0.2,))
    bounds = np.transpose([(math.log(LEAST), 3.0), (-8.0, 3.0), (-8.0, 3.0), (0.02, 3.0), (0.02, 3.0), (0.0, 1.0)])
    fits = [least_squares(residuals, start, bounds=bounds, loss="huber", f_scale=HUBER, xtol=1e-12) for start in starts]
    floor, a, b, size, tokens, experts = (float(x) for x in min(fits, key=lambda each: each.cost).x)
    return Law(math.exp(floor), a / size + mean_n, b / tokens + mean_d, size, tokens, experts * several)
