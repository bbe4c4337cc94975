"""Prepares a cache of rated conversations.

A cache holds `train/responses.array_record` and `train/ratings.array_record` (rows as in `data.lamda.encoding`), the held-out
conversations as `validation.jsonl` and `test.jsonl`, those of training as `train.jsonl` (id, turns, ratings), and the vocabulary.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from data.cache_maker import CacheMaker
from data.lamda import conversations, encoding
from data.lamda.caches import LamdaCache
from data.lamda.conversations import Conversation
from data.packages import chitchat, weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.splits import without_copies
from data.reading.tally import Tally
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer

_SEED = 0
_RECENT = 8  # turns of a response and its context at most: more seldom fit


class LamdaMaker(CacheMaker[LamdaCache]):
    """Makes a cache of rated conversations; the rows of either form are a part."""

    FORMAT = 1
    SPLITS = ("train", "validation", "test")

    def packages(self) -> tuple[Package, ...]:
        return chitchat.PACKAGE, weights.VOCABULARIES[self.settings.tokenizer]

    def open(self) -> None:
        splits: dict[str, list[Conversation]] = {split: [] for split in self.SPLITS}
        for conversation in conversations.read(self.root / "packages" / chitchat.PACKAGE.file):
            splits[conversations.split_of(conversation)].append(conversation)
        self.splits = without_copies(splits, lambda conversation: "\n".join(conversation["turns"]))
        weights.write_vocabulary(self.settings.tokenizer, self.root / "packages", self.folder / tokenizers.FILE)
        self.tokenizer = Tokenizer(self.folder)

    def parts(self) -> Iterable[str]:
        return "responses", "ratings"

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        examples = packing.shuffled(self._responses() if part == "responses" else self._ratings(), f"{_SEED} {part}")
        return map(packing.record_of, packing.pack_weighted(examples, self.settings.length, tally))

    def _responses(self) -> Iterator[packing.Example]:
        """Yields an example for each turn that answers another."""
        for conversation in self.splits["train"]:
            turns = conversation["turns"]
            for end in range(2, len(turns) + 1):
                recent = turns[max(0, end - _RECENT) : end]
                yield encoding.generative(recent, self.tokenizer, self.settings.turn_length)

    def _ratings(self) -> Iterator[packing.Example]:
        for conversation in self.splits["train"]:
            turns, ratings = conversation["turns"], conversation["ratings"]
            yield from encoding.discriminative(turns, ratings, self.tokenizer, self.settings.length)

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0])

    def manifest(self) -> dict[str, Any]:
        return {"vocabulary": self.tokenizer.size}


MAKERS = {LamdaCache: LamdaMaker}
