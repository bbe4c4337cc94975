"""Items that stand for those that a person left, where interactions have no labels."""

from collections.abc import Collection

import numpy as np

_TRIES = 8  # draws for each item that is wanted, before the items that are left are listed


class Sampler:
    """Draws items: a pure function of the seed, the split and the number of an interaction.

    Args:
      counts_I: how often each of I items comes in training; one that never does is not drawn.
      power: of the count, which an item's chance is proportional to; 0 draws all items alike.
    """

    def __init__(self, counts_I: np.ndarray, power: float, seed: int):
        weights_I = np.where(counts_I > 0, np.maximum(counts_I, 1).astype(np.float64) ** power, 0.0)
        self.seed, self._weights, self._sums = seed, weights_I, np.cumsum(weights_I)

    def __call__(self, split: int, index: int, number: int, taken: Collection[int]) -> list[int]:
        """Returns up to `number` different items that are not taken; fewer only where no others are left.

        Args:
          split: number of the split, whose draws are its own.
          index: number of the interaction.
          taken: items that the user has interacted with.
        """
        rng = np.random.default_rng((self.seed, split, index))
        drawn: dict[int, None] = {}
        places = np.searchsorted(self._sums, rng.random(_TRIES * number) * self._sums[-1], side="right").tolist()
        for item in places:
            if item not in taken and item not in drawn:
                drawn[item] = None
                if len(drawn) == number:
                    return list(drawn)
        left = [i for i in np.flatnonzero(self._weights).tolist() if i not in taken and i not in drawn]
        missing = min(number - len(drawn), len(left))
        if missing:
            chances = self._weights[left] / self._weights[left].sum()
            drawn |= dict.fromkeys(np.array(left)[rng.choice(len(left), missing, replace=False, p=chances)].tolist())
        return list(drawn)
