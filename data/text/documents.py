"""Reads documents of running text from TFDS's folder: our own corpora, and public sets by their TFDS names.

Importing this module imports TensorFlow (5 s); training reads the packed cache (`data.text.maker`) and never does.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from data.packages.tfds import Mapped, Part, dataset_folder, open_builder
from data.text.corpus import SPLITS
from data.text.english_text import EnglishText
from data.text.sources import PUBLIC

_HELD_OUT = 5000  # documents of a public set in each held-out split, at most

Document = dict[str, str]  # id, origin, text
Documents = Callable[[], Iterable[Document]]  # may be called repeatedly


def _tfds_name(corpus: str) -> str:
    return f"{EnglishText.name}/{corpus}:{EnglishText.VERSION}"


def read_splits(corpus: str, data_dir: Path) -> dict[str, Documents]:
    """Returns the documents (id, origin, text) of one of our corpora by split, in the order of the data set."""
    folder = dataset_folder(_tfds_name(corpus), data_dir)

    def read(split: str) -> list[Document]:
        files = sorted(map(str, folder.glob(f"{EnglishText.name}-{split}.tfrecord-*")))
        names = ("id", "origin", "text")
        features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}
        # A thousand records at a time, which is much faster than TFDS reading one by one.
        records = tf.data.TFRecordDataset(files).batch(1024).map(lambda batch: tf.io.parse_example(batch, features))
        return [
            dict(zip(names, (value.decode() for value in values), strict=True))
            for batch in records.as_numpy_iterator()
            for values in zip(*(batch[name] for name in names), strict=True)
        ]

    return {split: functools.partial(list, read(split)) for split in SPLITS}


def _document(split: str, origin: str, at: int, example: dict[str, Any]) -> Document:
    return {"id": f"{split}/{at}", "origin": origin, "text": example["text"].decode()}


def read_public(name: str, data_dir: Path) -> dict[str, Documents]:
    """Returns the documents of a public set by split; they are read when they are needed.

    A held-out split is the beginning of the set's own or, if it has none, the end of its training split.
    """
    address, _, language = PUBLIC[name].partition("@")
    folder = dataset_folder(address, data_dir)
    own = open_builder(folder).info.splits
    # The splits of a set of many languages are called after them: "de", "de-validation".
    names = {"train": language or "train"} | {s: f"{language}-{s}" if language else s for s in ("test", "validation")}
    left = own[names["train"]].num_examples
    held = min(_HELD_OUT, max(1, left // 100))
    parts = {}
    for split in ("test", "validation"):
        if names[split] in own:
            parts[split] = f"{names[split]}[:{min(held, own[names[split]].num_examples)}]"
        else:
            parts[split] = f"{names['train']}[{left - held}:{left}]"
            left -= held
    parts["train"] = f"{names['train']}[:{left}]"
    make = {split: functools.partial(_document, split, name) for split in SPLITS}
    return {split: functools.partial(Mapped, Part(folder, parts[split]), make[split]) for split in SPLITS}
