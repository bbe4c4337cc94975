"""Prepared caches of colours, from a user's file with a line R,G,B,NAME for each."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from data.config import SourceCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwatchCache(SourceCache):
    """A file of colours; shares of them are held out."""

    kind: ClassVar[str] = "toy_swatches"
    made_of: ClassVar[str] = "a file of colours, NAME.swatches"

    validation: float = 0.1
    test: float = 0.1

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> "SwatchCache | None":
        return cls(source=f"file:{Path(source).resolve()}") if source.endswith(".swatches") else None


CACHES = (SwatchCache,)
ENTRIES: dict = {}
