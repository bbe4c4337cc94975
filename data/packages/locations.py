"""Locations of the examples of a cache: a package, a data set of TFDS, or a folder or file of the user's own."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from data import paths
from data.packages.fetch import Package
from data.task import DataError
from models.errors import nearest

Scheme = Literal["package", "tfds", "folder", "file", "files"]
Source = TypeVar("Source", bound="PackageSource")


@dataclasses.dataclass(frozen=True)
class Location:
    """The `source` of a cache's settings: "tfds:NAME", "folder:PATH", "file:PATH", "files:PATTERN", or else the name of a
    source in packages."""

    scheme: Scheme
    name: str

    @classmethod
    def of(cls, source: str) -> "Location":
        """Returns the location that a text names, the inverse of `str`."""
        scheme, _, name = source.partition(":")
        return cls(scheme, name) if scheme in ("tfds", "folder", "file", "files") else cls("package", source)

    @classmethod
    def own(cls, source: str) -> "Location":
        """Returns the location of a user's folder, file or pattern of files."""
        path = Path(source).absolute()
        return cls("folder" if path.is_dir() else "file" if path.exists() else "files", os.path.normpath(path))

    def __str__(self) -> str:
        return self.name if self.scheme == "package" else f"{self.scheme}:{self.name}"

    @property
    def is_own(self) -> bool:
        """Whether it is a folder, a file or a pattern of the user's."""
        return self.scheme in ("folder", "file", "files")

    @property
    def path(self) -> Path:
        """The user's folder, file or pattern."""
        return Path(self.name)

    def digests(self) -> list[str]:
        """Returns the digest of the user's files, if they are the user's.

        Raises:
          DataError: the file does not exist.
        """
        if self.scheme == "file" and not self.path.is_file():
            raise DataError(f"no file {self.name}, of which the cache is made")
        digest = {"folder": paths.folder_digest, "file": paths.sha256, "files": paths.pattern_digest}.get(self.scheme)
        return [digest(self.path)] if digest else []

    def packaged(self, sources: Mapping[str, Source]) -> Source:
        """Returns the source in packages that this names; raises DataError with the nearest name."""
        if self.name not in sources:
            raise DataError(f"source={self.name!r}: no such source{nearest(self.name, sources)}")
        return sources[self.name]

    def packages(self, sources: "Mapping[str, PackageSource]") -> tuple[Package, ...]:
        """Returns the packages to fetch: none where the source is in none of these."""
        return sources[self.name].packages if self.scheme == "package" and self.name in sources else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageSource:
    """A source that comes in packages.

    Attributes:
      packages: the packages whose files `reader` is given, in order.
      reader: returns the examples; those that are divided into splits are items (data.reading.splits.Item).
    """

    packages: tuple[Package, ...]
    reader: Callable[..., Any]

    def read(self, root: Path) -> Any:
        """Returns the examples of the packages in the data folder `root`."""
        return self.reader(*(root / "packages" / package.file for package in self.packages))
