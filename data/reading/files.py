"""Reading the items of a source while a cache is made: by threads or a pipeline, in order, copies left out."""

import contextlib
import contextvars
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

Item = TypeVar("Item")
Result = TypeVar("Result")


@runtime_checkable
class Sliceable(Protocol):
    """Items by index, which another process can read: both it and what maps them can be pickled."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> Iterator[Any]:
        """Yields the items from one index to another; all slices together are the items in order."""
        ...


Mapper = Callable[[Callable[[Any], Any], Sliceable, int], Iterator[Any]]
"""Returns the results of a function on all items, in order; the number is how many make up one piece of work."""

_mapper: contextvars.ContextVar[Mapper | None] = contextvars.ContextVar("mapper", default=None)


@contextlib.contextmanager
def mapped_by(mapper: Mapper | None) -> Iterator[None]:
    """Lets `in_windows` map sliceable items by this mapper within the block; None is threads."""
    token = _mapper.set(mapper)
    try:
        yield
    finally:
        _mapper.reset(token)


HELD_FIRST = ("test", "validation", "train")  # the order in which splits are written, for `Contents`


class Contents:
    """Digests of what held-out splits hold: what is written behind them leaves out its copies, whatever group they were in."""

    def __init__(self):
        self._held: dict[bytes, str] = {}

    def why_copied(self, content: bytes, split: str) -> str:
        """Returns why this is left out of a split: which one has it already; "" if none has. A held-out split then has it."""
        digest = hashlib.sha256(content).digest()
        holder = self._held.get(digest, split) if split == "train" else self._held.setdefault(digest, split)
        return "" if holder == split else f"is in the {holder} as well"


def in_windows(read: Callable[[Item], Result], items: Iterable[Item], window: int) -> Iterator[Result]:
    """Yields what `read` returns of each item, in order; at most `window` results are in memory."""
    mapper = _mapper.get()
    if mapper and isinstance(items, Sliceable):
        yield from mapper(read, items, window)
        return
    waiting = iter(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while some := list(itertools.islice(waiting, window)):
            yield from pool.map(read, some)
