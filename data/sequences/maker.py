"""Prepares a cache of sequences: rows of training, held-out rows with what there is to be beaten, and lists for ranking.

A cache holds `train/all.array_record`, `SPLIT.array_record` and `SPLIT.jsonl` (a line for each held-out row: its label, logits
of its action and ranks of its item by the baselines), and the lists of users and items (data.clicks.catalogue).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from data.cache_maker import CacheMaker
from data.clicks import baselines, catalogue, sources
from data.clicks.ids import UNSEEN
from data.clicks.log import SPLITS
from data.config import CacheConfig
from data.features import Example
from data.reading import caches, packing
from data.reading.tables import columns_of
from data.reading.tally import Tally
from data.sequences import latent
from data.sequences.caches import LatentSequenceCache, SequenceCache
from data.sequences.log import HeldOutRow, SequenceLog, barred

Config = TypeVar("Config", bound=CacheConfig)

_NEGATIVES = 4  # items drawn for each interaction to fit factors against
_WINDOW = 1 << 14  # training rows among which neighbours are mixed


class SequenceMaker(CacheMaker[Config]):
    """Makes a cache of a log.

    Attributes:
      log: the log, once it is open.
      best: ranks [N] of items by the probabilities that they were drawn with; None where these are not known.
    """

    FORMAT = 1
    NOUN = "interaction"
    REQUIRED = True
    log: SequenceLog
    best: np.ndarray | None = None

    def write_parts(self, parts: Iterable[str]) -> None:
        """Writes the training rows, and the lists for ranking."""
        super().write_parts(parts)
        (self.folder / catalogue.ITEMS).parent.mkdir()
        caches.write_examples(self.folder / catalogue.ITEMS, self._items())
        caches.write_examples(self.folder / catalogue.USERS, self._users())

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        """Yields training rows, neighbours apart from each other."""
        tally.examples = len(self.log.trained)
        for numbers in packing.shuffled_in_windows(self.log.training(), 0, _WINDOW):
            yield record_of(self.log.row(numbers, 0))

    def write_split(self, split: str) -> None:
        log, rows = self.log, self.log.held_out(split)
        tally = self.tallies[split] = Tally()
        tally.examples = tally.rows = len(rows)
        tally.left_out = int((log.part == SPLITS.index(split)).sum()) - len(rows)
        if tally.left_out:
            tally.reasons.append("no interaction of the same user is before it")
        examples = [log.row(np.append(row.before, row.number), len(row.before)) for row in rows]
        packing.write_records(self.folder / f"{split}.array_record", map(record_of, examples))
        caches.write_examples(self.folder / f"{split}.jsonl", map(self._scored, rows, examples))
        self.report(split, tally)

    def manifest(self) -> dict[str, Any]:
        return {
            "items": self.log.ids.size,
            "length": self.log.length,
            "repeats": self.repeats,
            "trained": len(self.log.trained),
            "held_out": {split: self.tallies[split].rows for split in self.SPLITS},
        }

    @property
    def repeats(self) -> bool:
        """True if an item may come again, and is ranked where the row has it."""
        return bool(self.settings.flat()["repeats"])

    def show(self, part: str, record: bytes) -> str:
        items, actions = np.frombuffer(record, "<i4")[: 2 * self.log.length].reshape(2, -1)
        return " ".join(f"{item}{'.-+'[action]}" for item, action in zip(items.tolist(), actions.tolist(), strict=True) if action)

    # --- baselines ---

    def fit(self) -> None:
        """Fits the baselines to the training interactions; the validation says when to stop."""
        log = self.log
        size, users = log.ids.size, len(log.data.user_names)
        counts_I = np.bincount(log.items[log.trained], minlength=size).astype(np.float64)
        self._counts = counts_I

        def drawn(part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            rng = np.random.default_rng(part)
            numbers = np.flatnonzero((log.part == part) & (log.items != UNSEEN))
            chosen = np.tile(log.data.users[numbers], 1 + _NEGATIVES)
            others = rng.integers(1, size, _NEGATIVES * len(numbers))
            labels = np.repeat([1.0, 0.0], [len(numbers), len(others)])
            return chosen, np.concatenate([log.items[numbers], others]), labels

        self._next = baselines.fitted(drawn(0), drawn(1), (users, size))
        self._follows = Transitions([log.items[past] for _, past in log.users], counts_I)
        if log.data.labels is None:
            return
        labels_N = np.asarray(log.data.labels, np.float64)
        train, held = ((log.data.users[n], log.items[n], labels_N[n]) for n in (log.trained, np.flatnonzero(log.part == 1)))
        self._popular = baselines.popularity(train[1], train[2], size)
        self._liking = baselines.fitted(train, held, (users, size))

    def _scored(self, row: HeldOutRow, example: Example) -> dict[str, Any]:
        """Returns a held-out row as data.sequences.task reads it."""
        log, number = self.log, row.number
        user, item = int(log.data.users[number]), int(log.items[number])
        own = {"user": log.data.user_names[user], "item": log.data.item_names[log.data.items[number]]}
        line: dict[str, Any] = own | {"label": int(log.actions[number]) - 1}
        if log.data.labels is not None:
            logits = {"popularity": self._popular[item], "factors": self._liking(np.array([user]), np.array([item]))[0]}
            line |= {name: round(float(logit), 6) for name, logit in logits.items()}
        if log.data.probabilities is not None:
            line["bayes"] = math.log(p := float(log.data.probabilities[number])) - math.log1p(-p)
        out = barred(example, repeats=self.repeats)
        last = int(example["items"][len(row.before) - 1])
        scores = {
            "popularity": self._counts,
            "factors": self._next.items @ self._next.users[user],
            "transitions": self._follows(last),
        }
        line |= {f"{name}_rank": rank(scores_I, item, out) for name, scores_I in scores.items()}
        return line | ({} if self.best is None else {"bayes_rank": int(self.best[number])})

    # --- lists for ranking ---

    def _items(self) -> Iterator[dict[str, Any]]:
        log = self.log
        titles = log.data.titles or [""] * len(log.data.item_names)
        for item in dict.fromkeys(log.data.items[log.trained].tolist()):  # in the order of their ids
            yield {"item": log.data.item_names[item], "name": titles[item]}

    def _users(self) -> Iterator[dict[str, Any]]:
        log = self.log
        for user, past in log.users:
            late = past[1 - log.length :]
            seen = (np.unique(log.items[past]) - 1).tolist()
            arrays = {"items": log.items[late], "actions": log.actions[late], "times": log.times(late).astype(np.int64)}
            yield {"user": log.data.user_names[user]} | {n: x.tolist() for n, x in arrays.items()} | {"seen": seen}


class Transitions:
    """How often each item comes directly behind another in training, and in equal cases how often at all.

    Args:
      histories: the items of each user, the earliest first.
      counts_I: how often each item comes.
    """

    def __init__(self, histories: Iterable[np.ndarray], counts_I: np.ndarray):
        self._popular = counts_I / (counts_I.sum() + 1)
        size = len(counts_I)
        pairs = np.concatenate([items[:-1] * size + items[1:] for items in histories])
        codes, self._times = np.unique(pairs, return_counts=True)
        self._next = codes % size
        self._starts = np.searchsorted(codes, np.arange(size + 1) * size)

    def __call__(self, last: int) -> np.ndarray:
        """Returns scores [I] of what comes behind an item."""
        own, scores_I = slice(self._starts[last], self._starts[last + 1]), self._popular.copy()
        scores_I[self._next[own]] += self._times[own]
        return scores_I


def rank(scores_I: np.ndarray, item: int, out: np.ndarray) -> int:
    """Returns the place of an item among all by their scores, from 1 on: behind those of equal score, and without those in `out`.

    An item that training lacks is behind all others.
    """
    if item == UNSEEN:
        return len(scores_I)
    above_I = scores_I >= scores_I[item]
    above_I[out] = above_I[UNSEEN] = False
    return int(above_I.sum()) + (not above_I[item])


def record_of(row: Example) -> bytes:
    """Returns a row as it is stored."""
    return b"".join(row[name].astype("<i4").tobytes() for name in ("items", "actions", "times", "start"))


class LatentSequenceMaker(SequenceMaker[LatentSequenceCache]):
    """Makes a cache of made-up sequences."""

    def open(self) -> None:
        s = self.settings
        data, self.best = latent.interactions(s)
        self.log = SequenceLog(data, length=s.length, split=s.split, validation=s.validation, test=s.test)
        self.fit()


class SequenceTableMaker(SequenceMaker[SequenceCache]):
    """Makes a cache of somebody's interactions."""

    def open(self) -> None:
        s, tally = self.settings, Tally()
        data = sources.opened(s.source, columns_of(s.columns), s.positive, tally, self.root / "tfds")
        tally.rows = tally.examples
        self.report("the source", tally)
        self.log = SequenceLog(data, length=s.length, split=s.split, validation=s.validation, test=s.test)
        self.fit()

    def own_files(self) -> list[Any]:
        ratings = sources.ratings_of(self.location.path)
        return [ratings] if ratings else list(super().own_files())


MAKERS = {LatentSequenceCache: LatentSequenceMaker, SequenceCache: SequenceTableMaker}
