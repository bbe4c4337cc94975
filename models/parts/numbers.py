"""Checks of a configuration's numbers, whether they were typed or come from somebody's file. No JAX here."""

import dataclasses
import math
import typing
from typing import Any

from models.errors import nearest


def check_finite(config: Any) -> None:
    """Raises ValueError for a number of a configuration that is NaN or infinite."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{field.name}={number}: must be a finite number")


def check_literals(config: Any) -> None:
    """Raises ValueError, with the nearest choice, for a value of a configuration that its field's `Literal` does not list."""
    for name, kind in typing.get_type_hints(type(config)).items():
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        if choices and (value := getattr(config, name)) not in choices:
            raise ValueError(f"{name}={value!r}: no such {name}{nearest(str(value), choices)}")


def check_least(config: Any, least: int, *names: str) -> None:
    """Raises ValueError for fields of a configuration that are below `least`."""
    for name in names:
        if (value := getattr(config, name)) < least:
            raise ValueError(f"{name}={value}: must be {least} or more")


def nearest_divisor(n: int, wanted: int) -> int:
    """Returns the divisor of n that is nearest to a number which does not divide it."""
    return min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - wanted))


def check_within(config: Any, name: str, usual: str = "") -> None:
    """Raises ValueError for a rate outside [0, 1)."""
    if not 0 <= getattr(config, name) < 1:
        raise ValueError(f"{name}={getattr(config, name)}: must be in [0, 1){f', {usual}' if usual else ''}")


def check_epsilon(value: float, name: str = "norm_eps") -> None:
    """Raises ValueError for what a norm cannot add to a variance; float32 makes 0 of what is smaller than 1e-37."""
    if not 1e-37 <= value < 1:
        raise ValueError(f"{name}={value}: must be positive and less than 1; usual are 1e-6 and 1e-5")


def check_base(value: float, name: str = "rotary_base") -> None:
    """Raises ValueError for a base that gives no rates of rotary positions."""
    if not 1 < value <= 1e30:
        raise ValueError(f"{name}={value}: must be more than 1 and at most 1e30; LLaMA's is 10000")
