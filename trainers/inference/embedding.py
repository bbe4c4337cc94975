"""Vectors of texts by a trained sentence encoder, and the nearest of several texts by them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from data.kinds import task_of
from data.task import ReadsGiven
from models.errors import UserError
from models.protocol import Batch, Embeds, Model
from models.sharding.params import Params
from trainers.inference.classification import by_example
from trainers.inference.runner import Runner


class TextEmbedder:
    """A trained sentence encoder.

    Args:
      model: with shapes for parameters, on its mesh.
      e: the experiment whose data say how rows are made, such as bert.minilm_l6.
      vocabulary: the folder of its tokenizer.json.

    Raises:
      UserError: the model gives texts no vectors.
    """

    def __init__(self, model: Model, e: Experiment, vocabulary: Path):
        task = task_of(e.data)
        if not (isinstance(model, Embeds) and model.embeds and isinstance(task, ReadsGiven)):
            raise UserError(f"{e.name}: this model gives texts no vectors; bert.minilm_l6 does")
        self.task, self.vocabulary = task, vocabulary
        self._runner = Runner(model, e.data.features(), e.eval.batch_size, outputs)

    def __call__(self, params: Params, texts: Sequence[str]) -> np.ndarray:
        """Returns the unit vectors [N, M], float32, of N texts; their products are cosines."""
        rows = self.task.read_given([{"text": text} for text in texts], self.vocabulary)
        return by_example(rows, self._runner.map(params, rows), len(texts))


def outputs(model: Any, batch: Batch) -> jax.Array:
    """Returns the vectors [B, P, M] of a batch's examples."""
    return model(batch)
