"""Experiments that are rows of a published table: one function makes them all, given the sizes of each."""

from collections.abc import Callable
from typing import Any

from configs.experiment import Experiment


def row(make: Callable[..., Experiment], about: str, *sizes: Any, **fields: Any) -> Callable[[], Experiment]:
    """Returns the function of the experiment `make(*sizes, **fields)`, which belongs to the module of `make`; `about` is its
    docstring."""

    def experiment() -> Experiment:
        return make(*sizes, **fields)

    experiment.__doc__, experiment.__module__ = about, make.__module__
    return experiment
