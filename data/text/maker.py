"""Prepares a cache of plain text: a vocabulary and packed rows.

The packages become the data set <data>/tfds/english_text/, documents in splits (`data.text.english_text`). The vocabulary is
byte-level BPE, trained on the training split alone, or a released one. Public data sets must be in <data>/tfds, prepared by TFDS.

A cache holds `train/ORIGIN.array_record` (rows as in `data.text.encoding`, or in `data.text.pairs`), the held-out documents
as `validation.jsonl` and `test.jsonl` (id, origin, text), and `tokenizer.json`.
TensorFlow is imported when the source is opened; finding a cache up to date doesn't need it.
"""

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import stages
from data.cache_maker import CacheMaker
from data.own_maker import OwnMaker, TrainingMaker
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.files import in_windows
from data.reading.tally import Tally
from data.stages import stage
from data.text import encoding, own, pairs, summaries
from data.text.caches import OwnTextCache, SummaryCache, TextCache
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
        return counts(tally)

    def manifest(self) -> dict[str, Any]:
        return {"vocabulary": self.tokenizer.size, "bytes": {split: self.bytes[split] for split in self.SPLITS}}


class OwnTextMaker(TrainingMaker[OwnTextCache]):
    """Makes a cache of a user's own text, of one part."""

    FORMAT = 2
    NOUN = "document"

    def check_vocabulary(self, folder: Path) -> None:
        """Raises UserError for a folder without a vocabulary that marks the end of a text."""
        tokenizer = Tokenizer(folder)
        if tokenizer.cls_id is None and not (tokenizer.before and tokenizer.behind):
            _ = tokenizer.end

    def open(self) -> None:
        self.bytes = Counter[str]()
        self.divide(*own.opened(self.location.name, self.columns))
        self.write_vocabulary()
        self.tokenizer = Tokenizer(self.folder)

    def examples(self, split: str) -> Iterator[Document]:
        for document in iter(self.read[split]):
            content, size, _ = _content(document)
            if not self.is_copy(content, split, document["id"]):
                self.bytes[split] += size
                yield document | {"origin": self.name}

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        s = self.settings
        if s.pairs:
            examples, lengths, layout = self._pairs(tally), (s.length, s.pairs), pairs.lay_out
        else:
            examples, lengths, layout = self._chunks(tally), (s.length,), packing.lay_out_sides
        examples = packing.shuffled_in_windows(examples, self.SEED)
        return map(packing.record_of, packing.pack(examples, lengths, tally, layout))

    def _chunks(self, tally: Tally) -> Iterator[packing.Example]:
        encode = functools.partial(_encode_whole, self.tokenizer.path, self.settings.length)
        for content, size, name, pieces in in_windows(encode, self.read["train"], _WINDOW):
            if not self.is_copy(content, "train", name):
                tally.others.update(documents=1, bytes=size)
                yield from ((piece,) for piece in pieces)

    def _pairs(self, tally: Tally) -> Iterator[packing.Example]:
        """Yields pairs of segments; the second is of another text of the same window, half of the time."""
        documents = self.examples("train")
        for number in itertools.count():
            if not (texts := [document["text"] for document in itertools.islice(documents, _WINDOW)]):
                return
            tally.others.update(documents=len(texts), bytes=sum(len(text.encode()) for text in texts))
            yield from pairs.examples(texts, self.tokenizer, self.settings.length, f"{self.SEED} {number}")

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return counts(tally)

    def manifest(self) -> dict[str, Any]:
        sizes = {"vocabulary": self.tokenizer.size, "bytes": {split: self.bytes[split] for split in self.SPLITS}}
        return super().manifest() | sizes

    def show(self, part: str, record: bytes) -> str:
        length = self.settings.length
        tokens, segments = np.frombuffer(record, "<i4")[: 2 * length].reshape(2, length)
        return " | ".join(self.tokenizer.marked(tokens[segments == n]) for n in range(1, segments.max() + 1))


class SummaryMaker(OwnMaker[SummaryCache]):
    """Makes a cache of a user's reports and summaries, of one part."""

    FORMAT = 1
    NOUN = "report"

    def check_vocabulary(self, folder: Path) -> None:
        """Raises VocabularyError for a folder without a vocabulary that marks the end of a text."""
        _ = Tokenizer(folder).end

    def open(self) -> None:
        self.divide(*summaries.opened(self.location.name, self.columns))
        self.write_vocabulary()
        self.tokenizer = Tokenizer(self.folder)

    def content(self, example: dict[str, Any]) -> str:
        return example["input"]

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        examples = packing.shuffled_in_windows(self.examples("train"), self.SEED)
        return map(packing.record_of, summaries.rows_of(examples, self.tokenizer, self.settings.length, tally))

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return dict(examples=tally.examples, rows=tally.rows, tokens=tally.others["tokens"], dropped=tally.left_out)

    def manifest(self) -> dict[str, Any]:
        return super().manifest() | {"vocabulary": self.tokenizer.size}

    def show(self, part: str, record: bytes) -> str:
        return self.tokenizer.marked(np.frombuffer(record, "<i4")[: self.settings.length])


def counts(tally: Tally) -> dict[str, int]:
    """Returns the counts of a part of text."""
    sizes = {name: tally.others[name] for name in ("documents", "bytes")}
    return sizes | dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], dropped=tally.left_out)


def _content(document: Document) -> tuple[str, int, str]:
    """Returns what identifies a document's text, its bytes in UTF-8, and the document's name."""
    text = document["text"].encode()
    return hashlib.sha256(text).hexdigest(), len(text), document["id"]


def _encode_whole(vocabulary: Path, length: int, document: Document) -> tuple[str, int, str, list[np.ndarray]]:
    """Returns what `_content` does, and a document's chunks, by the vocabulary in a file."""
    return *_content(document), _encode(vocabulary, length, document)[1]


@functools.cache
def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer(file)


def _encode(vocabulary: Path, length: int, document: Document) -> tuple[int, list[np.ndarray]]:
    """Returns the bytes of a document's text in UTF-8, and its chunks, by the vocabulary in a file."""
    text = document["text"]
    return len(text.encode()), list(encoding.chunks(text, _tokenizer(vocabulary), length))


MAKERS = {TextCache: TextMaker, OwnTextCache: OwnTextMaker, SummaryCache: SummaryMaker}
