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

import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

from data import paths, stages
from data.cache_maker import AdoptingMaker
from data.packages.fetch import Package
from data.reading import packing
from data.reading.tally import Tally
from data.stages import stage
from data.translation.caches import TranslationCache
from data.translation.sources import CATALOGUES
from data.translation.vocabularies import ENGLISH, Released
from data.vocabularies import files, sentencepiece

_SEED = 0
_LINES_PER_PIECE = 10  # of a vocabulary's training text
_TEMPERATURE = 5.0  # by which languages are drawn for that text, as in the mixture


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
        self.tokens = self._open_released() if self.settings.released else self._open_tasks(inputs)

    def _open_released(self) -> Mapping[str, Iterable[packing.Example]]:
        """Returns the examples of the languages that the vocabulary of released weights knows."""
        files.copy(self.adopted, self.folder)
        self.vocabularies, pairs = Released(self.folder), self._strings("train")
        known = sorted(language for language in pairs if self.vocabularies.name(language))
        if unknown := sorted(pairs.keys() - set(known)):
            self.progress(f"languages that the vocabulary does not know are left out: {', '.join(unknown)}")

        def encoded(language: str) -> Iterator[packing.Example]:
            for source, target in pairs[language]:
                sides = self.vocabularies.source(language, source), self.vocabularies.target(ENGLISH, target)
                yield tuple(np.array(side, np.int32) for side in sides)

        return {language: encoded(language) for language in known}

    def _open_tasks(self, inputs: Mapping[str, str]) -> Mapping[str, Iterable[packing.Example]]:
        """Returns the examples of each language's SeqIO task."""
        from data.translation import seqio_tasks

        with stage("vocabularies", self.progress):
            models = self._vocabularies(inputs)
        for name, model in models.items():
            shutil.copyfile(model, self.folder / f"{name}.model")
        source, target, data_dir = models["source"], models["target"], self.root / "tfds"
        tasks = seqio_tasks.add_message_catalogues(self.settings.catalogue, source=source, target=target, data_dir=data_dir)
        return {language: seqio_tasks.tokens(task, "train") for language, task in tasks.items()}

    def _vocabularies(self, inputs: Mapping[str, str]) -> dict[str, Path]:
        """Returns the models `source` and `target`, trained on a sample of the training split unless they are there."""
        s, models = self.settings, {}
        pairs: dict[str, list[tuple[str, str]]] = {}
        for side, (name, size) in enumerate((("source", s.source_vocabulary), ("target", s.target_vocabulary))):
            digest = paths.digest([self.FORMAT, inputs, size, _LINES_PER_PIECE, _TEMPERATURE, _SEED])
            model = models[name] = self.root / "vocabularies" / f"{s.catalogue}-{name}-{size}-{digest[:12]}.model"
            if not model.exists():
                pairs = pairs or self._strings("train")
                lines = {language: [pair[side] for pair in language_pairs] for language, language_pairs in pairs.items()}
                budget = _LINES_PER_PIECE * size
                sample = sentencepiece.sample_lines(lines, budget=budget, temperature=_TEMPERATURE, seed=_SEED)
                sentencepiece.train(sample, model, size=size, tags=pairs if name == "source" else ())
        return models

    def _strings(self, split: str) -> dict[str, list[tuple[str, str]]]:
        """Returns the pairs of a split by language."""
        from data.translation import seqio_tasks

        return seqio_tasks.read_splits(self.settings.catalogue, self.root / "tfds", split)

    def examples(self, split: str) -> Iterator[dict[str, str]]:
        for language, pairs in sorted(self._strings(split).items()):
            for source, target in pairs if language in self.tokens else []:
                yield {"lang": language, "source": source, "target": target}

    def parts(self) -> Iterable[str]:
        return self.tokens

    def write_parts(self, parts: Iterable[str]) -> None:
        # Two at a time: one language's graph is traced and its rows are packed (Python) while the other's runs (C++).
        with stage("rows", self.progress), futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(self.write_part, parts))

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        lengths = (self.settings.source_length, self.settings.target_length)
        examples = packing.shuffled(self.tokens[part], f"{_SEED} {part}")
        return map(packing.record_of, packing.pack(examples, lengths, tally))

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        source, target = tally.tokens
        tokens = dict(source_tokens=source, target_tokens=target)
        return dict(pairs=tally.examples, rows=tally.rows, **tokens, dropped=tally.left_out)

    def manifest(self) -> dict[str, Any]:
        if not self.settings.released:
            return {}
        return dict.fromkeys(("source_vocabulary", "target_vocabulary"), self.vocabularies.size)


maker = TranslationMaker
