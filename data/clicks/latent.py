"""Made-up interactions: users, items and circumstances have vectors, and a label is drawn with the probability that they give.

The score of a row is

    bias + strength * (a_u + b_i + p_u . q_i + p_u . r_c + x) / sqrt(5)

with a, b ~ N(0, 1); p, q, r ~ N(0, 1 / sqrt(factors)) in each number, so that a product has variance 1; and x a standardised
number of the row. Items come with the frequency 1 / sqrt(place). A model that knew the vectors would give these probabilities:
none has a better AUC on average.
"""

from typing import TYPE_CHECKING

import numpy as np

from data.clicks.interactions import Interactions
from data.clicks.metrics import probabilities
from data.task import DataError

if TYPE_CHECKING:
    from data.clicks.caches import LatentCache

AMOUNT = "amount"  # the number: log(1 + x) of x whose logarithm is normal
_MIDDLE, _WIDTH = 3.0, 0.5  # mean and standard deviation of that logarithm


def interactions(settings: "LatentCache") -> Interactions:
    """Returns the interactions that the settings describe, a function of them alone."""
    s = settings
    for name in ("users", "items", "interactions", "factors", "contexts"):
        if (value := getattr(s, name)) < 1:
            raise DataError(f"{name}={value}: must be at least 1")
    rng = np.random.default_rng(s.seed)
    p_UK, q_IK, r_CK = (rng.normal(0, s.factors**-0.25, (n, s.factors)) for n in (s.users, s.items, s.contexts))
    a_U, b_I = rng.normal(size=s.users), rng.normal(size=s.items)
    chances_I = 1 / np.sqrt(np.arange(1, s.items + 1))
    u_N = rng.integers(0, s.users, s.interactions)
    i_N = rng.choice(s.items, s.interactions, p=chances_I / chances_I.sum())
    c_N = rng.integers(0, s.contexts, s.interactions)
    x_N = rng.normal(size=s.interactions)
    products_N = np.einsum("nk,nk->n", p_UK[u_N], q_IK[i_N] + r_CK[c_N])
    score_N = s.bias + s.strength * (a_U[u_N] + b_I[i_N] + products_N + x_N) / np.sqrt(5)
    known_N = probabilities(score_N)
    return Interactions(
        users=u_N,
        items=i_N,
        user_names=[str(n) for n in range(s.users)],
        item_names=[str(n) for n in range(s.items)],
        labels=(rng.random(s.interactions) < known_N).astype(np.float32),
        times=np.arange(s.interactions, dtype=np.float64),
        contexts={"context": c_N},
        dense={AMOUNT: np.log1p(np.exp(_MIDDLE + _WIDTH * x_N)).astype(np.float32)},
        probabilities=known_N,
    )
