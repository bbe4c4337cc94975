"""A trained model on devices, whatever trained it and wherever it lies: what inference begins with."""

import dataclasses
from typing import Any

import jax

from configs.experiment import Experiment, Lora
from configs.optimizers import Sgd
from configs.registry import ConfigError
from models.interchange import InterchangeError, tensors
from models.sharding.layout import Layout
from models.sharding.layouts import ONE_DEVICE
from trainers import host_memory
from trainers.plan import Plan, make_plan
from trainers.weights.source import Weights, load


def placed(e: Experiment, weights: Weights, layout: Layout = ONE_DEVICE) -> tuple[Plan, dict[str, Any]]:
    """Returns (plan, parameters) of a trained model under a layout; on the first device alone by default.

    Args:
      weights: read onto the mesh a piece at a time.

    Raises:
      ConfigError: the weights lack a parameter of the model.
      InterchangeError: a parameter has another shape.
    """
    host_memory.keep()
    optimizer = Sgd(schedule=e.optimizer.schedule)  # which has no state that a plan would describe
    e = dataclasses.replace(e, layout=layout, optimizer=optimizer).with_finetune(lora=Lora(), freeze=())
    plan = make_plan(e, jax.devices()[: layout.devices])
    shapes = {info.name: info.shape for info in plan.parameters}
    if missing := sorted(shapes.keys() - weights.shapes.keys()):
        raise ConfigError(f"the weights lack {', '.join(missing[:8])}: fine-tune them first, or choose another --experiment")
    if wrong := tensors.problems(shapes, {name: tuple(weights.shapes[name]) for name in shapes}):
        raise InterchangeError(f"the weights are not those of {e.name}'s model: {wrong}")
    return plan, load(weights, plan.shardings.params, shapes, plan.experiment.train.master_dtype)
