"""Distillation: a trained model, the teacher, predicts each batch, and its predictions are targets beside the data's own.

The teacher is a program of its own, on the run's devices and by its layout: the step, whatever its parallelism, reads soft
targets as one more array of its batch (models.protocol.Distils).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from configs.experiment import Experiment
from configs.registry import ConfigError
from data.features import lengths
from models.protocol import SOFT_TARGETS, Batch, ChecksRows, Distils
from models.sharding.params import Params, with_params
from trainers.inference.load import load
from trainers.plan import Plan, outputs_of, teacher_of
from trainers.weights import init_from, load_any

Teach = Callable[[Batch], Batch]


def teacher(plan: Plan, vocabulary: Path | None) -> Teach:
    """Returns what adds the soft targets to a batch: nothing without a teacher. It is compiled here.

    Args:
      vocabulary: the folder of the run's vocabulary, None for random data; it must be that of the teacher.

    Raises:
      UserError: there are no such weights, they fit neither the layout nor the devices, or have other outputs.
    """
    e = plan.experiment
    if not e.train.distillation.teacher:
        return lambda batch: batch
    ours = (e.data.batch_size, *plan.features()[SOFT_TARGETS].shape)
    weights = load_any.open_weights(init_from.located(e.train.distillation.teacher))
    if vocabulary is not None:
        init_from.check_vocabulary(weights, vocabulary)
    served = load(weights, e.execution, e.layout)
    model = served.model
    if not isinstance(model, Distils):
        raise ConfigError(f"{teacher_of(e)}: a model of family {weights.config.family!r} predicts no targets of this one")
    try:
        if isinstance(model, ChecksRows):
            model.check_rows(lengths(e.data.features()), 1, rows=None)
        theirs = outputs_of(model, e)
    except KeyError as error:
        raise ConfigError(f"{teacher_of(e)}: it reads an input {error} that these batches have not") from error
    if theirs != ours:
        raise ConfigError(f"{teacher_of(e)}: its outputs for a batch are {theirs}, and this model's {ours}")

    of_data = plan.batch_shapes()
    soft = of_data.pop(SOFT_TARGETS)

    def predict(params: Params, batch: Batch) -> jax.Array:
        with_weights: Any = with_params(model, params)
        logits_BLV = with_weights(batch).astype(jnp.float32)
        return (e.train.distillation.weight * jax.nn.softmax(logits_BLV)).astype(soft.dtype)

    compiled = jax.jit(predict, out_shardings=soft.sharding).lower(served.params, of_data).compile()
    return lambda batch: batch | {SOFT_TARGETS: compiled(served.params, batch)}


def check_step(e: Experiment, starts: Sequence[Mapping[str, Any]], step: int | None) -> None:
    """Raises ConfigError for a teacher that has trained on since a run began, whose targets would change on the way.

    Args:
      starts: the events of the run's earlier starts.
      step: of the teacher's newest checkpoint; None of a teacher that is no run.
    """
    before = [event["teacher_step"] for event in starts if event.get("teacher_step") is not None]
    if before and before[-1] != step:
        raise ConfigError(
            f"{teacher_of(e)}: its newest checkpoint is of step {step}, and was of step {before[-1]} when this run began: name a "
            "copy, or another --workdir"
        )
