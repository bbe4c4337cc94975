"""Splits without leaks, and nested subsets of training examples. Neither depends on the order of the examples."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

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
      items: all examples. A group has one stratum.
      validation, test: the share of a stratum's groups that is held out: at least one group, unless the share is 0.
    """
    strata: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        strata[item.stratum][item.group].append(item.example)
    splits: dict[str, list[Any]] = {"train": [], "validation": [], "test": []}
    for groups in strata.values():
        tested, validated = (max(1, round(share * len(groups))) if share else 0 for share in (test, validation))
        for at, group in enumerate(sorted(groups, key=_hash)):
            name = "test" if at < tested else "validation" if at < tested + validated else "train"
            splits[name] += groups[group]
    return splits


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
