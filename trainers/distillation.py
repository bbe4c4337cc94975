"""Distillation: a trained model, the teacher, predicts each batch, and its predictions are targets beside the data's own.

The teacher is a program of its own, on the run's devices and by its layout: the step, whatever its parallelism, reads soft
targets as one more array of its batch (models.protocol.Distils).
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from configs.registry import ConfigError
from models.protocol import SOFT_TARGETS, Batch, HasOutputs
from models.sharding.params import Params, with_params
from trainers.inference.load import load
from trainers.plan import Plan, outputs_of, teacher_of
from trainers.weights import init_from, load_any

Teach = Callable[[Batch], Batch]


def teacher(plan: Plan, vocabulary: Path | None) -> Teach:
    """Returns what adds the soft targets to a batch: nothing without a teacher.

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
    try:
        theirs = outputs_of(served.model, e) if isinstance(served.model, HasOutputs) else ()
    except KeyError as error:
        raise ConfigError(f"{teacher_of(e)}: it reads an input {error} that these batches have not") from error
    if theirs != ours:
        raise ConfigError(f"{teacher_of(e)}: its outputs for a batch are {theirs or 'none'}, and this model's {ours}")

    def predict(params: Params, batch: Batch) -> jax.Array:
        logits_BLV = with_params(served.model, params)(batch)
        return e.train.distillation.weight * jax.nn.softmax(logits_BLV.astype(jnp.float32))

    compiled = jax.jit(predict, out_shardings=plan.batch_shardings()[SOFT_TARGETS])
    return lambda batch: batch | {SOFT_TARGETS: compiled(served.params, batch)}
