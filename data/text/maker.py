"""Prepares a cache of plain text: a vocabulary and packed rows.

The packages become the data set <data>/tfds/english_text/, documents in splits (`data.text.english_text`). The vocabulary is
byte-level BPE, trained on the training split alone, or a released one. Public data sets must be in <data>/tfds, prepared by TFDS.

A cache holds `train/ORIGIN.array_record` (rows as in `data.text.encoding`, or in `data.text.pairs`), the held-out documents
as `validation.jsonl` and `test.jsonl` (id, origin, text), and `tokenizer.json`.
TensorFlow is imported when the source is opened; finding a cache up to date doesn't need it.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import stages
from data.cache_maker import CacheMaker
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.files import in_windows
from data.reading.tally import Tally
from data.stages import stage
from data.text import encoding, pairs
from data.text.caches import TextCache
from data.text.sources import CORPORA
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer

_SEED = 0
_WINDOW = 1024  # documents that are encoded at a time
_OWN = "bpe_"  # prefix of vocabularies that are trained here, followed by the size

Document = dict[str, str]


class TextMaker(CacheMaker[TextCache]):
    """Makes a cache of plain text."""

    FORMAT = 1

    def packages(self) -> tuple[Package, ...]:
        tokenizer = self.settings.tokenizer
        released = () if tokenizer.startswith(_OWN) else (weights.VOCABULARIES[tokenizer],)
        return (*(source.package for source in CORPORA.get(self.settings.corpus, ())), *released)

    def open(self) -> None:
        stages.quiet_tensorflow()
        from data.text import documents, english_text

        corpus, tokenizer, file = self.settings.corpus, self.settings.tokenizer, self.folder / tokenizers.FILE
        self.bytes = Counter[str]()
        self.origins: dict[str, Iterable[Document]] = {}
        if corpus in CORPORA:
            english_text.build(corpus, manual_dir=self.root / "packages", data_dir=self.root / "tfds")
            self.splits = documents.read_splits(corpus, self.root / "tfds")
            by_origin: dict[str, list[Document]] = {}
            for document in self.splits["train"]():
                by_origin.setdefault(document["origin"], []).append(document)
            self.origins.update(sorted(by_origin.items()))
        else:
            self.splits = documents.read_public(corpus, self.root / "tfds")
            self.origins[corpus] = self.splits["train"]()
        with stage("vocabulary", self.progress):
            if tokenizer.startswith(_OWN):
                texts = (document["text"] for document in self.splits["train"]())
                tokenizers.train_bpe(texts, file, int(tokenizer.removeprefix(_OWN)))
            else:
                weights.write_vocabulary(tokenizer, self.root / "packages", file)
        self.tokenizer = Tokenizer(self.folder)

    def examples(self, split: str) -> Iterator[Document]:
        for document in self.splits[split]():
            self.bytes[split] += len(document["text"].encode())
            yield document

    def parts(self) -> Iterable[str]:
        return self.origins

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        s, documents = self.settings, self.origins[part]
        examples: Iterable[packing.Example]
        if s.pairs:
            texts = [document["text"] for document in documents]
            tally.others.update(documents=len(texts), bytes=sum(len(text.encode()) for text in texts))
            examples = pairs.examples(texts, self.tokenizer, s.length, part)
            lengths, layout = (s.length, s.pairs), pairs.lay_out
        else:
            examples, lengths, layout = self._chunks(documents, tally), (s.length,), packing.lay_out_sides
        if s.corpus in CORPORA:  # public sets are too large to be shuffled here; TFDS has shuffled them
            examples = packing.shuffled(examples, f"{_SEED} {part}")
        return map(packing.record_of, packing.pack(examples, lengths, tally, layout))

    def _chunks(self, documents: Iterable[Document], tally: Tally) -> Iterator[packing.Example]:
        encode = functools.partial(_encode, self.tokenizer.path, self.settings.length)
        for size, pieces in in_windows(encode, documents, _WINDOW):
            tally.others.update(documents=1, bytes=size)
            yield from ((piece,) for piece in pieces)

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        sizes = {name: tally.others[name] for name in ("documents", "bytes")}
        return sizes | dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], dropped=tally.left_out)

    def manifest(self) -> dict[str, Any]:
        return {"vocabulary": self.tokenizer.size, "bytes": {split: self.bytes[split] for split in self.SPLITS}}


@functools.cache
def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer(file)


def _encode(vocabulary: Path, length: int, document: Document) -> tuple[int, list[np.ndarray]]:
    """Returns the bytes of a document's text in UTF-8, and its chunks, by the vocabulary in a file."""
    text = document["text"]
    return len(text.encode()), list(encoding.chunks(text, _tokenizer(vocabulary), length))


maker = TextMaker
