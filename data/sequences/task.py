"""Sequences as a task: the next item of a user, or the action on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from data.clicks import metrics
from data.clicks.ids import UNSEEN
from data.reading.caches import examples, read_manifest
from data.reading.examples import StoredExamples
from data.sequences.catalogue import SequenceCatalogue
from data.sequences.config import SequenceData
from data.sequences.log import barred, row_of
from data.task import DataError, Example, HeldOutExamples, Sum, Task
from models.families import ModelConfig

BASELINES = ("popularity", "factors", "transitions", "bayes")
"""Of which held-out rows of a cache have logits of the action, or ranks of the item, as far as they are known."""


class HasTarget(Protocol):
    """The objective of a model's configuration."""

    @property
    def target(self) -> str: ...


@runtime_checkable
class ReadsSequences(Protocol):
    """The configuration of a model that reads rows of interactions."""

    @property
    def items(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def objective(self) -> HasTarget: ...


class SequenceTask(Task[SequenceData]):
    """Rows of a prepared log (data.sequences.maker)."""

    packed_with = ("length",)

    # --- reading ---

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        own = self._read_by(model)
        cache = f"cache {self.data.cache!r}"
        if self.data.length != manifest["length"]:
            raise DataError(f"data.length={self.data.length}: {cache} has rows of {manifest['length']}")
        if own.items < manifest["items"]:
            raise DataError(f"model.items={own.items}: {cache} has {manifest['items']:,} rows of items")

    def _read_by(self, model: ModelConfig) -> ReadsSequences:
        """Returns a model's configuration; raises DataError where it reads or predicts something else."""
        if not isinstance(model, ReadsSequences):
            raise DataError(f"a model of family {model.family!r} reads no sequences of interactions")
        if model.length != self.data.length:
            raise DataError(f"model.length={model.length}: the data have rows of {self.data.length}")
        if model.objective.target != self.data.target:
            predicted = model.objective.target
            raise DataError(f"data.target={self.data.target!r}: the model predicts the {predicted}; take {predicted!r}")
        return model

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `items`, the rows of their table, and `places`, the interactions of a row."""
        return {"items": manifest["items"], "places": manifest["length"]}

    def synthetic_key(self, model: ModelConfig) -> str:
        return str(self._read_by(model).items)

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns a row of random items, of which a third is positive, and of random length."""
        own, length = self._read_by(model), self.data.length
        used = int(rng.integers(2, length + 1))
        times = np.cumsum(rng.integers(0, 10_000, used))
        return row_of(rng.integers(1, own.items, used), 1 + (rng.random(used) < 1 / 3), times, 0, length)

    def assets(self, folder: Path | None, model: ModelConfig) -> int:
        """Returns the number of rows of the table of items, of which negatives are drawn."""
        return int(read_manifest(folder)["items"]) if folder else self._read_by(model).items

    @property
    def augmentation(self) -> str:
        return "negatives" if self.data.draws else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: int) -> Example:
        """Returns a row with its negatives."""
        if (row["items"] >= assets).any() or (row["items"] < 0).any():
            raise DataError(f"item {row['items'].max()} is outside the table of {assets:,} rows")
        return row | {"negatives": rng.integers(UNSEEN + 1, assets, self.data.negatives, dtype=np.int32)}

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's first rows; `extra` has an array of each field of the raw examples that is a number.

        Raises:
          DataError: actions are predicted, and all are alike.
        """
        raw, repeats = list(examples(cache, split, limit)), bool(read_manifest(cache)["repeats"])
        ranks = self.data.target == "item"

        def made(row: Example) -> Example:
            return row | ({"barred": barred(row, repeats=repeats)} if ranks else {})

        rows = StoredExamples(cache / f"{split}.array_record", self.data.stored(), made, len(raw))
        names = ["label", *(f"{name}_rank" if ranks else name for name in BASELINES)]
        extra = {name: np.array([float(x[name]) for x in raw]) for name in names if raw and name in raw[0]}
        if raw and not ranks:
            metrics.check_labels(extra["label"], split, cache.name, limit)
        return HeldOutExamples(rows, len(raw), extra, needs_outputs=not ranks, features=self.data.held_out())

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the scores of the baselines, as "popularity/ndcg", and those of the model that its own metrics lack."""
        extra = examples.extra
        if self.data.target == "item":
            known = {name: extra[key] for name in BASELINES if (key := f"{name}_rank") in extra}
            return {f"{name}/{score}": x for name, ranks_N in known.items() for score, x in metrics.of_ranks(ranks_N).items()}
        return metrics.of_outputs(extra, outputs, examples.count, BASELINES)

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"auc": False, "log_loss": True, "normalized_entropy": True, "ndcg": False, "hit_rate": False}

    @property
    def meanings(self) -> Mapping[str, str]:
        if self.data.target == "action":
            return metrics.MEANINGS
        return metrics.MEANINGS | {
            "ndcg": "1 / log2(1 + rank) of the item that came next among all items, 0 behind the tenth place",
            "hit_rate": "how often the item that came next is among the ten best of all items",
            "popularity": "items by how often they come in training",
            "factors": "logistic matrix factorisation of users and items, fitted to training against drawn items",
            "transitions": "items by how often they come directly behind the user's last one in training",
            "bayes": "items by the probabilities that the next one was drawn with: no model is better on average",
        }

    # --- ranking for a user ---

    def catalogue(self, cache: Path, user: str) -> SequenceCatalogue:
        return SequenceCatalogue.of(cache, self.data, user)

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        return [
            f"Trained on {manifest['trained']:,} interactions with {manifest['items'] - 1:,} items of `{manifest['cache']}` "
            f"(fingerprint {manifest['fingerprint'][:16]}), in rows of up to {manifest['length']}."
        ]


task = SequenceTask
