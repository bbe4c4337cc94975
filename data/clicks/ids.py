"""Rows of embedding tables for the values of a column: each value its own, or one that its hash names. Plain NumPy.

Hashes are SHA-256 of UTF-8, or SplitMix64 of whole numbers: the same on every machine and with every Python.
"""

import abc
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

UNSEEN = 0  # the row of all values that training lacks, where each value has its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table, as the manifest lists it.

    Attributes:
      name: the column whose values it has.
      rows: ids are below this.
      hotness: the most ids of a row of data.
    """

    name: str
    rows: int
    hotness: int = 1


class Ids(abc.ABC):
    """The rows of a table by value.

    Attributes:
      size: rows of the table.
    """

    size: int

    @abc.abstractmethod
    def row(self, value: str) -> int:
        """Returns the row of a value, from 0 to less than `size`."""


class Listed(Ids):
    """A row for each of these values, from 1 on in the order in which they come first; 0 is for all others."""

    def __init__(self, values: Iterable[str]):
        self._rows = {value: row for row, value in enumerate(dict.fromkeys(values), UNSEEN + 1)}
        self.size = len(self._rows) + 1

    def row(self, value: str) -> int:
        return self._rows.get(value, UNSEEN)


class Hashed(Ids):
    """A row for each value by its hash, which several may share; tables of other names hash differently."""

    def __init__(self, name: str, size: int):
        self.name, self.size = name, size

    def row(self, value: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.name}\n{value}".encode()).digest()[:8], "big") % self.size


def ids_of(name: str, values: Iterable[str], hashed: int) -> Ids:
    """Returns the rows of a table: `hashed` of them, or with 0 one for each of the values."""
    return Hashed(name, hashed) if hashed else Listed(values)


def mixed(values: np.ndarray) -> np.ndarray:
    """Returns SplitMix64's output for whole numbers: uint64 of the same shape (Steele, Lea, Flood 2014, from memory)."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def tables_of(manifest: Mapping[str, Any]) -> list[Table]:
    """Returns the tables that a cache's manifest lists."""
    return [Table(name=str(t["name"]), rows=int(t["rows"]), hotness=int(t["hotness"])) for t in manifest["tables"]]
