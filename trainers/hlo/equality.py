"""A check that a layout changes where numbers are computed, never the numbers: its first steps against those of one device."""

import dataclasses
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from configs.optimizers import Constant, Sgd
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.families import family_of
from models.sharding.layouts import ONE_DEVICE
from trainers import distillation, state, step
from trainers.hlo import tables
from trainers.hlo.collectives import Collective
from trainers.plan import fresh_state, in_model_form, in_step_form, make_plan

RATE = 0.3  # large: an error in one step shows in the next losses


@dataclasses.dataclass(frozen=True)
class Trial:
    """The results of the first steps of an experiment.

    Attributes:
      metrics: metrics of each step, on the host.
      gradients: gradients of the first step, by parameter name; exact with the optimizer of `comparable`.
      parameters: parameters after the last step, by name.
      collectives: the collectives of the compiled step.
      compiled: the compiled step.
    """

    metrics: list[dict[str, np.ndarray]]
    gradients: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]
    collectives: list[Collective]
    compiled: jax.stages.Compiled


def exact(e: Experiment) -> Experiment:
    """Returns the same experiment in double precision; run it inside `jax.enable_x64(True)`."""
    return dataclasses.replace(
        e, train=dataclasses.replace(e.train, master_dtype="float64"), execution=dataclasses.replace(e.execution, dtype="float64")
    )


def comparable(e: Experiment) -> Experiment:
    """Returns a tiny experiment in double precision in which layouts of every kind must agree.

    Its model is the family's `comparable` one. Its optimizer is gradient descent with momentum, so that the change of a parameter
    gives its gradient (Adam would make steps of rounding errors where a gradient is zero).
    """
    lengths = [array.shape[0] for array in e.data.features().values() if array.axes == ("length",)]
    e = exact(dataclasses.replace(e, model=family_of(e.model).deterministic(e.model, lengths)))
    return dataclasses.replace(
        e, optimizer=Sgd(schedule=Constant(value=RATE), momentum=0.9), train=dataclasses.replace(e.train, clip_norm=0.0)
    )


def trial(e: Experiment, steps: int, devices: list | None = None, initial: Any = None) -> Trial:
    """Runs the first steps of an experiment.

    Args:
      initial: a State on the host to start from; a fresh one by default.
    """
    plan = make_plan(e, devices)
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    compiled, teach = step.compile_step(plan), distillation.teacher(plan, None)
    placed = jax.tree.map(lambda x: x.sharding, plan.model_form)
    current = fresh_state(plan) if initial is None else in_step_form(plan, jax.device_put(initial, placed))

    def parameters() -> dict[str, Any]:
        return jax.device_get(in_model_form(plan, current).params)

    before, first, all_metrics = parameters(), {}, []
    for i in range(steps):
        current, metrics = compiled(current, teach(batches(i)))
        all_metrics.append(jax.tree.map(np.asarray, metrics))
        first = first or parameters()
    batches.close()
    gradients = {name: (x - first[name]) / RATE for name, x in before.items()}
    return Trial(all_metrics, gradients, parameters(), tables.compiled_collectives(plan, compiled), compiled)


def start(e: Experiment) -> state.State:
    """Returns the state before the first step, on the host; it is computed on one device."""
    return jax.device_get(fresh_state(make_plan(dataclasses.replace(e, layout=ONE_DEVICE), jax.devices()[:1])))


def reference(e: Experiment, steps: int, initial: Any = None) -> Trial:
    """Runs the same steps on one device."""
    return trial(dataclasses.replace(e, layout=ONE_DEVICE), steps, jax.devices()[:1], initial)


def differences(actual: Trial, expected: Trial) -> dict[str, float]:
    """Returns the largest relative differences of `losses`, `gradients`, `parameters` and `routing` (shares and loads of experts,
    kept in float32, where 1e-6 means identical routing). Tensors are compared relative to their largest element or 1e-6."""

    def relative_difference(a: Any, b: Any) -> float:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return float(np.max(np.abs(a - b), initial=0.0) / np.max(np.abs(b), initial=1e-6))

    steps = list(zip(actual.metrics, expected.metrics, strict=True))
    routing = [k for k in expected.metrics[0] if k.startswith("moe/") and k != "moe/balance_loss"]
    return {
        "losses": max(relative_difference(a["loss"], b["loss"]) for a, b in steps),
        "gradients": max(relative_difference(actual.gradients[k], v) for k, v in expected.gradients.items()),
        "parameters": max(relative_difference(actual.parameters[k], v) for k, v in expected.parameters.items()),
        "routing": max((relative_difference(a[k], b[k]) for a, b in steps for k in routing), default=0.0),
    }
