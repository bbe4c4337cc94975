"""Prepares a cache of colours."""

from collections.abc import Iterator
from typing import Any

from data.cache_maker import CacheMaker
from data.reading.examples import record_of
from data.reading.splits import Item, divide
from data.reading.tally import Tally

from .caches import SkeletonCache
from .config import SkeletonData
from .task import row_of


class SkeletonMaker(CacheMaker[SkeletonCache]):
    FORMAT = 1

    def open(self) -> None:
        s = self.settings
        lines = [line.rsplit(",", 1) for line in self.location.path.read_text().splitlines()]
        items = [Item(colour, {"colour": list(map(int, colour.split(","))), "label": name}, name) for colour, name in lines]
        self.labels, self.splits = sorted({name for _, name in lines}), divide(items, validation=s.validation, test=s.test)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        side = self.settings.side
        for tally.examples, example in enumerate(self.splits["train"], start=1):
            row = row_of(example["colour"], self.labels.index(example["label"]), side)
            yield record_of(row, SkeletonData(side=side).stored())

    def manifest(self) -> dict[str, Any]:
        return {"labels": self.labels}


MAKERS = {SkeletonCache: SkeletonMaker}
