"""Prepares a cache of pictures and sounds with texts: pictures' files and sounds' samples with the ids of their texts.

A cache holds `train/SOURCE-LANGUAGE.array_record`, rows as `data.multimodal.config.MultimodalData.stored` says;
`validation.array_record` and `test.array_record` with the texts as .jsonl; and `tokenizer.json`, byte-level BPE with a token for
each language. What cannot be decoded, or is too long, is left out, counted and, if it is among the first, named.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data.cache_maker import RecordedMaker
from data.images import pictures
from data.multimodal import own
from data.multimodal.caches import MultimodalCache
from data.multimodal.config import MultimodalData
from data.multimodal.sources import PICTURE, SOURCES, Clip
from data.multimodal.vocabulary import Languages, write_vocabulary
from data.packages.fetch import Package
from data.packages.locations import Location
from data.reading import media
from data.reading.examples import record_of, unpack
from data.reading.files import in_windows
from data.reading.splits import Item, divide, with_missing
from data.reading.tally import Tally
from data.speech import sound
from data.task import DataError
from data.vocabularies import tokenizers

_WINDOW = 64  # clips that are read at a time

Content = tuple[Clip, bytes, str]  # a clip, its content, and why it cannot be used ("" if it can)


class MultimodalMaker(RecordedMaker[MultimodalCache]):
    """Makes a cache of pictures and sounds with texts."""

    FORMAT = 2

    def packages(self) -> tuple[Package, ...]:
        locations = map(Location.of, self.settings.sources)
        return tuple(package for location in locations for package in location.packages(SOURCES))

    def inputs(self) -> list[Any]:
        """Returns the digests of a user's tables, and of the files that they name."""
        locations, columns = list(map(Location.of, self.settings.sources)), self.settings.columns
        return [digest for at in locations for digest in (*at.digests(), *media.beside(at, columns, media.PICTURE))]

    def open(self) -> None:
        s = self.settings
        self.sources = {self._name(source): self._divided(source) for source in s.sources}
        training = [clip for splits in self.sources.values() for clip in splits["train"]]
        texts = (text for clip in training for text in clip.texts.values())
        write_vocabulary(texts, _languages(training), self.folder / tokenizers.FILE, s.vocabulary_size)
        self.languages = Languages(self.folder)
        self._stored = MultimodalData(batch_size=1, targets_length=s.targets_length).stored()
        self._own = {self._name(source) for source in s.sources if Location.of(source).scheme != "package"}
        # The training clips of a package are read once, for all languages; a user's, each of one language, may not fit in memory.
        self._training = functools.lru_cache(1)(lambda name: list(self._read(self.sources[name]["train"], "train")))

    def own_files(self) -> list[Path]:
        locations = map(Location.of, self.settings.sources)
        return [table.path for at in locations if at.is_own for table in media.tables_of(at.path)]

    @staticmethod
    def _name(source: str) -> str:
        """Returns the name of a source, with which the names of its parts begin."""
        location = Location.of(source)
        return source if location.scheme == "package" else re.sub(r"\W+", "_", location.path.stem).strip("_") or "own"

    def _divided(self, source: str) -> dict[str, list[Clip]]:
        """Returns the clips of a source that have a text in one of the languages, in splits."""
        location, s = Location.of(source), self.settings
        if location.scheme != "package":
            splits = own.captioned(location.path, s.columns, self.root)
            given = {split: self._wanted(items) for split, items in splits.items()}
            return with_missing(given, validation=s.validation, test=s.test)
        items = self._wanted(location.packaged(SOURCES).read(self.root))
        if not items:
            raise DataError(f"{source}: has no text in {', '.join(s.texts_in)}")
        return divide(items, validation=s.validation, test=s.test)

    def _wanted(self, items: Iterable[Item]) -> list[Item]:
        """Returns the items that have a text in one of the languages, with no others."""
        wanted, kept = self.settings.texts_in, []
        for item in items:
            texts = {k: v for k, v in item.example.texts.items() if v and (not wanted or k in wanted)}
            if texts or not item.example.texts:  # what has no text at all is counted where rows are made
                kept.append(item._replace(example=dataclasses.replace(item.example, texts=texts)))
        return kept

    def parts(self) -> Iterable[str]:
        return [f"{name}-{language}" for name, splits in self.sources.items() for language in _languages(splits["train"])]

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        name, _, language = part.partition("-")
        clips = self.sources[name]["train"]
        if name in self._own:
            contents = self._read((clip for clip in clips if not clip.texts or language in clip.texts), "train")
        else:
            contents = self._training(name)
        return (record for record, _ in self._rows(contents, [language], tally))

    def held_out(self, split: str, tally: Tally) -> Iterator[tuple[bytes, dict[str, Any]]]:
        for name, splits in self.sources.items():
            for record, example in self._rows(self._read(splits[split], split), (), tally):
                yield record, example | {"source": name}

    def _read(self, clips: Iterable[Clip], split: str) -> Iterator[Content]:
        """Yields the clips of a split, with their contents."""

        def read(clip: Clip) -> Content:
            try:
                content = clip.read()
                if clip.form == PICTURE:
                    pictures.check(content, 3)
                elif len(content) > 2 * round(self.settings.seconds * sound.RATE):
                    raise sound.SoundError(f"is {len(content) / 2 / sound.RATE:.1f} s long, a row {self.settings.seconds:g} s")
            except (pictures.PictureError, sound.SoundError) as error:
                return clip, b"", str(error)
            return clip, content, ""

        for clip, content, why in in_windows(read, clips, _WINDOW):
            yield clip, content, why or self.contents.why_copied(content, split)

    def _rows(
        self, contents: Iterable[Content], languages: Iterable[str], tally: Tally
    ) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yields a row and its raw example for each clip and each of its texts in these languages, all by default."""
        length = self.settings.targets_length
        for clip, content, why in contents:
            if not clip.texts:
                tally.leave_out(clip.name, "has no text")
            for language in languages or sorted(clip.texts):
                if not (text := clip.texts.get(language)):
                    continue
                ids = self.languages.target(text, language)
                if why or len(ids) > length:
                    tally.leave_out(clip.name, why or f"its {language} text has {len(ids)} tokens")
                    continue
                tally.examples += 1
                row = {
                    "targets": np.pad(np.array(ids, np.int32), (0, length - len(ids))),
                    "form": np.array(clip.form),
                    "content": np.frombuffer(content, np.uint8),
                }
                yield record_of(row, self._stored), {"name": clip.name, "language": language, "text": text}

    def show(self, part: str, record: bytes) -> str:
        row = unpack(np.frombuffer(record, np.uint8), self._stored)
        content = row["content"].tobytes()
        what = pictures.described(content) if row["form"] == PICTURE else f"a sound of {len(content) / 2 / sound.RATE:.1f} s"
        return f"{what}: {self.languages.tokenizer.marked(row['targets'][row['targets'] > 0])}"

    def manifest(self) -> dict[str, Any]:
        parts = [self.tallies[part] for part in self.parts()]
        if not any(tally.rows for tally in parts):
            why = next((tally.reasons[0] for tally in parts if tally.reasons), "there is none")
            raise DataError(f"{self.name}: no text of the training can be used; {why}")
        return {**super().manifest(), "vocabulary": self.languages.size}


def _languages(clips: Iterable[Clip]) -> list[str]:
    return sorted({language for clip in clips for language in clip.texts})


MAKERS = {MultimodalCache: MultimodalMaker}
