"""Numbers drawn for settings."""

from collections.abc import Callable
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], tuple[str, dict[str, Any]]]  # (the class of `transformers`, its settings)


def below(rng: np.random.Generator, most: int, least: int = 1) -> int:
    """Returns an integer from `least` on, below `most`."""
    return int(rng.integers(least, most))


def flag(rng: np.random.Generator) -> bool:
    """Returns true or false."""
    return bool(rng.integers(2))


def one_of(rng: np.random.Generator, *values: Any) -> Any:
    """Returns one of these values."""
    return values[below(rng, len(values), 0)]


def factor(rng: np.random.Generator) -> float:
    """Returns a number of three digits between 0.1 and 2.5."""
    return round(float(rng.uniform(0.1, 2.5)), 3)
