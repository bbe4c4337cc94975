"""Counts of parameters and FLOPs of experiments at full size, without an array."""

import dataclasses
import functools

from configs import registry
from models.sharding.layouts import ONE_DEVICE


@functools.cache
def parameters(name: str) -> int:
    """Returns the number of parameters of an experiment."""
    return sum(parts(name).values())


@functools.cache
def parts(name: str) -> dict[str, int]:
    """Returns the number of elements of each parameter of an experiment, by name."""
    from trainers.plan import make_plan

    e = registry.load(name)
    plan = make_plan(dataclasses.replace(e, layout=ONE_DEVICE), abstract=True)
    return {info.name: info.size for info in plan.parameters}


@functools.cache
def step_flops(name: str) -> float:
    """Returns the model FLOPs of a training step, recomputation not counted (PaLM's definition)."""
    from trainers.programs.model_flops import model_flops

    return model_flops(registry.load(name))
