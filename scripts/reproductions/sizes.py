"""Counts of parameters and FLOPs of experiments at full size, without an array."""

import dataclasses
import functools

from configs import registry
from configs.experiment import Experiment
from models.sharding.layouts import ONE_DEVICE


@functools.cache
def parameters(name: str) -> int:
    """Returns the number of parameters of an experiment."""
    return sum(parts(name).values())


@functools.cache
def parts(name: str) -> dict[str, int]:
    """Returns the number of elements of each parameter of an experiment, by name."""
    return _parts_of(registry.load(name))


def parameters_of(e: Experiment) -> int:
    """Returns the number of parameters of an experiment that has no name of its own."""
    return sum(_parts_of(e).values())


def _parts_of(e: Experiment) -> dict[str, int]:
    from trainers.plan import make_plan

    plan = make_plan(dataclasses.replace(e, layout=ONE_DEVICE), abstract=True)
    return {info.name: info.size for info in plan.parameters}


@functools.cache
def step_flops(name: str) -> float:
    """Returns the model FLOPs of a training step, recomputation not counted (PaLM's definition)."""
    from trainers.hlo.model_flops import model_flops

    return model_flops(registry.load(name))
