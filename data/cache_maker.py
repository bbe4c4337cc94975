"""The contract of a kind of data whose caches are prepared, and the files that all caches have. No TensorFlow."""

import abc
import functools
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from data import kinds, paths, untrusted
from data.config import CacheConfig, SourceCache
from data.packages.fetch import Package
from data.packages.locations import Location, PackageSource
from data.reading import caches, media, packing, tables
from data.reading.files import Contents
from data.reading.tally import Tally
from data.stages import Progress, stage
from data.task import DataError
from data.vocabularies import files
from models.errors import shortened

Config = TypeVar("Config", bound=CacheConfig)

_SHOWN = 400  # characters of a row that is shown
_NAMED = 3  # files that are named
ALL = "all"  # the part of a cache that has no other


class CacheMaker(abc.ABC, Generic[Config]):
    """Makes a cache: a folder <data>/caches/NAME with

        train/PART.array_record     rows, a file for each part: a language, an origin of text
        SPLIT.jsonl                 the raw examples of each held-out split
        manifest.json               the settings, the counts, the digests of all files
        vocabularies, and whatever else the kind of data writes

    A subclass says what the cache is made from (`packages`, `inputs`), opens that (`open`), and yields its contents.

    Attributes:
      FORMAT: version of the contents; increase it whenever the same packages would give another cache.
      SOURCES: sources in packages by name.
      SPLITS: the splits whose raw examples are written.
      PARTS: the parts' name in the manifest.
      NOUN: what an example is, in reports.
      REQUIRED: whether a part or a split without rows is refused.
      name, settings: the cache's.
      root: the data folder.
      progress: called with each line of a report.
      folder: the new cache's, once `build` is called.
      splits: the examples of each split, once the source is open.
      tallies: counts of what has been written, by part or split.
    """

    FORMAT: ClassVar[int]
    SOURCES: ClassVar[Mapping[str, PackageSource]] = {}
    PARTS: ClassVar[str] = "parts"
    NOUN: ClassVar[str] = "example"
    REQUIRED: ClassVar[bool] = False

    SPLITS: tuple[str, ...] = ("validation", "test")
    folder: Path
    splits: dict[str, Any]

    def __init__(self, name: str, settings: Config, root: Path, progress: Progress = print):
        self.name, self.settings, self.root, self.progress = name, settings, root, progress
        self.tallies: dict[str, Tally] = {}
        self._left_to_show = 3

    # --- inputs ---

    def packages(self) -> tuple[Package, ...]:
        """Returns the packages that must be fetched."""
        return self.location.packages(self.SOURCES)

    def inputs(self) -> list[Any]:
        """Returns the inputs of the cache beside its settings and packages, as plain values: digests of other files.

        Raises:
          DataError: one is missing; the message says how to get it.
        """
        return self.location.digests()

    @functools.cached_property
    def location(self) -> Location:
        """The location of the source that the settings name."""
        return Location.of(self.settings.source if isinstance(self.settings, SourceCache) else "")

    def adopt(self, vocabulary: Path) -> None:
        """Takes the vocabulary of a folder for a cache whose settings leave it open; raises DataError for any other cache."""
        raise DataError(f"cache {self.name!r} has a vocabulary of its own, and takes none from {vocabulary}")

    # --- contents ---

    @abc.abstractmethod
    def open(self) -> None:
        """Opens the source, and writes the vocabulary, if there is one.

        Raises:
          DataError: the source cannot be read.
          NotPreparedError: a public data set is not in <data>/tfds.
          ValueError: a vocabulary is too large for the text.
        """

    def own_files(self) -> Sequence[Path]:
        """Returns the user's files that are read, once the source is open; of a folder or a pattern by default the tables."""
        if self.location.scheme == "file":
            return [self.location.path]
        return [table.path for table in tables.files(self.location.path)] if self.location.is_own else []

    def examples(self, split: str) -> Iterable[dict[str, Any]]:
        """Returns the raw examples of one of SPLITS."""
        return self.splits[split]

    def parts(self) -> Iterable[str]:
        """Returns the names of the parts, once the source is open."""
        return (ALL,)

    @abc.abstractmethod
    def records(self, part: str, tally: Tally) -> Iterable[bytes]:
        """Returns the records of a part's rows; counts examples."""

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        """Returns a part's counts as the manifest has them."""
        return {"examples": tally.examples, "rows": tally.rows, "left_out": tally.left_out}

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest's entries that are the kind's own, once everything is written."""
        return {}

    def show(self, part: str, record: bytes) -> str:
        """Returns a row of a part as the model will see it, for a person: its tokens as text, with their marks and targets; ""
        where rows of this kind of data are not shown."""
        return ""

    # --- files ---

    def build(self, folder: Path) -> dict[str, Any]:
        """Fills a new cache's folder from fetched packages; returns its part of the manifest."""
        self.folder = folder
        (folder / "train").mkdir()
        with stage("source", self.progress):
            self.open()
        if read := self.own_files():
            self.progress(_listed(read))
        if self.location.scheme in ("folder", "files") and (names := tables.unread(self.location.name)):
            self.progress(f"splits of another purpose are not read: {', '.join(map(shortened, names))}")
        for split in self.SPLITS:
            with stage(split, self.progress):
                self.write_split(split)
        self.write_parts(self.parts())
        parts = {part: self.counts(part, self.tallies[part]) for part in self.parts()}
        return {**self.manifest(), self.PARTS: {part: counts for part, counts in parts.items() if counts["rows"]}}

    def write_split(self, split: str) -> None:
        """Writes a held-out split."""
        caches.write_examples(self.folder / f"{split}.jsonl", self.examples(split))

    def write_parts(self, parts: Iterable[str]) -> None:
        """Writes the parts, one after the other."""
        for part in parts:
            with stage(part, self.progress):
                self.write_part(part)

    def write_part(self, part: str) -> None:
        """Writes the rows of a part."""
        tally = self.tallies[part] = Tally()
        records = self._shown(part, self.records(part, tally))
        tally.rows = packing.write_records(self.folder / "train" / f"{part}.array_record", records)
        self.report(part, tally)

    def _shown(self, part: str, records: Iterable[bytes]) -> Iterator[bytes]:
        """Yields records; reports the first rows of the cache as the model will see them."""
        for record in records:
            if self._left_to_show and (row := self.show(part, record)):
                self.progress(f"a row of {_split(part)}: {shortened(row, _SHOWN)}")
                self._left_to_show -= 1
            yield record

    def report(self, name: str, tally: Tally) -> None:
        """Reports what is left out of a part or a split; raises DataError for one without rows, if they are required."""
        name = _split(name)
        first = tally.reasons[0] if tally.reasons else "there is none"
        if tally.reasons:
            total = tally.examples + tally.left_out
            self.progress(f"{name}: {tally.left_out:,} of {total:,} {self.NOUN}s left out; {first}")
        if self.REQUIRED and not tally.rows:
            raise DataError(f"{self.name}: no {self.NOUN} of {name} can be used; {first}")

    def missing(self, classes: Sequence[str], seen: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """Returns the classes that splits lack, by split, and reports them.

        Args:
          seen: the classes that each split has.
        """
        lacking = {split: [name for name in classes if name not in names] for split, names in seen.items()}
        lacking = {split: names for split, names in lacking.items() if names}
        for split, names in lacking.items():
            number = f"{len(names):,} of {len(classes):,} classes"
            self.progress(f"{split}: no {self.NOUN} of {number}, such as {shortened(names[0])!r}")
        return lacking


class RecordedMaker(CacheMaker[Config]):
    """A maker of caches whose held-out examples are stored as rows too, `SPLIT.array_record`, and whose copies are left out.

    The splits are written before the parts: what is held out is not trained on, and what is in the test not in the validation.
    """

    SPLITS = ("test", "validation")

    def own_files(self) -> Sequence[Path]:
        return [table.path for table in media.tables_of(self.location.path)] if self.location.is_own else []

    @functools.cached_property
    def contents(self) -> Contents:
        """Digests of what the splits hold."""
        return Contents()

    @abc.abstractmethod
    def held_out(self, split: str, tally: Tally) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yields (the record of a row, its raw example) of a held-out split; counts examples."""

    def write_split(self, split: str) -> None:
        tally, examples = self.tallies.setdefault(split, Tally()), list[dict[str, Any]]()

        def records() -> Iterator[bytes]:
            for record, example in self.held_out(split, tally):
                examples.append(example)
                yield record

        tally.rows = packing.write_records(self.folder / f"{split}.array_record", records())
        caches.write_examples(self.folder / f"{split}.jsonl", examples)
        self.report(split, tally)

    def manifest(self) -> dict[str, Any]:
        return {
            "held_out": {split: self.tallies[split].rows for split in self.SPLITS},
            "left_out": {_split(name): tally.reasons for name, tally in self.tallies.items() if tally.reasons},
        }


class AdoptingMaker(CacheMaker[Config]):
    """A maker of caches that may be encoded with the vocabulary of a folder (`settings.released`), of which it keeps a copy.

    Attributes:
      MISSING: what the user must name, for the error about a vocabulary that was not given; with the cache's {name}.
    """

    MISSING: ClassVar[str]

    @property
    @abc.abstractmethod
    def adopted(self) -> Path:
        """The copy's folder."""

    @abc.abstractmethod
    def check_vocabulary(self, folder: Path) -> None:
        """Raises UserError for a folder without a vocabulary that fits."""

    def take_file(self, vocabulary: Path, folder: Path) -> None:
        """Writes into a folder the vocabulary that is a single file."""
        name = files.TOKENIZER if vocabulary.suffix == ".json" else vocabulary.name
        shutil.copyfile(untrusted.regular(vocabulary, DataError), folder / name)

    def adopt(self, vocabulary: Path) -> None:
        if not self.settings.released:
            return super().adopt(vocabulary)
        if not vocabulary.is_file():
            self.check_vocabulary(vocabulary)
        with paths.new_folder(self.adopted) as new:
            if vocabulary.is_file():
                self.take_file(vocabulary, new)
                self.check_vocabulary(new)
            else:
                files.copy(vocabulary, new)

    def inputs(self) -> list[Any]:
        """Returns the digests of the source and of the adopted vocabulary, if there are any."""
        own = super().inputs()
        if not self.settings.released:
            return own
        if not (listed := files.listed(self.adopted)):
            raise DataError(f"cache {self.name!r} {self.MISSING.format(name=self.name)}")
        return [*own, paths.digest({file.name: paths.sha256(file) for file in listed})]


def _listed(files: Sequence[Path]) -> str:
    """Returns a line with the number of the files that are read, and the first names, from the folder that all lie below."""
    top = os.path.commonpath([file.parent for file in files])
    names = [shortened(os.path.relpath(file, top)) for file in files[:_NAMED]]
    more = f" and {len(files) - _NAMED:,} more" if len(files) > _NAMED else ""
    return f"read {len(files):,} file{'s' if len(files) > 1 else ''}: {', '.join(names)}{more}"


def _split(name: str) -> str:
    """Returns what a part or a split is called in reports: the only part is the training split."""
    return "train" if name == ALL else name


def maker_of(name: str, settings: CacheConfig, root: Path, progress: Progress = print) -> CacheMaker[Any]:
    """Returns the maker of a cache, in the data folder `root`."""
    return kinds.module(settings.kind, "maker").MAKERS[type(settings)](name, settings, root, progress)
