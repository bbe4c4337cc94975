"""Classes of texts, named by a fine-tuned encoder: what scripts.classify prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from data.labelled import encoding
from data.labelled.config import LabelledData
from data.reading import held_out
from data.reading.caches import read_manifest
from data.vocabularies.tokenizers import Tokenizer
from models.errors import UserError
from models.sharding.params import merge


class Classifier:
    """A trained model that names the class of a whole text.

    Args:
      abstract: the model with shapes for parameters, on one device (trainers.state.Plan.model).
      e: what it was trained on; says how rows are packed.
      folder: with the vocabulary, and the manifest that names the labels: the run's cache, or a release.

    Raises:
      UserError: the model doesn't classify texts, or nothing says what its classes are called.
    """

    def __init__(self, abstract: Any, e: Experiment, folder: Path | None):
        if type(getattr(e.model, "head", None)).__name__ != "Classification" or not isinstance(e.data, LabelledData):
            raise UserError(f"{e.name}: this model does not classify texts: its head is no Classification")
        if folder is None or not (folder / "manifest.json").exists():
            raise UserError(f"{e.name}: no manifest.json beside the weights names the classes: take a run or a release")
        self.data, self.rows = e.data, e.eval.batch_size
        self.labels: list[str] = read_manifest(folder)["labels"]
        self.tokenizer = Tokenizer(folder)

        def probabilities(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
            return jax.nn.softmax(merge(abstract, params)(batch), axis=-1)

        self._probabilities = jax.jit(probabilities)

    def __call__(self, params: Any, examples: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Probabilities [N, C], float32, of N examples {"text"} or {"text", "pair"}; a label that one has is not looked at."""
        plain = [{side: e[side] for side in ("text", "pair") if side in e} for e in examples]
        shape = self.data.length, self.data.slots
        rows = list(encoding.rows_of(plain, self.tokenizer, "classification", *shape))
        probabilities_NC = np.zeros((len(plain), len(self.labels)), np.float32)
        for at, batch in enumerate(held_out.batches(rows, self.data.arrays(), self.rows)):
            found_BPC = np.asarray(self._probabilities(params, batch))
            for row, found_PC in zip(rows[at * self.rows :], found_BPC, strict=False):
                used_P = row["owners"] >= 0
                probabilities_NC[row["owners"][used_P]] = found_PC[used_P]
        return probabilities_NC


def votes(probabilities_NC: np.ndarray, number: int) -> np.ndarray:
    """Classes [N, number], each about as often as it is likely, the likeliest first.

    By systematic sampling: equal steps through all probability, begun elsewhere for every example (multiples of the golden
    ratio fill [0, 1) evenly), so that over many examples unlikely classes get their share too.
    """
    order_NC = np.argsort(-probabilities_NC, axis=-1)
    sums_NC = np.cumsum(np.take_along_axis(probabilities_NC, order_NC, axis=-1), axis=-1)
    start_N = np.arange(len(sums_NC)) * 0.6180339887498949 % 1
    steps_NV = (np.arange(number) + start_N[:, None]) / max(number, 1)
    places_NV = np.sum(sums_NC[:, None, :] < steps_NV[:, :, None], axis=-1)
    return np.take_along_axis(order_NC, np.minimum(places_NV, order_NC.shape[-1] - 1), axis=-1)
