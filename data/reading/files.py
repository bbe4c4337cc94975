"""Reading the files of a source while a cache is made: by several threads, some at a time; what cannot be used is counted."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_NAMED = 10  # of what is left out, how many a manifest names

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass
class Tally:
    """Counts of what is kept and left out; the first of the latter as "NAME: why"."""

    rows: int = 0
    left_out: int = 0
    named: list[str] = dataclasses.field(default_factory=list)

    def leave_out(self, name: str, why: object) -> None:
        self.left_out += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{name}: {why}")


def in_windows(read: Callable[[Item], Result], items: Iterable[Item], window: int) -> Iterator[Result]:
    """Yields what `read` returns of each item, in order; at most `window` results are in memory."""
    waiting = iter(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while some := list(itertools.islice(waiting, window)):
            yield from pool.map(read, some)
