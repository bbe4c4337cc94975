"""What a run remembers: parameters, optimizer state, step. Shapes first, then shardings, then arrays."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs.schema import Experiment, SyntheticTranslation
from models.common.layout import LayoutError
from models.common.sharding import Component, ParamInfo, components, describe, flatten, make_mesh, nest, split
from models.families import model_class
from trainers import optimizers

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A run's state: arrays, or in a Plan their shapes or shardings.

    `step` counts batches seen; `skipped`, those whose update was not finite and left out.
    """

    step: Any
    skipped: Any
    params: dict[str, Any]
    optimizer: PyTree


@dataclasses.dataclass(frozen=True)
class Plan:
    """An experiment with everything that is known before any array exists.

    Attributes:
      model: the abstract model (its parameters are ShapeDtypeStructs): `merge(model, params)` makes it real.
      infos: nested dictionaries of ParamInfo.
      state: the abstract State.
      shardings: a State of NamedShardings, None without a mesh.
    """

    experiment: Experiment
    mesh: Mesh | None
    model: Any
    infos: dict[str, Any]
    tx: optax.GradientTransformation
    state: State
    shardings: Any

    @functools.cached_property
    def parameters(self) -> list[ParamInfo]:
        return list(flatten(self.infos).values())

    def replicated(self) -> Any:
        return self.mesh and NamedSharding(self.mesh, PartitionSpec())

    def batch_sharding(self) -> Any:
        """Of an input [B, L]: cut by the root component's rules for the batch."""
        return self.mesh and NamedSharding(self.mesh, self.model.where.spec(("batch", "length"), tensor="a batch"))


def abstract_model(experiment: Experiment, mesh: Mesh | None = None) -> Any:
    """The model of an experiment with shapes for parameters; raises LayoutError if its layout does not fit it."""
    where = Component(experiment.layout, mesh=mesh)
    build = functools.partial(model_class(experiment.model), experiment.model, where=where)
    model = jax.eval_shape(lambda key: build(key=key), jax.random.key(0))
    experiment.layout.check_components(components(model))
    for info in describe(model):
        info.spec()
    return model


def plan(experiment: Experiment, devices: list | None = None, *, abstract: bool = False) -> Plan:
    """Everything about an experiment but its arrays.

    Args:
      devices: the devices of the mesh; all by default.
      abstract: plan without any device (for tables); nothing can run then.

    Raises:
      LayoutError: the layout does not fit the model or the devices.
    """
    mesh = None if abstract else make_mesh(experiment.layout, devices)
    model = abstract_model(experiment, mesh)
    dtype = jnp.dtype(experiment.train.master_dtype)
    infos = nest({info.name: dataclasses.replace(info, dtype=dtype) for info in describe(model)})
    tx = optimizers.make(experiment.optimizer, infos, experiment.train.clip_norm)
    state = jax.eval_shape(functools.partial(_create, experiment, model, tx))
    shardings = None
    if mesh:
        everywhere = NamedSharding(mesh, PartitionSpec())
        shardings = State(
            step=everywhere,
            skipped=everywhere,
            params=jax.tree.map(lambda info: NamedSharding(mesh, info.spec()), infos),
            optimizer=optimizers.state_shardings(state.optimizer, infos, mesh),
        )
    rows = experiment.data.batch_size
    if rows % experiment.train.microbatches:
        raise LayoutError(f"batch_size={rows} is not divisible by microbatches={experiment.train.microbatches}")
    if not isinstance(experiment.data, SyntheticTranslation):
        model.where.spec(("batch", None), (experiment.eval.batch_size, 0), tensor="sentences to translate")
    names = ("batch", "length")
    model.where.spec(names, (rows // experiment.train.microbatches, experiment.data.target_length), tensor="a batch")
    return Plan(experiment, mesh, model, infos, tx, state, shardings)


def _create(experiment: Experiment, model: Any, tx: optax.GradientTransformation) -> State:
    """A fresh state. Initial values depend on the seed alone, never on the layout."""
    build = model_class(experiment.model)
    where = dataclasses.replace(model.where, mesh=None)
    params = split(build(experiment.model, jax.random.key(experiment.train.seed), where))
    params = jax.tree.map(lambda p: p.astype(experiment.train.master_dtype), params)
    zero = jnp.zeros((), jnp.int32)
    return State(step=zero, skipped=zero, params=params, optimizer=tx.init(params))


def create(p: Plan) -> State:
    """A fresh state, made on the mesh: no device ever holds more than its share."""
    return jax.jit(functools.partial(_create, p.experiment, p.model, p.tx), out_shardings=p.shardings)()


# --- as plain dictionaries ---------------------------------------------------------------------------------------


def to_tree(state: State) -> dict[str, Any]:
    """A state as nested dictionaries of arrays, the form in which it is stored: no class of ours or Optax's in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.optimizer)
    optimizer = {_path_name(path): leaf for path, leaf in leaves}
    return {"step": state.step, "skipped": state.skipped, "params": state.params, "optimizer": nest(optimizer)}


def from_tree(like: State, tree: dict[str, Any]) -> State:
    """The inverse of `to_tree`, into the structure of `like`."""
    flat = flatten(tree["optimizer"])
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like.optimizer)
    optimizer = jax.tree.unflatten(treedef, [flat[_path_name(path)] for path, _ in leaves])
    return State(tree["step"], tree["skipped"], tree["params"], optimizer)


def _path_name(path) -> str:
    keys = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", None)))) for k in path]
    return ".".join(keys)
