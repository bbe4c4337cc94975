"""Checks of a configuration's numbers, whether they were typed or come from somebody's file. No JAX here."""

import dataclasses
import math
from typing import Any


def check_finite(config: Any) -> None:
    """Raises ValueError for a number of a configuration that is NaN or infinite."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{field.name}={number}: must be a finite number")


def check_epsilon(value: float, name: str = "norm_eps") -> None:
    """Raises ValueError for what a norm cannot add to a variance; float32 makes 0 of what is smaller than 1e-37."""
    if not 1e-37 <= value < 1:
        raise ValueError(f"{name}={value}: must be positive and less than 1; usual are 1e-6 and 1e-5")


def check_base(value: float, name: str = "rotary_base") -> None:
    """Raises ValueError for a base that gives no rates of rotary positions."""
    if not 1 < value <= 1e30:
        raise ValueError(f"{name}={value}: must be more than 1 and at most 1e30; LLaMA's is 10000")
