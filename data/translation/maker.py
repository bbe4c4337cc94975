"""Prepares a cache of translated pairs.

    data set      <data>/tfds/message_catalogues/      cleaned, split, by language (`data.translation.message_catalogues`)
    vocabularies  <data>/vocabularies/                 SentencePiece models, from the training split alone

With the vocabulary of released weights, whose files `adopt` copies to <data>/vocabularies/CATALOGUE-released, the same strings
are encoded as these weights expect, in the languages that they know.

A cache holds `train/LANGUAGE.array_record` (rows as in `data.reading.packing`), its vocabularies' files, and the raw strings of
the held-out splits as `validation.jsonl`, `test.jsonl` and, where the catalogue has a test out of domain, `udhr_dev.jsonl` and
`udhr_test.jsonl` (lang, source, target).
TensorFlow is imported when the source is opened; finding a cache up to date doesn't need it.
"""

import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data import paths, stages
from data.cache_maker import AdoptingMaker
from data.own_maker import OwnMaker
from data.packages.fetch import Package
from data.reading import packing
from data.reading.tally import Tally
from data.stages import stage
from data.task import DataError
from data.translation import own
from data.translation.caches import OwnTranslationCache, TranslationCache
from data.translation.sources import CATALOGUES
from data.translation.vocabularies import ENGLISH, Released, Trained
from data.vocabularies import files, sentencepiece

_SEED = 0
_LINES_PER_PIECE = 10  # of a vocabulary's training text
_TEMPERATURE = 5.0  # by which languages are drawn for that text

Pairs = Mapping[str, Sequence[tuple[str, str]]]  # (source, English) by language


class TranslationMaker(AdoptingMaker[TranslationCache]):
    """Makes a cache of translated pairs; a language is a part."""

    FORMAT = 2
    PARTS = "languages"
    MISSING = (
        "is encoded with the vocabulary of released weights: name the folder of an M2M-100 or NLLB "
        "with python -m scripts.prepare_data {name} --vocabulary FOLDER"
    )

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.SPLITS = tuple(CATALOGUES[self.settings.catalogue].held_out)

    def packages(self) -> tuple[Package, ...]:
        return tuple(CATALOGUES[self.settings.catalogue].packages)

    @property
    def adopted(self) -> Path:
        return self.root / "vocabularies" / f"{self.settings.catalogue}-released"

    def check_vocabulary(self, folder: Path) -> None:
        """Raises UserError if the folder's vocabulary is no translator's."""
        Released(folder)

    def open(self) -> None:
        stages.quiet_tensorflow()
        from data.translation import message_catalogues

        catalogue = self.settings.catalogue
        inputs = message_catalogues.build(catalogue, manual_dir=self.root / "packages", data_dir=self.root / "tfds")
        pairs = self._strings("train")
        if self.settings.released:
            files.copy(self.adopted, self.folder)
            self.vocabularies = Released(self.folder)
            known = {language: of for language, of in pairs.items() if self.vocabularies.name(language)}
            if unknown := sorted(pairs.keys() - known.keys()):
                self.progress(f"languages that the vocabulary does not know are left out: {', '.join(unknown)}")
            self.pairs = known
        else:
            with stage("vocabularies", self.progress):
                for name, model in self._train_vocabularies(inputs, pairs).items():
                    shutil.copyfile(model, self.folder / f"{name}.model")
            self.pairs, self.vocabularies = pairs, Trained(self.folder, pairs)

    def _train_vocabularies(self, inputs: Mapping[str, str], pairs: Pairs) -> dict[str, Path]:
        """Returns the models `source` and `target`, trained on a sample of the training split unless they are there."""
        s, models = self.settings, {}
        for side, (name, size) in enumerate((("source", s.source_vocabulary), ("target", s.target_vocabulary))):
            digest = paths.digest([self.FORMAT, inputs, size, _LINES_PER_PIECE, _TEMPERATURE, _SEED])
            model = models[name] = self.root / "vocabularies" / f"{s.catalogue}-{name}-{size}-{digest[:12]}.model"
            if not model.exists():
                lines = {language: [pair[side] for pair in language_pairs] for language, language_pairs in pairs.items()}
                budget = _LINES_PER_PIECE * size
                sample = sentencepiece.sample_lines(lines, budget=budget, temperature=_TEMPERATURE, seed=_SEED)
                sentencepiece.train(sample, model, size=size, tags=pairs if name == "source" else ())
        return models

    def _strings(self, split: str) -> Pairs:
        """Returns the pairs of a split by language, in the order of its languages."""
        from data.translation import message_catalogues

        return dict(sorted(message_catalogues.read_splits(self.settings.catalogue, self.root / "tfds", split).items()))

    def examples(self, split: str) -> Iterator[dict[str, str]]:
        for language, pairs in self._strings(split).items():
            for source, target in pairs if language in self.pairs else []:
                yield {"lang": language, "source": source, "target": target}

    def parts(self) -> Iterable[str]:
        return self.pairs

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        lengths = (self.settings.source_length, self.settings.target_length)
        encoded: list[packing.Example] = []
        for source, target in self.pairs[part]:
            sides = self.vocabularies.source(part, source), self.vocabularies.target(ENGLISH, target)
            encoded.append(tuple(np.array(side, np.int32) for side in sides))
        return map(packing.record_of, packing.pack(packing.shuffled(encoded, f"{_SEED} {part}"), lengths, tally))

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return counts(tally)

    def manifest(self) -> dict[str, Any]:
        names = ("source_vocabulary", "target_vocabulary")
        return {name: self.vocabularies.size for name in names} if self.settings.released else {}


