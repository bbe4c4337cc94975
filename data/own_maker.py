"""Makers of caches of a user's own examples, which are read as often as they are needed (data.reading.own). No TensorFlow."""

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from data import paths
from data.cache_maker import AdoptingMaker
from data.own_cache import TRAINED, OwnCache, TrainedCache
from data.packages import weights
from data.packages.fetch import Package
from data.reading import own
from data.reading.files import Contents
from data.reading.splits import inputs_key
from data.reading.tables import TableFile, columns_of
from data.reading.tally import Tally
from data.stages import stage
from data.task import DataError
from data.vocabularies import files, sentencepiece_json, tokenizers
from models.errors import shortened

Config = TypeVar("Config", bound=OwnCache)
Trained = TypeVar("Trained", bound=TrainedCache)

_SAMPLE = 1 << 28  # characters that a user's vocabulary is trained on, at most


class OwnMaker(AdoptingMaker[Config]):
    """Makes a cache of a user's own examples, with a released vocabulary, or with that of a folder or a file.

    Attributes:
      columns: the columns of a table that have other names than the kind's.
      sources, read: the files, each a `TableFile` or several that belong together, and their examples by split, once they are
        divided.
      read_tally: counts those that can be used, and those that are left out as they are read, or as copies of held-out ones.
    """

    SPLITS = ("test", "validation")  # in this order: what is in the test is not in the validation
    REQUIRED = True
    MISSING: ClassVar[str] = "needs a vocabulary: name a folder, a file or a released one with --vocabulary"
    SEED: ClassVar[int] = 0
    sources: Sequence[Any]
    read: dict[str, own.OwnSplit]

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.columns = columns_of(self.settings.columns)
        self.read_tally, self.contents = Tally(), Contents()

    def packages(self) -> tuple[Package, ...]:
        tokenizer = self.settings.tokenizer
        return (weights.VOCABULARIES[tokenizer],) if tokenizer in weights.VOCABULARIES else ()

    @property
    def adopted(self) -> Path:
        return self.root / "vocabularies" / f"own-{paths.digest(dataclasses.asdict(self.settings))[:16]}"

    def take_file(self, vocabulary: Path, folder: Path) -> None:
        if vocabulary.suffix == ".model":
            sentencepiece_json.write(vocabulary, folder)
        else:
            super().take_file(vocabulary, folder)

    def divide(self, sources: Sequence[Any], read: own.Read, **seen: Any) -> None:
        """Reads the files once, and divides their examples."""
        s, self.sources = self.settings, sources
        self.read = own.divided(sources, read, self.read_tally, validation=s.validation, test=s.test, **seen)

    def own_files(self) -> list[Path]:
        groups = [[source] if isinstance(source, TableFile) else source for source in self.sources]
        return [file.path for group in groups for file in group]

    def write_vocabulary(self) -> None:
        """Writes the vocabulary that the settings name."""
        if self.settings.released:
            files.copy(self.adopted, self.folder)
        else:
            weights.write_vocabulary(self.settings.tokenizer, self.root / "packages", self.folder / tokenizers.FILE)

    def finished(self, example: dict[str, Any]) -> dict[str, Any]:
        """Returns an example as the cache keeps it, once all have been seen."""
        return example

    def why_left_out(self, example: dict[str, Any]) -> str:
        """Returns why an example is left out, once all have been seen; "" if it is not."""
        return ""

    def content(self, example: dict[str, Any]) -> str:
        """Returns what identifies an example, whatever its group: none is in two splits."""
        return inputs_key(example)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        for example in self.read[split]:
            content = self.content(example)
            if why := self.why_left_out(example):
                self._leave_out(content, why)
            elif not self.is_copy(content, split):
                yield self.finished(example)

    def is_copy(self, content: str, split: str, name: str = "") -> bool:
        """Returns whether a held-out split that is written before this one has the same content, and then counts it."""
        why = self.contents.why_copied(content.encode(), split)
        if why:
            self._leave_out(name or content, why)
        return bool(why)

    def _leave_out(self, name: str, why: str) -> None:
        self.read_tally.examples -= 1
        self.read_tally.leave_out(shortened(name), why)

    def write_parts(self, parts: Iterable[str]) -> None:
        super().write_parts(parts)
        self.report("the source", dataclasses.replace(self.read_tally, rows=1))

    def manifest(self) -> dict[str, Any]:
        return {"task": self.name, "left_out": self.read_tally.left_out}

    @abc.abstractmethod
    def show(self, part: str, record: bytes) -> str: ...


class TrainingMaker(OwnMaker[Trained]):
    """An OwnMaker whose vocabulary may be trained on the training texts.

    Attributes:
      TEXTS: the fields of an example that are texts.
      characters: how many these texts have in all splits.
    """

    TEXTS: ClassVar[tuple[str, ...]] = ("text",)
    characters: int = 0

    def divide(self, sources: Sequence[Any], read: own.Read, **seen: Any) -> None:
        def count(example: dict[str, Any], _: Any) -> None:
            self.characters += sum(len(example[name]) for name in self.TEXTS)

        super().divide(sources, read, seen=count, **seen)

    def write_vocabulary(self) -> None:
        """Writes the vocabulary that the settings name, or trains it; raises DataError for one too large for the texts."""
        with stage("vocabulary", self.progress):
            if self.settings.tokenizer != TRAINED:
                return super().write_vocabulary()
            size, fewer = self.settings.sizes
            try:
                tokenizers.train_bpe(self._sample(), self.folder / tokenizers.FILE, size, fewer=fewer)
            except ValueError as problem:
                raise DataError(f"{self.name}: {problem} (--vocabulary-size)") from None

    def _sample(self) -> Iterator[str]:
        """Yields training texts for the vocabulary: all, or those of as many examples, evenly, as make up _SAMPLE characters."""
        share = min(1.0, _SAMPLE / max(1, self.characters))
        for number, example in enumerate(iter(self.read["train"])):
            if int((number + 1) * share) > int(number * share):
                yield from (example[name] for name in self.TEXTS)
