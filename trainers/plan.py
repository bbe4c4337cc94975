"""An experiment with everything that is known before any array exists: shapes first, then shardings, then arrays."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs.experiment import Experiment
from configs.registry import ConfigError
from data.features import Feature, Features, lengths
from data.reading.batches import batch_shapes
from models.errors import multiples
from models.families import ModelConfig, family_of
from models.protocol import SOFT_TARGETS, Batch, ChecksRows, Distils, Model, RowReader
from models.sharding.component import Component, make_mesh
from models.sharding.layout import LayoutError
from models.sharding.padding import even, padded_shape
from models.sharding.params import ParamInfo, Params, components, describe, to_params, with_params
from models.sharding.pipelines import one_f_one_b
from models.sharding.pipelines.checks import check_pipelines
from models.sharding.pipelines.gpipe import data_axes, schedules, to_layer_order, to_stage_order
from models.sharding.pipelines.schedule import Schedule
from trainers import lora
from trainers.optimizers import by_rows, transforms
from trainers.runtime import xla_flags
from trainers.state import State, in_form


@dataclasses.dataclass(frozen=True)
class Plan:
    """An experiment with everything that is known before any array exists.

    Attributes:
      model: the abstract model (its parameters are ShapeDtypeStructs): `merge(model, params)` makes it real.
      infos: ParamInfos by name; adapters of LoRA are among them.
      trained: names of the parameters that the run changes; the optimizer has no others.
      state: the abstract State.
      shardings: a State of NamedShardings, None without a mesh; they cut some dimensions in unequal parts, where the layout pads.
      statistics: names of the running statistics that each step replaces.
      by_rows: readers of the parameters of which a step changes the rows alone that its batch reads, by name.
    """

    experiment: Experiment
    mesh: Mesh | None
    model: Model
    infos: dict[str, ParamInfo]
    trained: frozenset[str]
    tx: optax.GradientTransformation
    state: State
    shardings: Any
    statistics: frozenset[str] = frozenset()
    by_rows: Mapping[str, RowReader] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def apart(self) -> frozenset[str]:
        """Returns the projections whose adapters stay apart: those that are no experts'."""
        infos = describe(self.model)
        return frozenset(info.name for info in infos if lora.is_linear(info) and "expert" not in info.axes)

    @functools.cached_property
    def parameters(self) -> list[ParamInfo]:
        return list(self.infos.values())

    @property
    def has_experts(self) -> bool:
        """Returns whether the model has a mixture of experts."""
        return any("expert" in info.axes for info in self.parameters)

    def replicated(self) -> Any:
        return self.mesh and NamedSharding(self.mesh, PartitionSpec())

    @functools.cached_property
    def step_form(self) -> State:
        """Returns the abstract State between steps: `state` with its shardings, padded to equal parts."""
        return self._placed(lambda x, s: jax.ShapeDtypeStruct(padded_shape(x.shape, s), x.dtype, sharding=s))

    @functools.cached_property
    def model_form(self) -> State:
        """Returns the abstract State as it is stored: `state` with shardings in equal parts."""
        return self._placed(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=even(x.shape, s)))

    def _placed(self, place: Callable[[Any, NamedSharding], jax.ShapeDtypeStruct]) -> State:
        return jax.tree.map(place, self.state, self.shardings) if self.shardings else self.state

    def features(self) -> Features:
        """Returns the arrays of a batch: the data's, and a teacher's soft targets.

        Raises:
          ConfigError: there is a teacher, and the model's loss reads no soft targets.
        """
        e, features = self.experiment, self.experiment.data.features()
        if not e.train.distillation.teacher:
            return features
        if not isinstance(self.model, Distils):
            raise ConfigError(f"{teacher_of(e)}: the loss of family {e.model.family!r} reads no soft targets")
        _, *outputs = outputs_of(self.model, e)
        dtype = "bfloat16" if e.execution.dtype == "bfloat16" else "float32"
        return features | {SOFT_TARGETS: Feature(tuple(outputs), ("length", "act_vocab"), dtype)}

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the abstract global batch that a step takes, with its shardings."""
        rows, shardings = self.experiment.data.batch_size, self.batch_shardings()
        features = self.features().items()
        return {k: jax.ShapeDtypeStruct((rows, *f.shape), f.dtype, sharding=shardings[k]) for k, f in features}

    def batch_shardings(self) -> dict[str, NamedSharding | None]:
        """Returns the sharding of each input array, by name: cut by the rules of the component that reads it."""
        rows = self.experiment.data.batch_size
        return {k: input_sharding(self.model, k, f, rows) for k, f in self.features().items()}

    def units(self) -> tuple[str, ...]:
        """Returns the model's units of work, in its order: throughput is reported in the first one."""
        names: list[str] = []
        # Collected inside, because eval_shape sorts the names of a returned dictionary.
        jax.eval_shape(lambda batch: names.extend(self.model.units(batch)), batch_shapes(self.experiment.data))
        return tuple(names)

    def work_per_step(self) -> dict[str, int]:
        """Returns the work of a batch of full rows by unit, as the model counts it for its throughput."""
        data = self.experiment.data
        row = {name: jnp.ones((1, *f.shape), f.dtype) for name, f in data.features().items()}
        return {unit: int(n) * data.batch_size for unit, n in self.model.units(row).items()}

    def optimizer_specs(self) -> dict[str, tuple[Any, PartitionSpec]]:
        """Returns (abstract array, PartitionSpec) of every array of the optimizer's state, by path."""
        return transforms.state_specs(self.state.optimizer, self.infos)

    def learning_rate(self) -> optax.Schedule:
        """Returns the learning rate as a function of the steps whose update was finite."""
        return transforms.learning_rate(self.experiment.optimizer.schedule)

    def split_trained(self, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Splits parameters, or anything by their names, into (those that are trained, those that are not)."""
        changed, kept = ({k: v for k, v in params.items() if (k in self.trained) is side} for side in (True, False))
        return changed, kept

    def optimizer_of(self, names: Iterable[str]) -> optax.GradientTransformation:
        """Returns the optimizer of some of the trained parameters."""
        e, infos = self.experiment, {name: self.infos[name] for name in names}
        return transforms.of_parameters(e.optimizer, infos, e.train.clip_norm, e.train.finetune)

    def with_adapters(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the parameters as plain arrays, adapters merged."""
        return lora.merged(params, self.experiment.train.finetune.lora)

    def in_place(self, params: dict[str, Any], key: jax.Array | None = None) -> dict[str, Any]:
        """Returns the parameters as the step computes with them: adapters beside their matrices (trainers.lora.in_place).

        Args:
          key: of the step, draws dropout of what adapters read.
        """
        return lora.in_place(params, self.experiment.train.finetune.lora, self.apart, key)

    def for_model(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the parameters as the model takes them: of its sizes, layers in its order, adapters merged."""
        return self.with_adapters(
            in_form(params, self.model_form.params, self.model_form.params, _schedules(self), to_layer_order)
        )


def outputs_of(model: Model, e: Experiment) -> tuple[int, ...]:
    """Returns the shape of the outputs of a model (HasOutputs) for a batch of an experiment's data; raises KeyError for an input
    that the data has not."""

    def outputs(params: Params, batch: Batch) -> jax.Array:
        real: Any = with_params(model, params)
        return real(batch)

    return jax.eval_shape(outputs, to_params(model), batch_shapes(e.data)).shape


def teacher_of(e: Experiment) -> str:
    """Returns the setting of an experiment's teacher, as error lines show it."""
    return f"train.distillation.teacher={e.train.distillation.teacher!r}"


def input_sharding(model: Model, name: str, feature: Feature, rows: int) -> NamedSharding | None:
    """Returns the sharding of an input, by the rules of the component that reads it; None without a mesh.

    Raises:
      LayoutError: its dimensions, or the rows, are not divisible as the rules say, and are not padded either.
    """
    scope = model.scope.at(feature.component)
    shape = (rows, *feature.shape)
    spec = scope.spec(("batch", *feature.axes), shape, tensor=f"input {name!r}")
    return scope.mesh and even(shape, NamedSharding(scope.mesh, spec))


def abstract_model(experiment: Experiment, mesh: Mesh | None = None) -> Model:
    """Returns the model of an experiment with shapes for parameters; raises LayoutError if its layout does not fit it."""
    return model_of_shapes(experiment.model, Component(experiment.layout, mesh=mesh, execution=experiment.execution))


def model_of_shapes(config: ModelConfig, scope: Component) -> Model:
    """Returns the model of a configuration with shapes for parameters; raises LayoutError if the layout does not fit it."""
    family = family_of(config)
    build = functools.partial(family.model, config, scope=scope)
    model = jax.eval_shape(lambda: build(key=jax.random.key(0)))  # a real key would be a program to compile
    scope.layout.check_components(components(model))
    scope.execution.check(components(model), family.activations)
    infos = list(describe(model))
    for info in infos:
        info.spec()
    schedules(scope, infos)  # raises LayoutError if a pipeline does not fit its layers
    check_pipelines(model)
    return model


def model_infos(plan: "Plan") -> list[ParamInfo]:
    """Returns the parameters that the model itself has: no adapters, and matrices whole, however they are stored."""
    dtype = jnp.dtype(plan.experiment.train.master_dtype)
    return [dataclasses.replace(info, dtype=dtype) for info in describe(plan.model)]


def make_plan(experiment: Experiment, devices: Sequence[Any] | None = None, *, abstract: bool = False) -> Plan:
    """Returns everything about an experiment except its arrays.

    Args:
      devices: the devices of the mesh; all by default.
      abstract: plans without devices (for tables); nothing can run then.

    Raises:
      LayoutError: the layout does not fit the model or the devices.
    """
    mesh = None if abstract else make_mesh(experiment.layout, devices)
    model = abstract_model(experiment, mesh)
    train = experiment.train
    infos = {i.name: dataclasses.replace(i, dtype=jnp.dtype(train.master_dtype)) for i in describe(model)}
    infos |= lora.adapters(infos, train.finetune.lora, experiment.model)
    infos = dict(sorted(lora.stored(infos, train.finetune.lora).items()))
    trained = lora.trained(infos, train.finetune)
    statistics = frozenset(name for name in trained if infos[name].statistic)
    trained -= statistics
    changed = {name: info for name, info in infos.items() if name in trained}
    tx = transforms.make(experiment.optimizer, changed, train.clip_norm, train.finetune)
    rows = by_rows.readers(experiment, model, changed)
    plan = Plan(experiment, mesh, model, infos, trained, tx, State(None, None, {}, None), None, statistics, rows)
    state = _shapes(plan)
    shardings = None
    if mesh:
        everywhere = NamedSharding(mesh, PartitionSpec())
        place = "pinned_host" if experiment.execution.offloads_optimizer else None
        shardings = State(
            step=everywhere,
            skipped=everywhere,
            params=jax.tree.map(lambda info: NamedSharding(mesh, info.spec()), infos),
            optimizer=transforms.state_shardings(state.optimizer, changed, mesh, place),
        )
    _check_rows(experiment, model)
    _check_dropout(plan)
    return dataclasses.replace(plan, state=state, shardings=shardings)


def _check_dropout(plan: Plan) -> None:
    """Raises an error where adapters cannot have dropout, since a sum of matrices is computed with."""
    settings = plan.experiment.train.finetune.lora
    if not settings.dropout:
        return
    asked = f"train.finetune.lora.dropout={settings.dropout}"
    if one_f_one_b.is_used(plan.model):
        raise LayoutError(f"{asked}: a pipeline of schedule '1f1b' has adapters merged; choose schedule 'gpipe', or dropout 0")
    adapted = {
        info.name.removeprefix(lora.PREFIX).rpartition(".")[0] for info in plan.parameters if info.name.startswith(lora.PREFIX)
    }
    if merged := sorted(adapted - plan.apart):
        raise ConfigError(f"{asked}: {merged[0]} is no projection of a layer alone, and has its adapter merged; choose dropout 0")


def _check_rows(e: Experiment, model: Model) -> None:
    """Raises LayoutError if batches cannot be cut as the layout says."""
    rows, parts = e.data.batch_size, e.train.microbatches
    if parts > 1 and model.coupled:
        raise LayoutError(
            f"microbatches={parts}: the loss of {e.name} compares the examples of a batch with each other, so that it would be "
            "another loss in parts; the nearest is 1"
        )
    shards = math.lcm(*(model.scope.at(f.component).num_shards("batch") for f in e.data.features().values()))
    if rows % (parts * shards):
        raise LayoutError(
            f"data.batch_size={rows} is not divisible by train.microbatches={parts} x {shards} shards of rows in layout "
            f"{e.layout.name!r}; the nearest that fits is {multiples(rows, parts * shards)}"
        )
    for path, settings in e.layout.pipelines:
        m, shards = settings.microbatches, e.layout.num_shards(data_axes(model.scope.at(path)))
        if rows // parts % (m * shards):
            fits = [n for n in range(1, rows + 1) if rows // parts % (n * shards) == 0]
            nearest = min(fits, key=lambda n: abs(n - m), default=None)
            raise LayoutError(
                f"pipeline of {path!r}: {rows // parts} rows are not divisible by {m} microbatches x {shards} data shards; "
                + (f"the nearest that fits is {nearest} microbatches" if nearest else f"take a multiple of {m * shards} rows")
            )
    if isinstance(model, ChecksRows):
        model.check_rows(lengths(e.data.features()), parts, rows)
    for name, feature in e.data.features().items():
        input_sharding(model, name, feature, rows // parts)
    if e.data.cache:
        model.scope.spec(("batch", None), (e.eval.batch_size, 0), tensor="held-out rows")


def _shapes(plan: Plan) -> State:
    """Returns the shapes and dtypes of `_fresh`, without tracing the model's initial values."""
    count = jax.ShapeDtypeStruct((), jnp.int32)
    params = jax.tree.map(lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype), plan.infos)
    optimizer = jax.eval_shape(plan.tx.init, plan.split_trained(params)[0])
    return State(step=count, skipped=count, params=params, optimizer=optimizer)


def _fresh(plan: Plan, key: jax.Array) -> State:
    """Returns a fresh state. Initial values depend on the key alone, never on the layout."""
    e = plan.experiment
    scope = dataclasses.replace(plan.model.scope, mesh=None)
    params = to_params(family_of(e.model).model(e.model, key, scope))
    params = {name: x.astype(e.train.master_dtype) for name, x in params.items()}
    params = lora.quantized(params, {info.name: info for info in describe(plan.model)}, e.train.finetune.lora)
    params |= lora.create({k: i for k, i in plan.infos.items() if k.startswith(lora.PREFIX)}, key)
    zero = jnp.zeros((), jnp.int32)
    return State(step=zero, skipped=zero, params=params, optimizer=plan.tx.init(plan.split_trained(params)[0]))


def fresh_state(plan: Plan, given: dict[str, jax.Array] | None = None) -> State:
    """Returns a fresh state, created on the mesh: no device ever holds more than its share.

    Args:
      given: parameters by name that exist already, placed on the mesh and of the right dtype; they are not created again.
    """
    given = given or {}

    def drop_given(state: State) -> State:
        return dataclasses.replace(state, params={k: v for k, v in state.params.items() if k not in given})

    shardings = plan.shardings and jax.tree.map(lambda x: x.sharding, drop_given(plan.model_form))
    # The seed is an argument, so that runs with other seeds find the program in the cache; NumPy's number belongs to no device.
    seed = np.int64(plan.experiment.train.seed)

    def create(seed: jax.Array) -> State:
        return drop_given(_fresh(plan, jax.random.key(seed)))

    # It runs once: with all of LLVM's passes a small model's takes 11 s of a CPU to compile, not 3, and draws the same bits.
    device = plan.mesh.devices.flat[0] if plan.mesh else jax.devices()[0]
    options = xla_flags.passes(1, device.platform)
    created = jax.jit(create, out_shardings=shardings, compiler_options=options)(seed)
    return in_step_form(plan, dataclasses.replace(created, params=created.params | given))


# --- the form of arrays -------------------------------------------------------------------------------------------


def in_step_form(plan: Plan, state: State) -> State:
    """Returns a State as the step takes it, from one in the model's form, which it consumes."""
    return in_form(state, plan.step_form, plan.model_form, _schedules(plan), to_stage_order, consume=True)


def in_model_form(plan: Plan, state: State) -> State:
    """Returns a State as it is stored, from one as the step takes it; arrays whose form is the same are not copied."""
    return in_form(state, plan.model_form, plan.model_form, _schedules(plan), to_layer_order)


def _schedules(plan: Plan) -> dict[str, Schedule]:
    """Returns, by the parameters' names, the schedules in whose stage order their layers are kept between steps."""
    return {info.name: s for info in plan.parameters if (s := one_f_one_b.stage_schedule(info))}