class OwnTranslationMaker(OwnMaker[OwnTranslationCache]):
    """Makes a cache of a user's own translations; a language that is translated from is a part."""

    FORMAT = 2
    PARTS = "languages"
    NOUN = "pair"
    REQUIRED = False
    MISSING = "needs a translator's vocabulary: name the folder of an M2M-100 or NLLB with --vocabulary"

    def check_vocabulary(self, folder: Path) -> None:
        """Raises UserError if the folder's vocabulary is no translator's."""
        Released(folder)

    def open(self) -> None:
        source, known = self.location.name, own.Languages()
        texts = own.texts_of(source, self.columns)
        if texts is None:
            raise DataError(f"{source}: no translations there any more")
        files = own.files(source, texts)
        self.to = own.target_of(texts, files[0], self.settings.to)
        self.divide(files, own.reader(texts, self.to), seen=known.add)
        self.languages = dict(sorted(known.files.items()))
        if self.settings.released:
            self.write_vocabulary()
            self.vocabularies = Released(self.folder)
            if not self.vocabularies.name(self.to):
                raise DataError(f"to={self.to!r}: the vocabulary does not know the language")
            known_there = {lang: files for lang, files in self.languages.items() if self.vocabularies.name(lang)}
            if unknown := sorted(self.languages.keys() - known_there.keys()):
                self.progress(f"languages that the vocabulary does not know are left out: {', '.join(unknown)}")
            self.languages = known_there
        else:
            with stage("vocabularies", self.progress):
                self._train_vocabularies()
            self.vocabularies = Trained(self.folder, self.languages, self.to)

    def _train_vocabularies(self) -> None:
        """Writes the models `source` and `target`, trained on a sample of the training pairs."""
        sizes = dict(zip(("source", "target"), self.settings.sizes, strict=True))
        most = _LINES_PER_PIECE * max(size for size, _ in sizes.values())
        samples = {lang: self._sample(lang, most) for lang in self.languages}
        for name, (size, fewer) in sizes.items():
            lines = {lang: [pair[name] for pair in sample] for lang, sample in samples.items()}
            sample = sentencepiece.sample_lines(lines, budget=_LINES_PER_PIECE * size, temperature=_TEMPERATURE, seed=_SEED)
            train = sentencepiece.train_at_most if fewer else sentencepiece.train
            try:
                train(sample, self.folder / f"{name}.model", size=size, tags=self.languages if name == "source" else ())
            except ValueError as problem:
                raise DataError(f"{self.name}: {problem} (--{name}-vocabulary, or a translator's by --vocabulary)") from None

    def _sample(self, lang: str, most: int) -> list[dict[str, str]]:
        """Returns at most so many training pairs of a language, drawn at random in one pass."""
        chance, kept = random.Random(f"{_SEED} {lang}"), list[dict[str, str]]()
        for number, pair in enumerate(self._train(lang)):
            if number < most:
                kept.append(pair)
            elif (place := chance.randrange(number + 1)) < most:
                kept[place] = pair
        return kept

    def _train(self, lang: str) -> Iterator[dict[str, str]]:
        return (pair for pair in iter(self.read["train"].of_files(self.languages[lang])) if pair["lang"] == lang)

    def content(self, example: dict[str, Any]) -> str:
        return own.content(example)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        return (pair for pair in super().examples(split) if pair["lang"] in self.languages)

    def parts(self) -> Iterable[str]:
        return self.languages

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        lengths = (self.settings.source_length, self.settings.target_length)
        pairs = packing.shuffled_in_windows(self._train(part), f"{_SEED} {part}")
        encoded = (self._encoded(pair) for pair in pairs if not self.is_copy(self.content(pair), "train"))
        return map(packing.record_of, packing.pack(encoded, lengths, tally))

    def _encoded(self, pair: dict[str, str]) -> packing.Example:
        sides = self.vocabularies.source(pair["lang"], pair["source"]), self.vocabularies.target(self.to, pair["target"])
        return tuple(np.array(side, np.int32) for side in sides)

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return counts(tally)

    def manifest(self) -> dict[str, Any]:
        if not any(tally.rows for tally in self.tallies.values()):
            raise DataError(f"{self.name}: no pair of the training fits a row (--source-length, --target-length)")
        source = self.vocabularies.size
        if isinstance(self.vocabularies, Trained):
            source = self.vocabularies.source_size
        sizes = {"source_vocabulary": source, "target_vocabulary": self.vocabularies.size}
        return super().manifest() | sizes | {"to": self.to}

    def show(self, part: str, record: bytes) -> str:
        s = self.settings
        row, ends = np.frombuffer(record, "<i4"), (3 * s.source_length, 3 * (s.source_length + s.target_length))
        sides = row[: ends[0]].reshape(3, -1), row[ends[0] : ends[1]].reshape(3, -1)
        numbers = range(1, int(sides[0][1].max()) + 1)
        return " | ".join(self.vocabularies.marked(*(side[0, side[1] == n].tolist() for side in sides)) for n in numbers)


def counts(tally: Tally) -> dict[str, int]:
    """Returns the counts of a language."""
    source, target = tally.tokens
    tokens = dict(source_tokens=source, target_tokens=target)
    return dict(pairs=tally.examples, rows=tally.rows, **tokens, dropped=tally.left_out)


MAKERS = {TranslationCache: TranslationMaker, OwnTranslationCache: OwnTranslationMaker}
