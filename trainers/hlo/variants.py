"""An experiment computed in another way: with another recomputation, or with the products that its mathematics has."""

import dataclasses
from typing import Any

from configs.experiment import Experiment


def with_remat(e: Experiment, policy: str) -> Experiment:
    """Returns the same experiment, whose backward pass keeps the same of every layer (models/sharding/remat.py), all of it on the
    device."""
    return _with(e, remat=policy, remat_of=(), offload="none")


def mathematical(e: Experiment) -> Experiment:
    """Returns the experiment as the mathematics has it: nothing is computed a second time, no product is only a way to move
    tokens, and experts multiply the tokens that are sent to them, no empty slots."""
    return _with(with_remat(unquantized(e), "none"), dispatch="ragged")


def with_slots(e: Experiment) -> Experiment:
    """Returns the experiment as `mathematical`, but for experts that multiply all slots of their buffers, filled or empty."""
    return _with(mathematical(e), dispatch="sort")


def unquantized(e: Experiment) -> Experiment:
    """Returns the experiment with the same products, none of them of whole numbers, which a trace finds no gradients of."""
    return _with(e, quantization="none")


def ordinary(e: Experiment) -> Experiment:
    """Returns the experiment with buffers in place of grouped products, whose tensors have the names that are looked for."""
    return _with(e, dispatch="sort") if e.execution.dispatch == "ragged" else e


def _with(e: Experiment, **changes: Any) -> Experiment:
    return dataclasses.replace(e, execution=dataclasses.replace(e.execution, **changes))
