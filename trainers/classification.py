"""Classes of texts, named by a fine-tuned encoder: what scripts.classify prints."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from configs.schema import Experiment, LabelledData
from data.caches import read_manifest
from data.labelled import encoding
from data.tokenizers import Tokenizer
from models.common.layout import UserError
from models.common.sharding import merge


class Found(NamedTuple):
    """What a text was found to be.

    Attributes:
      label: its name.
      probability: above 0 to 1.
      votes: so many labels as were asked for, each about as often as it is likely, the likeliest first.
    """

    label: str
    probability: float
    votes: tuple[str, ...] = ()


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
            return jax.nn.softmax(merge(abstract, params).outputs(batch), axis=-1)

        self._probabilities = jax.jit(probabilities)

    def __call__(self, params: Any, examples: Sequence[Mapping[str, Any]], votes: int = 0) -> list[Found]:
        """Of each example {"text"} or {"text", "pair"}, in order; a label that it has is not looked at."""
        plain = [{side: e[side] for side in ("text", "pair") if side in e} for e in examples]
        made = encoding.rows_of(plain, self.tokenizer, "classification", self.data.length, self.data.slots)
        found: dict[int, Found] = {}
        while rows := list(itertools.islice(made, self.rows)):
            batch = {k: np.zeros((self.rows, *a.shape), np.int32) for k, a in self.data.arrays().items()}
            for k, array in batch.items():
                array[: len(rows)] = [row[k] for row in rows]
            found_BPC = np.asarray(self._probabilities(params, batch))[: len(rows)]
            owners_BP = np.stack([row["owners"] for row in rows])
            for owner, found_C in zip(owners_BP[owners_BP >= 0], found_BPC[owners_BP >= 0], strict=True):
                order = np.argsort(-found_C)
                # Systematic sampling: equal steps through all probability, begun elsewhere for every example (multiples of the
                # golden ratio fill [0, 1) evenly), so that over many examples unlikely labels get their share too.
                start = owner * 0.6180339887498949 % 1
                elected = np.searchsorted(np.cumsum(found_C[order]), (np.arange(votes) + start) / max(votes, 1))
                found[int(owner)] = Found(
                    self.labels[int(order[0])],
                    float(found_C[order[0]]),
                    tuple(self.labels[int(order[min(at, len(order) - 1)])] for at in elected),
                )
        return [found[i] for i in range(len(plain))]
