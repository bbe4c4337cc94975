"""How an experiment's model runs, apart from what it computes: where planner and tables read such fields."""

import dataclasses
from typing import Any

from configs.experiment import Experiment


def dtype(e: Experiment) -> str:
    """Returns the dtype of activations and of weights as they are used."""
    return getattr(e.model, "dtype", e.train.master_dtype)


def remat(e: Experiment) -> str:
    """Returns what the backward pass keeps (models/sharding/remat.py)."""
    return getattr(e.model, "remat", "none")


def with_remat(e: Experiment, policy: str) -> Experiment:
    """Returns the same experiment with another `remat`; raises ValueError for a model without a choice."""
    if policy == remat(e):
        return e
    if not _has(e, "remat"):
        raise ValueError(f"{e.name}: a model of family {e.model.family!r} has no remat, so it cannot be {policy!r}")
    return _with(e, remat=policy)


def with_dtype(e: Experiment, dtype: str) -> Experiment:
    """Returns the same experiment computed in this dtype; a model without a choice computes in that of its weights."""
    return _with(e, dtype=dtype) if _has(e, "dtype") else e


def mathematical(e: Experiment) -> Experiment:
    """Returns the experiment as the mathematics has it: nothing is computed a second time, and no product is only a way to move
    tokens."""
    return _with(with_remat(e, "none"), **({"dispatch": "sort"} if _has(e, "dispatch") else {}))


def ordinary(e: Experiment) -> Experiment:
    """Returns the experiment with the same products, all of them ordinary ones: grouped products cannot be counted in a trace."""
    return _with(e, dispatch="sort") if getattr(e.model, "dispatch", "") == "ragged" else e


def _has(e: Experiment, field: str) -> bool:
    return field in type(e.model).__dataclass_fields__


def _with(e: Experiment, **changes: Any) -> Experiment:
    return dataclasses.replace(e, model=dataclasses.replace(e.model, **changes)) if changes else e
