"""Trained models on devices, whatever trained them and wherever their weights lie: what inference begins with."""

import dataclasses
from pathlib import Path

import jax

from configs.registry import ConfigError
from models.execution import Execution
from models.families import ModelConfig
from models.interchange import InterchangeError, tensors
from models.protocol import Model
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import Params, describe
from trainers.plan import model_of_shapes
from trainers.runtime import host_memory
from trainers.weights.source import Weights
from trainers.weights.source import load as load_params


@dataclasses.dataclass(frozen=True)
class Served:
    """A trained model on devices.

    Attributes:
      model: with shapes for parameters, on its mesh.
      params: its parameters, on the mesh.
      vocabulary: the folder with its vocabulary, or with the names of its classes alone; None where there is neither.
    """

    model: Model
    params: Params
    vocabulary: Path | None


def load(weights: Weights, execution: Execution, layout: Layout = ONE_DEVICE, config: ModelConfig | None = None) -> Served:
    """Returns a trained model under a layout; on the first device alone by default.

    Args:
      weights: read onto the mesh a piece at a time.
      execution: how the model is computed.
      config: the model's configuration; by default that of the weights.

    Raises:
      ConfigError: the weights lack a parameter of the model.
      InterchangeError: a parameter has another shape.
      LayoutError: the layout does not fit the model or the devices.
    """
    host_memory.keep()
    config = config or weights.config
    mesh = make_mesh(layout, jax.devices()[: layout.devices])
    model = model_of_shapes(config, Component(layout, mesh=mesh, execution=execution))
    infos = {info.name: info for info in describe(model)}
    shapes = {name: info.shape for name, info in infos.items()}
    if missing := sorted(shapes.keys() - weights.shapes.keys()):
        raise ConfigError(f"the weights lack {', '.join(missing[:8])}: fine-tune them first, or choose another --experiment")
    if wrong := tensors.problems(shapes, {name: tuple(weights.shapes[name]) for name in shapes}):
        raise InterchangeError(f"the weights are not those of this model of family {config.family!r}: {wrong}")
    shardings = {name: info.placement(mesh) for name, info in infos.items()}
    dtype = "float64" if execution.dtype == "float64" else "float32"
    return Served(model, load_params(weights, shardings, shapes, dtype), weights.vocabulary)
