"""Proof that a layout changes where numbers are computed, never the numbers: the first steps under it against one device."""

import dataclasses
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from configs.optimizers import Constant, Sgd
from data.reading.batches import Batches, batch_shapes
from data.reading.examples import open_source
from models.families import family_of
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import flatten
from trainers import state, step
from trainers.plan import fresh_state, in_model_order, in_step_order, make_plan
from trainers.programs import tables
from trainers.programs.collectives import Collective

RATE = 0.3  # large: an error in one step shows in the next losses


@dataclasses.dataclass(frozen=True)
class Trial:
    """The first steps of an experiment.

    Attributes:
      metrics: of each step, on the host.
      gradients: of the first step, by parameter name; exact where the optimizer is `comparable`'s.
      parameters: after the last step, by name.
      sent: the collectives of the compiled step.
      compiled: the step.
    """

    metrics: list[dict[str, np.ndarray]]
    gradients: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]
    sent: list[Collective]
    compiled: jax.stages.Compiled


def exact(e: Experiment) -> Experiment:
    """Returns the same experiment in double precision; run it inside `jax.enable_x64(True)`."""
    return dataclasses.replace(
        e,
        train=dataclasses.replace(e.train, master_dtype="float64"),
        execution=dataclasses.replace(e.execution, dtype="float64"),
    )


def comparable(e: Experiment) -> Experiment:
    """Returns a tiny experiment in double precision in which layouts of every kind must agree.

    Its model is the family's `comparable` one. It takes gradient descent with momentum, in which the change of a parameter tells
    its gradient (Adam would make steps of rounding errors where a gradient is zero).
    """
    lengths = [array.shape[0] for array in e.data.features().values() if array.axes == ("length",)]
    e = exact(dataclasses.replace(e, model=family_of(e.model).comparable(e.model, lengths)))
    return dataclasses.replace(
        e,
        optimizer=Sgd(schedule=Constant(value=RATE), momentum=0.9),
        train=dataclasses.replace(e.train, clip_norm=0.0),
    )


def trial(e: Experiment, steps: int, devices: list | None = None, initial: Any = None) -> Trial:
    """Runs the first steps.

    Args:
      initial: a State on the host to start from; a fresh one by default.
    """
    p = make_plan(e, devices)
    batches = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())
    compiled = step.compile_step(p, batch_shapes(e.data))
    current = fresh_state(p) if initial is None else in_step_order(p, jax.device_put(initial, p.shardings))

    def parameters() -> dict[str, Any]:
        return jax.device_get(flatten(in_model_order(p, current).params))

    before, first, found = parameters(), {}, []
    for i in range(steps):
        current, metrics = compiled(current, batches(i))
        found.append(jax.tree.map(np.asarray, metrics))
        first = first or parameters()
    batches.close()
    gradients = {name: (x - first[name]) / RATE for name, x in before.items()}
    return Trial(found, gradients, parameters(), tables.sent(p, compiled), compiled)


def start(e: Experiment) -> state.State:
    """The state before the first step, made on one device, on the host."""
    return jax.device_get(fresh_state(make_plan(dataclasses.replace(e, layout=ONE_DEVICE), jax.devices()[:1])))


def reference(e: Experiment, steps: int, initial: Any = None) -> Trial:
    """The same steps on one device."""
    return trial(dataclasses.replace(e, layout=ONE_DEVICE), steps, jax.devices()[:1], initial)


def differences(found: Trial, want: Trial) -> dict[str, float]:
    """The largest relative difference of `losses`, `gradients`, `parameters` and `routing` (shares and loads of experts,
    which are kept in float32: equal within 1e-6 is identical routing); of a tensor, relative to its largest element or 1e-6."""

    def of(a: Any, b: Any) -> float:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return float(np.max(np.abs(a - b), initial=0.0) / np.max(np.abs(b), initial=1e-6))

    steps = list(zip(found.metrics, want.metrics, strict=True))
    routing = [k for k in want.metrics[0] if k.startswith("moe/") and k != "moe/balance_loss"]
    return {
        "losses": max(of(a["loss"], b["loss"]) for a, b in steps),
        "gradients": max(of(found.gradients[k], v) for k, v in want.gradients.items()),
        "parameters": max(of(found.parameters[k], v) for k, v in want.parameters.items()),
        "routing": max((of(a[k], b[k]) for a, b in steps for k in routing), default=0.0),
    }
