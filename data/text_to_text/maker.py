"""Prepares a cache of text to text from labelled examples, in the splits of `data.labelled.maker`.

A cache holds `train/all.array_record` (rows of two sides, see `data.reading.packing`), the raw examples as `train.jsonl`,
`validation.jsonl` and `test.jsonl` (see `data.labelled.sources`), and `tokenizer.json`, which may be that of another cache.
TensorFlow is imported when the source is opened; finding a cache up to date doesn't need it.
"""

import shutil
from collections.abc import Iterator
from typing import Any

from data import paths
from data.labelled.maker import ExampleMaker
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.tally import Tally
from data.text_to_text import texts
from data.text_to_text.caches import TextToTextCache
from data.vocabularies import tokenizers


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
        tokens = dict(zip(("inputs_tokens", "targets_tokens"), tally.tokens, strict=True))
        return dict(examples=tally.examples, rows=tally.rows, **tokens, dropped=tally.left_out)

    def manifest(self) -> dict[str, Any]:
        return {**super().manifest(), "vocabulary": self.encoder.size}


maker = TextToTextMaker
