"""Classes of texts or pictures, named by a trained model, as scripts.classify prints them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from data.kinds import task_of
from data.task import ReadsGiven
from models.errors import UserError
from models.protocol import Batch, Classifies, Model
from models.sharding.params import Params
from trainers.inference.runner import Runner


class Classifier:
    """A trained model that names the class of a whole text, or of a picture.

    Args:
      model: with shapes for parameters, on its mesh.
      e: the experiment that trained it; it says how rows are made.
      folder: with the vocabulary, and the manifest that names the labels: the run's cache, or a release.

    Raises:
      UserError: the model doesn't classify texts or pictures, or its classes have no names.
    """

    def __init__(self, model: Model, e: Experiment, folder: Path | None):
        task = task_of(e.data)
        if not (isinstance(model, Classifies) and model.classes and isinstance(task, ReadsGiven)):
            raise UserError(f"{e.name}: this model does not classify texts or pictures")
        if folder is None:
            raise UserError(f"{e.name}: nothing beside the weights names the classes: take a run or a release")
        self.task, self.folder, self.labels = task, folder, task.class_names(folder)
        self._runner = Runner(model, e.data.features(), e.eval.batch_size, probabilities)

    def __call__(self, params: Params, examples: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Returns probabilities [N, C], float32, of N examples as the task reads them; labels are not looked at."""
        rows = self.task.read_given(examples, self.folder)
        return by_example(rows, self._runner.map(params, rows), len(examples))


def by_example(rows: Sequence[Mapping[str, np.ndarray]], outputs: np.ndarray, count: int) -> np.ndarray:
    """Returns the outputs [N, C], float32, of the `count` examples that `rows` hold, of those [R, P, C] of each row's places."""
    outputs_RPC = outputs[:, None] if outputs.ndim == 2 else outputs  # [R, C] where a row has one place
    outputs_NC = np.zeros((count, outputs_RPC.shape[-1]), np.float32)
    for row, outputs_PC in zip(rows, outputs_RPC, strict=True):
        used_P = row["owners"] >= 0
        outputs_NC[row["owners"][used_P]] = outputs_PC[used_P]
    return outputs_NC


def probabilities(model: Any, batch: Batch) -> jax.Array:
    """Returns the probabilities of a model's classes."""
    return jax.nn.softmax(model(batch), axis=-1)


def votes(probabilities_NC: np.ndarray, number: int) -> np.ndarray:
    """Returns classes [N, number], each about as often as its probability says, the likeliest first.

    Systematic sampling: equal steps through all probability, begun elsewhere for every example (multiples of the golden
    ratio fill [0, 1) evenly), so that over many examples unlikely classes get their share too.
    """
    order_NC = np.argsort(-probabilities_NC, axis=-1)
    sums_NC = np.cumsum(np.take_along_axis(probabilities_NC, order_NC, axis=-1), axis=-1)
    start_N = np.arange(len(sums_NC)) * 0.6180339887498949 % 1
    steps_NV = (np.arange(number) + start_N[:, None]) / max(number, 1)
    places_NV = np.sum(sums_NC[:, None, :] < steps_NV[:, :, None], axis=-1)
    return np.take_along_axis(order_NC, np.minimum(places_NV, order_NC.shape[-1] - 1), axis=-1)
