"""Scores on held-out data: what the trainer calls while it trains, and what scripts.evaluate prints."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.experiment import Data, Experiment, HeldOut
from data.labelled import metrics
from data.labelled.answers import answer_texts
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
    """The model's own loss and metrics over held-out rows, as means over everything that the loss weighs, and task's scores.

    Classes are scored by `data.labelled.metrics.scores_of`. Questions are answered in text and scored as SQuAD's are
    (`exact_match`, `f1`): `accuracy` remains the share of windows whose span is exactly the labelled one.
    """

    def __init__(self, abstract: Any, config: HeldOut, data: Data, cache: Path, vocabulary: Path):
        self.held_out = held_out.read(data, cache, vocabulary, config.split, config.limit)
        self.rows, self.arrays = config.batch_size, data.arrays()
        where = abstract.where
        self._shardings = {
            k: where.mesh
            and NamedSharding(where.mesh, where.spec(("batch", *a.axes), (self.rows, *a.shape), tensor=f"held-out {k}"))
            for k, a in self.arrays.items()
        }

        def of_batch(params: Any, batch: dict[str, jax.Array]) -> tuple[dict[str, Ratio], jax.Array | None]:
            model = merge(abstract, params)
            outputs = model.outputs(batch) if self.held_out.questions else None
            return model.loss(batch, Context.evaluation()).metrics, outputs

        self._of_batch = jax.jit(of_batch, out_shardings=where.mesh and NamedSharding(where.mesh, P()))
        batch = {k: jax.ShapeDtypeStruct((self.rows, *a.shape), np.int32) for k, a in self.arrays.items()}
        shapes, _ = jax.eval_shape(of_batch, split(abstract), batch)
        names = self._scores(jax.tree.map(lambda x: np.ones(x.shape), shapes))
        self._names = list(names | self._answer_scores([])) if self.held_out.questions else list(names)

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
        totals, logits = [], []
        for batch in self._batches():
            of_batch, logits_BPLC = jax.device_get(self._of_batch(params, batch))
            totals.append(of_batch)
            logits.append(logits_BPLC)
        scores = self._scores(jax.tree.map(lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *totals))
        return scores | self._answer_scores(logits) if self.held_out.questions else scores

    def _batches(self) -> Iterator[dict[str, jax.Array]]:
        for batch in held_out.batches(self.held_out.rows, self.arrays, self.rows):
            yield {k: jax.device_put(x, self._shardings[k]) for k, x in batch.items()}

    def _scores(self, totals: dict[str, Ratio]) -> dict[str, float]:
        found: dict[str, float] = {}
        for k, v in totals.items():
            if k == "confusion":
                scores = metrics.scores_of(self.held_out.task, np.asarray(v.sum))
                found |= {f"eval/{name}": x for name, x in scores.items()}
            elif not v.sum.shape:
                found[f"eval/{k}"] = float(v.sum) / max(float(v.over), 1.0)
        if self.held_out.bytes:
            nats = float(totals["cross_entropy"].sum)
            found["eval/perplexity"] = math.exp(min(found["eval/cross_entropy"], 700.0))
            found["eval/byte_perplexity"] = math.exp(min(nats / self.held_out.bytes, 700.0))
            found["eval/bits_per_byte"] = nats / self.held_out.bytes / math.log(2)
        return found | {"eval/examples": float(self.held_out.examples)}

    def _answer_scores(self, logits_of_batches: Iterable[np.ndarray]) -> dict[str, float]:
        """Scores of the questions' answers as text, from the logits [B, P, L, 2] of their rows in order."""
        questions = self.held_out.questions
        # The last batch is filled up with empty rows.
        rows = zip(self.held_out.rows, itertools.chain.from_iterable(logits_of_batches), strict=False)
        predicted = answer_texts(rows, [question["context"] for question in questions])
        answers = [[answer["text"] for answer in question["answers"]] for question in questions]
        return {f"eval/{name}": score for name, score in metrics.squad(answers, predicted).items()}
