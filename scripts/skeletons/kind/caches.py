"""Prepared caches of colours, from files with a line R,G,B,NAME for each."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from data.config import SourceCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkeletonCache(SourceCache):
    """A file of colours; shares of them are held out.

    Attributes:
      side: height and width of a row's picture.
      validation, test: shares of the examples that are held out.
    """

    kind: ClassVar[str] = "skeleton"
    made_of: ClassVar[str] = "a file of colours, NAME.colours, with a line R,G,B,NAME for each"

    side: int = 8
    validation: float = 0.1
    test: float = 0.1

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> "SkeletonCache | None":
        return cls(source=f"file:{Path(source).resolve()}") if source.endswith(".colours") else None


CACHES = (SkeletonCache,)
ENTRIES = {"skeleton_sample": SkeletonCache(source=f"file:{Path(__file__).resolve().parent / 'sample.colours'}")}
