"""Scores on held-out data: what the trainer calls while it trains, and what scripts.evaluate prints."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.experiment import Data, Experiment, HeldOut
from data.reading import held_out
from data.translation.config import Translate
from models.parts.losses import Ratio
from models.protocol import Context
from models.sharding.params import merge, split
from trainers.evaluation import translation


class Evaluator(Protocol):
    """Scores of a model's parameters on the held-out split that it was made for."""

    @property
    def names(self) -> list[str]:
        """The scalars that a call returns, those per language left out."""
        ...

    @property
    def samples(self) -> int:
        """How many held-out examples a call scores."""
        ...

    def __call__(self, params: Any) -> dict[str, float]:
        """`eval/...` scalars."""
        ...


def open_evaluator(abstract: Any, e: Experiment, cache: Path, vocabulary: Path) -> Evaluator:
    """The evaluator that an experiment's `eval` describes.

    Args:
      abstract: the model with shapes for parameters, on its mesh (trainers.state.Plan.model).
      cache: the prepared cache whose held-out examples are read.
      vocabulary: the folder whose vocabulary encodes them: the cache, or a release.
    """
    if isinstance(e.eval, Translate):
        return translation.Evaluator(abstract, e.eval, cache, vocabulary)
    return HeldOutEvaluator(abstract, e.eval, e.data, cache, vocabulary)


class HeldOutEvaluator:
    """The model's own loss and metrics over held-out rows, as means over everything that the loss weighs."""

    def __init__(self, abstract: Any, config: HeldOut, data: Data, cache: Path, vocabulary: Path):
        self.held_out = held_out.read(data, cache, vocabulary, config.split, config.limit)
        self.rows, self.arrays = config.batch_size, data.arrays()
        where = abstract.where
        self._shardings = {
            k: where.mesh
            and NamedSharding(where.mesh, where.spec(("batch", *a.axes), (self.rows, *a.shape), tensor=f"held-out {k}"))
            for k, a in self.arrays.items()
        }

        def of_batch(params: Any, batch: dict[str, jax.Array]) -> dict[str, Ratio]:
            return merge(abstract, params).loss(batch, Context.evaluation()).metrics

        self._of_batch = jax.jit(of_batch, out_shardings=where.mesh and NamedSharding(where.mesh, P()))
        batch = {k: jax.ShapeDtypeStruct((self.rows, *a.shape), np.int32) for k, a in self.arrays.items()}
        shapes = jax.eval_shape(of_batch, split(abstract), batch)
        self._names = list(self._scores(jax.tree.map(lambda x: np.ones(x.shape), shapes)))

    @property
    def names(self) -> list[str]:
        """The scalars that a call returns."""
        return self._names

    @property
    def samples(self) -> int:
        """How many held-out examples a call scores."""
        return self.held_out.examples

    def __call__(self, params: Any) -> dict[str, float]:
        """`eval/...` scalars."""
        found = [jax.device_get(self._of_batch(params, batch)) for batch in self._batches()]
        return self._scores(jax.tree.map(lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *found))

    def _batches(self) -> Iterator[dict[str, jax.Array]]:
        for batch in held_out.batches(self.held_out.rows, self.arrays, self.rows):
            yield {k: jax.device_put(x, self._shardings[k]) for k, x in batch.items()}

    def _scores(self, totals: dict[str, Ratio]) -> dict[str, float]:
        found: dict[str, float] = {}
        for k, v in totals.items():
            if k == "confusion":
                found |= {f"eval/{name}": x for name, x in class_scores(np.asarray(v.sum)).items()}
            elif not v.sum.shape:
                found[f"eval/{k}"] = float(v.sum) / max(float(v.over), 1.0)
        if self.held_out.bytes:
            nats = float(totals["cross_entropy"].sum)
            found["eval/perplexity"] = math.exp(min(found["eval/cross_entropy"], 700.0))
            found["eval/byte_perplexity"] = math.exp(min(nats / self.held_out.bytes, 700.0))
            found["eval/bits_per_byte"] = nats / self.held_out.bytes / math.log(2)
        return found | {"eval/examples": float(self.held_out.examples)}


def class_scores(confusion: np.ndarray) -> dict[str, float]:
    """Mean F1 over the classes that occur, and the accuracy of always naming the most frequent class.

    Args:
      confusion: counts [true class, class found].
    """
    true, found, both = confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    f1 = 2 * both / np.maximum(true + found, 1)
    return {"macro_f1": float(f1[true > 0].mean()), "majority": float(true.max() / max(true.sum(), 1))}
