"""Divides a corpus' documents into the splits that the TFDS builder writes, without TensorFlow.

Whole groups of documents are held out (see `data.text.sources`), chosen by hash within each origin: 1 % for the test and
1 % for validation. Exact copies of documents are dropped first, then near copies: those of test documents from validation,
and those of either from training. Near copies share half of the 8-grams of words of the shorter one.
"""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.text.sources import CORPORA, Source

SPLITS = ("train", "validation", "test")
_SHARE = 0.01  # of an origin's groups in validation and in the test; at least one group
_NGRAM = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the product of a hash loses no information


class Document(NamedTuple):
    """A text with its origin and its group, which is held out as a whole."""

    id: str
    origin: str
    group: str
    text: str


Splits = dict[str, list[Document]]


def read(sources: Iterable[Source], folder: Path) -> list[Document]:
    """Returns the documents of fetched packages in `folder`, each text once, in a fixed order."""
    documents: dict[str, Document] = {}  # by text
    for source in sources:
        for name, group, text in source.entries(folder / source.package.file):
            if text:
                documents.setdefault(text, Document(f"{source.origin}/{name}", source.origin, group, text))
    return list(documents.values())


def divide(corpus: str, folder: Path) -> Splits:
    """Reads a corpus' packages in `folder` into its splits."""
    return divide_documents(read(CORPORA[corpus], folder))


def divide_documents(documents: Sequence[Document]) -> Splits:
    """Divides documents into `train`, `validation` and `test`; near copies of held-out documents are dropped."""
    names = {"train": "train"}
    for origin in sorted({document.origin for document in documents}):
        groups = sorted({d.group for d in documents if d.origin == origin}, key=lambda group: _hash(origin, group))
        held = math.ceil(_SHARE * len(groups)) if len(groups) > 2 else 0
        names |= {f"{origin}/{group}": "test" for group in groups[:held]}
        names |= {f"{origin}/{group}": "validation" for group in groups[held : 2 * held]}
    splits: Splits = {split: [] for split in SPLITS}
    for document in documents:
        splits[names.get(f"{document.origin}/{document.group}", "train")].append(document)
    splits["validation"] = without_near_copies(splits["validation"], splits["test"])
    splits["train"] = without_near_copies(splits["train"], splits["test"] + splits["validation"])
    return splits


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def without_near_copies(documents: Sequence[Document], held: Sequence[Document]) -> list[Document]:
    """Returns the documents that are no near copies of a held one: they share less than half of the shorter one's 8-grams."""
    words: dict[str, int] = {}
    held_grams = [_distinct(ngrams(document.text, words)) for document in held]
    sizes = [len(grams) for grams in held_grams]
    known = np.concatenate([*held_grams, np.zeros(0, np.uint64)])
    owners = np.repeat(np.arange(len(held)), sizes)
    order = np.argsort(known, kind="stable")
    known, owners = known[order], owners[order]

    def is_copy(document: Document) -> bool:
        grams = _distinct(ngrams(document.text, words))
        first, last = (np.searchsorted(known, grams, side) for side in ("left", "right"))
        shared: defaultdict[int, int] = defaultdict(int)
        for i in np.flatnonzero(last > first):
            for owner in owners[first[i] : last[i]]:
                shared[owner] += 1
        return any(2 * count >= min(len(grams), sizes[owner]) for owner, count in shared.items())

    return [document for document in documents if not is_copy(document)]


_WORD = re.compile(r"[a-z0-9]+")


def ngrams(text: str, words: dict[str, int]) -> np.ndarray:
    """Returns uint64 hashes [N] of a text's 8-grams of words in order, none if it is shorter; `words` numbers words seen."""
    numbers = [words.setdefault(word, len(words) + 1) for word in _WORD.findall(text.lower())]
    ids = np.array(numbers, np.uint64)
    hashes = np.zeros(max(0, len(ids) - _NGRAM + 1), np.uint64)
    for start in range(_NGRAM):
        hashes = (hashes + ids[start : start + len(hashes)]) * _FACTOR
    return hashes


def overlap(documents: Sequence[Document], others: Sequence[Document]) -> float:
    """Returns the share of the 8-grams of `documents`, repetitions counted, that also occur in `others`."""
    words: dict[str, int] = {}
    theirs = np.sort(np.concatenate([ngrams(document.text, words) for document in others]))
    ours = np.concatenate([ngrams(document.text, words) for document in documents])
    first, last = (np.searchsorted(theirs, ours, side) for side in ("left", "right"))
    return float((last > first).mean())


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """Returns sorted distinct hashes, as np.unique, which takes minutes for millions of them (NumPy 2.4)."""
    ordered = np.sort(hashes)
    return ordered[np.diff(ordered, prepend=~ordered[:1]) != 0]
