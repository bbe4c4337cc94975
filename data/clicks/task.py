"""Interactions as a task: the probability that one is of the kind that counts, a click or a film that is liked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from data.clicks import blocks, metrics
from data.clicks.catalogue import ClickCatalogue
from data.clicks.config import BLOCK, ClickData
from data.clicks.ids import Table, tables_of
from data.reading.caches import examples, read_manifest
from data.task import DataError, Example, HeldOutExamples, Sum, Task
from models.families import ModelConfig

BASELINES = ("popularity", "factors", "bayes")
"""Logits of held-out rows in a cache, as far as it has them."""


class HasRows(Protocol):
    """An embedding table of a model's configuration."""

    @property
    def rows(self) -> int: ...

    @property
    def hotness(self) -> int: ...


@runtime_checkable
class EmbedsTables(Protocol):
    """The configuration of a model that embeds ids of several tables."""

    @property
    def tables(self) -> Sequence[HasRows]: ...

    @property
    def dense_features(self) -> int: ...


class ClickTask(Task[ClickData]):
    """Rows of a prepared log (data.clicks.maker)."""

    _random: tuple[ModelConfig, np.ndarray] | None = None

    # --- reading ---

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        tables, data = tables_of(manifest), self.data
        hotness = tuple(table.hotness for table in tables)
        if data.hotness != hotness or data.dense != manifest["dense"]:
            name, ours, its = (
                ("dense", data.dense, manifest["dense"]) if data.hotness == hotness else ("hotness", data.hotness, hotness)
            )
            raise DataError(f"data.{name}={ours}: cache {data.cache!r} has {its}")
        self._check_model(model, tables, manifest["dense"], f"cache {data.cache!r}")

    def _check_model(self, model: ModelConfig, tables: Sequence[Table], dense: int, owner: str) -> None:
        its = _tables(model)
        if len(its) != len(tables):
            names = ", ".join(table.name for table in tables)
            raise DataError(f"model.tables: the model has {len(its)}, {owner} has {len(tables)} ({names})")
        for at, (table, own) in enumerate(zip(its, tables, strict=True)):
            if table.rows < own.rows:
                raise DataError(f"model.tables[{at}].rows={table.rows}: table {own.name!r} of {owner} has {own.rows:,} rows")
            if table.hotness != own.hotness:
                raise DataError(
                    f"model.tables[{at}].hotness={table.hotness}: table {own.name!r} of {owner} has up to {own.hotness} ids a row"
                )
        if model.dense_features != dense:  # pyright: ignore[reportAttributeAccessIssue]
            raise DataError(f"model.dense_features={model.dense_features}: {owner} has {dense}")  # pyright: ignore[reportAttributeAccessIssue]

    def decided(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the columns of a row: a cache has as many as it has."""
        return {"hotness": tuple(table.hotness for table in tables_of(manifest)), "dense": manifest["dense"]}

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `tables`, with the rows and the hotness of each, and `dense`, the numbers of a row."""
        tables = [{"rows": table.rows, "hotness": table.hotness} for table in tables_of(manifest)]
        return {"tables": tables, "dense": manifest["dense"]}

    def synthetic_key(self, model: ModelConfig) -> str:
        return str([(table.rows, table.hotness) for table in _tables(model)])

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns a block of rows of random ids and numbers, as a cache has them; a label is likelier where numbers are large."""
        data, rows_F = self.data, self._rows_of(model)
        # A generator's `integers` with a bound for each number takes four times as long.
        counts_KF = 1 + (rng.random((BLOCK, len(data.hotness))) * np.array(data.hotness)).astype(np.int64)
        limits = np.repeat(np.tile(rows_F, BLOCK), counts_KF.ravel())
        dense_KD = np.log1p(rng.exponential(size=(BLOCK, data.dense))).astype(np.float32)
        likely_K = metrics.probabilities(dense_KD.sum(axis=1) - 0.6 * data.dense)
        return {
            "dense": dense_KD,
            "label": (rng.random(BLOCK) < likely_K).astype(np.float32),
            "counts": counts_KF.astype(np.uint8),
            "ids": (rng.random(len(limits)) * limits).astype(np.int32),
        }

    def _rows_of(self, model: ModelConfig) -> np.ndarray:
        """Returns the rows of each of a model's tables, for random ids; a model is checked once, not with each block of rows."""
        if self._random is None or self._random[0] is not model:
            tables, data = _tables(model), self.data
            own = [Table(name=f"table_{f}", rows=tables[f].rows, hotness=n) for f, n in enumerate(data.hotness[: len(tables)])]
            self._check_model(model, own + [Table(name="more", rows=1)] * (len(data.hotness) - len(own)), data.dense, "the data")
            self._random = model, np.array([table.rows for table in own])
        return self._random[1]

    def assets(self, folder: Path | None, model: ModelConfig) -> list[int] | None:
        """Returns the rows of a cache's tables, below which its ids must be."""
        return [table.rows for table in tables_of(read_manifest(folder))] if folder else None

    @property
    def augmentation(self) -> str:
        """The ids of a block are put into their columns."""
        return "columns"

    def augment(self, row: Example, rng: np.random.Generator, assets: list[int] | None) -> Example:
        """Returns a block of rows with their ids in columns."""
        return blocks.expanded(row, self.data.hotness, assets)

    @property
    def rows_per_group(self) -> int:
        return BLOCK

    def combine(self, rows: Sequence[Example], rng: np.random.Generator) -> Example:
        """Returns the rows of a block."""
        return rows[0]

    def rows(self, manifest: Mapping[str, Any]) -> int:
        """Returns how many training rows a cache has, not their blocks."""
        return int(manifest["trained"])

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's first rows; `extra` has an array of each field of the raw examples that is a number.

        Raises:
          DataError: all rows have one label.
        """
        raw, sizes = list(examples(cache, split, limit)), self.assets(cache, None)  # pyright: ignore[reportArgumentType]
        rows = blocks.HeldOutRows(cache / f"{split}.array_record", self.data, sizes or (), len(raw))
        names = [name for name in ("label", "group", "weight", *BASELINES) if any(name in example for example in raw)]
        extra = {name: np.array([float(example.get(name, 1.0)) for example in raw]) for name in names}
        if raw:
            metrics.check_labels(extra["label"], split, cache.name, limit)
        return HeldOutExamples(rows, len(raw), extra, needs_outputs=True)

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the model's scores, and those of the baselines as "popularity/auc" (data.clicks.metrics.MEANINGS)."""
        return metrics.of_outputs(examples.extra, outputs, examples.count, BASELINES)

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"auc": False, "log_loss": True, "normalized_entropy": True, "ndcg": False, "hit_rate": False}

    @property
    def meanings(self) -> Mapping[str, str]:
        return metrics.MEANINGS

    # --- ranking for a user ---

    def catalogue(self, cache: Path, user: str) -> ClickCatalogue:
        return ClickCatalogue.of(cache, self.data, user)

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        tables = ", ".join(f"{table.name} ({table.rows:,})" for table in tables_of(manifest))
        return [
            f"Trained on {self.rows(manifest):,} rows of `{manifest['cache']}` (fingerprint {manifest['fingerprint'][:16]}).",
            f"Tables and their rows: {tables}; numbers: {', '.join(manifest['numbers'])}.",
        ]


def _tables(model: ModelConfig) -> Sequence[HasRows]:
    if not isinstance(model, EmbedsTables):
        raise DataError(f"a model of family {model.family!r} embeds no tables of ids")
    return model.tables


task = ClickTask
