"""Splits without leaks, and nested subsets of training examples. Neither depends on the order of the examples."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from data.reading.files import HELD_FIRST, Contents

Example = dict[str, Any]  # see `data.labelled.sources`


class Item(NamedTuple):
    """An example of any type, the `group` that must not be in two splits, the `stratum` that every split has a share of."""

    group: str
    example: Any
    stratum: str = ""


_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[^\W_]+")


def text_key(text: str) -> str:
    """Returns a normal form that identifies a text: lower case, numbers as 0, letters only."""
    return " ".join(_WORD.findall(_DIGITS.sub("0", text.lower())))


def divide(items: Iterable[Item], *, validation: float, test: float) -> dict[str, list[Any]]:
    """Divides examples by group into `train`, `validation` and `test`.

    Args:
      items: all examples. The stratum of a group is that of most of its items.
      validation, test: the share of a stratum's groups that is held out: at least one group, unless the share is 0. Training
        comes first: a stratum that has too few groups for one in each split is trained on whole.
    """
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    sizes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        groups[item.group].append(item.example)
        sizes[item.group][item.stratum] += 1
    strata: defaultdict[str, list[str]] = defaultdict(list)
    for group, counts in sizes.items():
        strata[min(counts, key=lambda stratum: (-counts[stratum], stratum))].append(group)
    splits: dict[str, list[Any]] = {"train": [], "validation": [], "test": []}
    for names in strata.values():
        validated, tested = _numbers(len(names), validation, test)
        for at, group in enumerate(sorted(names, key=_hash)):
            split = "test" if at < tested else "validation" if at < tested + validated else "train"
            splits[split] += groups[group]
    return splits


def with_missing(splits: Mapping[str, Iterable[Item]], *, validation: float, test: float) -> dict[str, list[Any]]:
    """Returns the examples of "train", "validation" and "test"; the last two are held out of the first where they are missing."""
    shares = {name: share for name, share in (("validation", validation), ("test", test)) if name not in splits}
    given = {name: [item.example for item in items] for name, items in splits.items() if name != "train" or not shares}
    return given if not shares else divide(splits["train"], **{"validation": 0.0, "test": 0.0} | shares) | given


def _numbers(groups: int, validation: float, test: float) -> tuple[int, int]:
    """Returns how many groups of a stratum are for validation and for the test."""
    if groups <= bool(validation) + bool(test):
        return 0, 0
    validated, tested = (max(1, round(share * groups)) if share else 0 for share in (validation, test))
    validated = min(validated, groups - 1 - bool(test))
    return validated, min(tested, groups - 1 - validated)


_COUNTED = 1 << 20  # groups whose exact shares are held out; of more, the shares are expected ones


class Groups:
    """Groups that are counted one after the other, to be divided in bounded memory."""

    def __init__(self):
        self._places = set[int]()

    def add(self, group: str) -> None:
        """Counts a group, which may have come before."""
        if len(self._places) <= _COUNTED:
            self._places.add(_place(group))

    def division(self, *, validation: float, test: float) -> "Division":
        """Returns the division of the groups so far, of one stratum, as `divide` divides them."""
        if len(self._places) > _COUNTED:
            return Division(int(test * _PLACES), int((test + validation) * _PLACES))
        validated, tested = _numbers(len(self._places), validation, test)
        ends = [*sorted(self._places), _PLACES]
        return Division(ends[tested], ends[tested + validated])


class Division(NamedTuple):
    """A division of groups by hash: those before `tested` are for the test, then those before `validated`."""

    tested: int
    validated: int

    def split_of(self, group: str) -> str:
        """Returns "train", "validation" or "test"."""
        place = _place(group)
        return "test" if place < self.tested else "validation" if place < self.validated else "train"


_PLACES = 1 << 64


def _place(group: str) -> int:
    return int.from_bytes(_hash(group)[:8], "big")


def without_copies(splits: Mapping[str, Iterable[Any]], key: Callable[[Any], str]) -> dict[str, list[Any]]:
    """Returns splits without copies: training lacks what is held out, and validation what is in the test.

    Args:
      key: returns what identifies an example, whatever its group.
    """
    kept, contents = dict[str, list[Any]](), Contents()
    for split in sorted(splits, key=HELD_FIRST.index):
        kept[split] = [example for example in splits[split] if not contents.why_copied(key(example).encode(), split)]
    return {split: kept[split] for split in splits}


def inputs_key(example: Example) -> str:
    """Returns what a model is given of an example, without what it is asked for, as a text."""
    return json.dumps({name: value for name, value in example.items() if name not in ("label", "tags")}, sort_keys=True)


def subset(examples: Iterable[Example], limit: int = 0, seed: int = 0) -> list[Example]:
    """Returns the first `limit` examples (0: all) in the order that `seed` gives.

    A larger subset of the same seed begins with the smaller one. Another seed gives another choice. Examples
    that differ only in their second text, as those of two tasks do, have the same order.
    """

    def place(example: Example) -> tuple[bytes, bytes]:
        first = {name: value for name, value in example.items() if name != "pair"}
        return _hash(f"{seed} {json.dumps(first, sort_keys=True)}"), _hash(json.dumps(example, sort_keys=True))

    return sorted(examples, key=place)[: limit or None]


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
