"""Prepares a cache of text to text: of labelled examples, in the splits of `data.labelled.maker`, or of a user's own table.

A cache holds `train/all.array_record` (rows of two sides, see `data.reading.packing`), the raw examples as `train.jsonl`,
`validation.jsonl` and `test.jsonl` (see `data.labelled.sources`; a user's are {"inputs", "targets"}, without those of training),
and `tokenizer.json`, which may be that of another cache.
TensorFlow is imported when the source is opened; finding a cache up to date doesn't need it.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from data.labelled.maker import ExampleMaker
from data.own_maker import TrainingMaker
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.tally import Tally
from data.stages import stage
from data.text_to_text import own, texts
from data.text_to_text.caches import OwnTextToTextCache, TextToTextCache
from data.vocabularies import tokenizers

_MULTIPLE, _LONGEST = 64, 512  # tokens of rows whose lengths are taken from the data


class TextToTextMaker(ExampleMaker[TextToTextCache]):
    """Makes a cache of text to text."""

    FORMAT = 2

    def packages(self) -> tuple[Package, ...]:
        own = super().packages()
        return own if self.settings.caches else (*own, weights.VOCABULARIES[self.settings.tokenizer])

    def inputs(self) -> list[Any]:
        """Returns the digest of another cache's vocabulary."""
        return [paths.sha256(self.root / "caches" / other / tokenizers.FILE) for other in self.settings.caches]

    def open(self) -> None:
        super().open()
        file, tokenizer = self.folder / tokenizers.FILE, self.settings.tokenizer
        if self.settings.caches:
            shutil.copyfile(self.root / "caches" / tokenizer / tokenizers.FILE, file)
        else:
            weights.write_vocabulary(tokenizer, self.root / "packages", file)
        self.encoder = texts.Encoder(self.folder)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        s = self.settings
        lengths = s.inputs_length, s.targets_length
        return map(packing.record_of, texts.packed(s.task, self.splits["train"], self.encoder, lengths, tally))

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return counts(tally)

    def manifest(self) -> dict[str, Any]:
        return {**super().manifest(), "vocabulary": self.encoder.size}


class OwnTextToTextMaker(TrainingMaker[OwnTextToTextCache]):
    """Makes a cache of a user's own inputs and targets, of one part."""

    FORMAT = 1
    TEXTS = ("inputs", "targets")

    def check_vocabulary(self, folder: Path) -> None:
        """Raises VocabularyError for a folder without a vocabulary that has an end of text."""
        texts.Encoder(folder)

    def open(self) -> None:
        self.divide(*own.opened(self.location.name, self.columns))
        self.write_vocabulary()
        self.encoder = texts.Encoder(self.folder)
        with stage("lengths of rows", self.progress):
            self.lengths = self._lengths()

    def _lengths(self) -> tuple[int, int]:
        """Returns the tokens of a row of inputs and of targets: those of the settings, or as many as training examples need."""
        given = (self.settings.inputs_length, self.settings.targets_length)
        longest = [1, 1]
        for example in iter(self.read["train"]) if 0 in given else ():
            longest = [max(most, len(self.encoder.ids(example[side]))) for most, side in zip(longest, self.TEXTS, strict=True)]
        inputs, targets = (n or min(_LONGEST, -(-most // _MULTIPLE) * _MULTIPLE) for n, most in zip(given, longest, strict=True))
        return inputs, targets

    def content(self, example: dict[str, Any]) -> str:
        return example["inputs"]

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        examples = packing.shuffled_in_windows(self.examples("train"), self.SEED)
        return map(packing.record_of, texts.packed(self.name, examples, self.encoder, self.lengths, tally))

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return counts(tally) | {"cut": tally.cut}

    def manifest(self) -> dict[str, Any]:
        lengths = dict(zip(("inputs_length", "targets_length"), self.lengths, strict=True))
        return {**super().manifest(), "form": texts.TEXT, "labels": [], **lengths, "vocabulary": self.encoder.size}

    def show(self, part: str, record: bytes) -> str:
        ends, row = (3 * self.lengths[0], 3 * sum(self.lengths)), np.frombuffer(record, "<i4")
        sides = row[: ends[0]].reshape(3, -1), row[ends[0] : ends[1]].reshape(3, -1)
        numbers = range(1, int(sides[0][1].max()) + 1)
        return " | ".join(" => ".join(self.encoder.marked(side[0, side[1] == n]) for side in sides) for n in numbers)


def counts(tally: Tally) -> dict[str, int]:
    """Returns the counts of a part of text to text."""
    tokens = dict(zip(("inputs_tokens", "targets_tokens"), tally.tokens, strict=True))
    return dict(examples=tally.examples, rows=tally.rows, **tokens, dropped=tally.left_out)


MAKERS = {TextToTextCache: TextToTextMaker, OwnTextToTextCache: OwnTextToTextMaker}
