"""Prepares a cache of interactions: rows of training, held-out rows with the baselines' scores, and lists for ranking.

A cache holds `train/all.array_record`, `SPLIT.array_record` and `SPLIT.jsonl` (a line for each held-out row: its label, and the
logits of what there is to be beaten), and of logs with users and items the lists of both (data.clicks.catalogue).
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from data.cache_maker import CacheMaker
from data.clicks import baselines, catalogue, latent, sources
from data.clicks.blocks import record_of
from data.clicks.caches import ClickCache, LatentCache
from data.clicks.config import BLOCK, ClickData
from data.clicks.criteo import CriteoLog
from data.clicks.interactions import Drawn, InteractionLog
from data.clicks.log import Log, Row
from data.config import CacheConfig
from data.reading import caches, packing
from data.reading.examples import unpack
from data.reading.tables import columns_of
from data.reading.tally import Tally

Config = TypeVar("Config", bound=CacheConfig)

_WINDOW = 1 << 17  # training rows among which neighbours are mixed


class ClickMaker(CacheMaker[Config]):
    """Makes a cache of a log.

    Attributes:
      log: the log, once it is open.
      trained: training rows that have been written.
    """

    FORMAT = 1
    NOUN = "interaction"
    REQUIRED = True
    log: Log
    trained: int = 0

    def write_parts(self, parts: Iterable[str]) -> None:
        """Writes the training rows, and the lists for ranking."""
        super().write_parts(parts)
        if isinstance(self.log, InteractionLog):
            (self.folder / catalogue.ITEMS).parent.mkdir()
            caches.write_examples(self.folder / catalogue.ITEMS, self.log.items())
            caches.write_examples(self.folder / catalogue.USERS, self.log.users())

    def write_split(self, split: str) -> None:
        tally, rows = self.tallies.setdefault(split, Tally()), list[Row]()

        def kept() -> Iterator[Row]:
            for row in self.log.rows(split):
                rows.append(row._replace(dense=row.dense[:0], ids=()))
                yield row

        packing.write_records(self.folder / f"{split}.array_record", _records(kept()))
        tally.examples, tally.rows = self.log.sizes[split], len(rows)
        caches.write_examples(self.folder / f"{split}.jsonl", self._scored(rows))

    def _scored(self, rows: list[Row]) -> Iterator[dict[str, Any]]:
        """Yields held-out rows as data.clicks.task reads them, with the logits of the baselines."""
        log = self.log
        scores = dict[str, np.ndarray]()
        if isinstance(log, InteractionLog):
            users, items = (np.array([getattr(row, name) for row in rows], np.int64) for name in ("user", "item"))
            scores = {"popularity": self.popularity[items], "factors": self.factors(users, items)}
        for at, row in enumerate(rows):
            example: dict[str, Any] = {"label": int(row.label)}
            if isinstance(log, InteractionLog):
                example |= {"user": log.data.user_names[row.user], "item": log.data.item_names[row.item], "group": row.group}
            if row.weight != 1:
                example["weight"] = row.weight
            example |= {name: round(float(logits[at]), 6) for name, logits in scores.items()}
            if row.probability is not None:
                example["bayes"] = math.log(row.probability) - math.log1p(-row.probability)
            yield example

    def _fit(self) -> None:
        """Fits the baselines to the training rows; the validation says when to stop."""
        log = self.log
        assert isinstance(log, InteractionLog)
        train, held = (log.labelled(split) for split in ("train", "validation"))
        sizes = len(log.data.user_names), len(log.data.item_names)
        self.popularity = baselines.popularity(train[1], train[2], sizes[1])
        self.factors = baselines.fitted(train, held, sizes)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        """Yields blocks of training rows, neighbours in time apart from each other."""
        tally.examples = self.log.sizes["train"]

        def counted() -> Iterator[Row]:
            for row in self.log.rows("train"):
                self.trained += 1
                yield row

        return _records(packing.shuffled_in_windows(counted(), 0, _WINDOW))

    def show(self, part: str, record: bytes) -> str:
        log = self.log
        block = unpack(np.frombuffer(record, np.uint8), _data(log).stored())
        row = block | {name: block[name][0] for name in ("dense", "label", "counts")}
        starts = np.r_[0, np.cumsum(row["counts"])]
        ids = [
            f"{table.name} {' '.join(map(str, row['ids'][start:end]))}"
            for table, start, end in zip(log.tables, starts[:-1], starts[1:], strict=True)
        ]
        numbers = [f"{name} {value:.2f}" for name, value in zip(log.dense, row["dense"].tolist(), strict=True)]
        return f"label {int(row['label'])}: {', '.join(ids + numbers)}"

    def manifest(self) -> dict[str, Any]:
        return {
            "tables": [vars(table) for table in self.log.tables],
            "dense": len(self.log.dense),
            "numbers": list(self.log.dense),
            "trained": self.trained,
            "held_out": {split: self.tallies[split].rows for split in self.SPLITS},
        }


class LatentMaker(ClickMaker[LatentCache]):
    """Makes a cache of made-up interactions."""

    def open(self) -> None:
        s = self.settings
        data = latent.interactions(s)
        self.log = InteractionLog(data, hashed=0, drawn=Drawn(), validation=s.validation, test=s.test)
        self._fit()


class ClickTableMaker(ClickMaker[ClickCache]):
    """Makes a cache of somebody's interactions."""

    def open(self) -> None:
        s, shares = self.settings, {"validation": self.settings.validation, "test": self.settings.test}
        if self.location.is_own and sources.form_of(self.location.name, columns_of(s.columns)) == "criteo":
            self.log = CriteoLog(self.location.path, hashed=s.hashed, **shares)
            return
        tally = Tally()
        data = sources.opened(s.source, columns_of(s.columns), s.positive, tally, self.root / "tfds")
        tally.rows = tally.examples
        self.report("the source", tally)
        drawn = Drawn(negatives=s.negatives, held_negatives=s.held_negatives, popularity=s.popularity, seed=s.seed)
        self.log = InteractionLog(data, hashed=s.hashed, drawn=drawn, **shares)
        self._fit()

    def own_files(self) -> list[Any]:
        if isinstance(self.log, CriteoLog):
            return self.log.files
        ratings = sources.ratings_of(self.location.path)
        return [ratings] if ratings else list(super().own_files())


def _records(rows: Iterable[Row]) -> Iterator[bytes]:
    """Yields blocks of rows as they are stored."""
    waiting = iter(rows)
    while some := list(islice(waiting, BLOCK)):
        yield record_of(some)


def _data(log: Log) -> ClickData:
    return ClickData(batch_size=1, hotness=tuple(table.hotness for table in log.tables), dense=len(log.dense))


MAKERS = {LatentCache: LatentMaker, ClickCache: ClickTableMaker}
