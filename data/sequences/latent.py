"""Made-up sequences: an item follows another by a known rule or by a user's taste, and an action has a known probability.

The next item is with probability `chained` a successor of the one before, of which every item has SUCCESSORS, drawn at random
and taken with the chances CHANCES; else it is drawn with a probability proportional to exp(strength * (p_u . q_i + b_i) /
sqrt(2)). The score of an action is strength * (p_u . r_i + s) / sqrt(2), where s is 1 if the item is a successor of the one
before and -1 if not. Vectors p, q, r ~ N(0, 1 / sqrt(factors)) in each number, so that a product has variance 1, and b ~ N(0, 1).
A model that knew all this would give these probabilities; ranked by them, items have the best NDCG that can be expected.
"""

from typing import TYPE_CHECKING

import numpy as np

from data.clicks.interactions import Interactions
from data.clicks.metrics import probabilities
from data.task import DataError

if TYPE_CHECKING:
    from data.sequences.caches import LatentSequenceCache

CHANCES = np.array([0.5, 0.25, 0.15, 0.1])
SUCCESSORS = len(CHANCES)
_PAUSE = 3_600.0  # mean seconds between two interactions of a user


def interactions(settings: "LatentSequenceCache") -> tuple[Interactions, np.ndarray]:
    """Returns the interactions that the settings describe, and the rank [N] of each one's item among all by the probabilities
    that it was drawn with, 1 for the likeliest: functions of the settings alone.

    Raises:
      DataError: a size is too small, or `chained` is no share.
    """
    s = settings
    for name, least in (("users", 1), ("items", SUCCESSORS + 1), ("interactions", 1), ("factors", 1)):
        if (value := getattr(s, name)) < least:
            raise DataError(f"{name}={value}: must be at least {least}")
    if not 0 <= s.chained <= 1:
        raise DataError(f"chained={s.chained}: expected a share, from 0 to 1")
    rng = np.random.default_rng(s.seed)
    p_UK, q_IK, r_IK = (rng.normal(0, s.factors**-0.25, (n, s.factors)) for n in (s.users, s.items, s.items))
    logits_UI = s.strength * (p_UK @ q_IK.T + rng.normal(size=s.items)) / np.sqrt(2)
    taste_UI = np.exp(logits_UI - logits_UI.max(axis=1, keepdims=True))
    taste_UI /= taste_UI.sum(axis=1, keepdims=True)
    after_IS = np.argsort(rng.random((s.items, s.items)) + 2 * np.eye(s.items), axis=1)[:, :SUCCESSORS]
    chained_II = np.zeros((s.items, s.items))
    np.put_along_axis(chained_II, after_IS, s.chained * CHANCES, axis=1)
    user_U = np.arange(s.users)
    items_TU, ranks_TU = (np.zeros((s.interactions, s.users), np.int64) for _ in range(2))
    score_TU = np.zeros((s.interactions, s.users))
    for t in range(s.interactions):
        if t:
            before_U = items_TU[t - 1]
            chances_UI = (1 - s.chained) * taste_UI + chained_II[before_U]
        else:
            before_U, chances_UI = np.full(s.users, -1), taste_UI
        sums_UI = np.cumsum(chances_UI, axis=1)
        items_TU[t] = np.minimum((sums_UI < rng.random((s.users, 1)) * sums_UI[:, -1:]).sum(axis=1), s.items - 1)
        ranks_TU[t] = (chances_UI >= chances_UI[user_U, items_TU[t]][:, None]).sum(axis=1)
        follows_U = chained_II[before_U, items_TU[t]] > 0 if t else np.zeros(s.users, bool)
        liking_U = np.einsum("uk,uk->u", p_UK, r_IK[items_TU[t]])
        score_TU[t] = s.strength * (liking_U + np.where(follows_U, 1, -1)) / np.sqrt(2)
    times_TU = np.cumsum(rng.exponential(_PAUSE, (s.interactions, s.users)), axis=0)
    order_N = np.argsort(times_TU, axis=None, kind="stable")

    def ordered(x_TU: np.ndarray) -> np.ndarray:
        return x_TU.ravel()[order_N]

    known_N = probabilities(ordered(score_TU))
    made = Interactions(
        users=ordered(np.broadcast_to(user_U, items_TU.shape)),
        items=ordered(items_TU),
        user_names=[str(n) for n in range(s.users)],
        item_names=[str(n) for n in range(s.items)],
        labels=(rng.random(len(known_N)) < known_N).astype(np.float32),
        times=np.floor(ordered(times_TU)),
        probabilities=known_N,
    )
    return made, ordered(ranks_TU)
