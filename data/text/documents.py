"""Reads documents of running text from TFDS's folder: our own corpora, and public sets by their TFDS names.

Importing this module imports TensorFlow (5 s); training reads the packed cache (`data.text.cache`) and never does.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from data.packages.tfds import dataset_folder
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


def read_public(name: str, data_dir: Path) -> dict[str, Documents]:
    """Returns the documents of a public set by split; they are read when they are needed.

    A held-out split is the beginning of the set's own or, if it has none, the end of its training split.
    """
    builder = tfds.builder_from_directory(dataset_folder(PUBLIC[name], data_dir))
    size = builder.info.splits["train"].num_examples
    held, left = min(_HELD_OUT, max(1, size // 100)), size
    parts = {}
    for split in ("test", "validation"):
        if split in builder.info.splits:
            parts[split] = f"{split}[:{min(held, builder.info.splits[split].num_examples)}]"
        else:
            parts[split] = f"train[{left - held}:{left}]"
            left -= held
    parts["train"] = f"train[:{left}]"

    def read(split: str) -> Iterator[Document]:
        dataset: Any = builder.as_dataset(split=parts[split])  # pyright: ignore[reportCallIssue] - sees its decorator
        for number, example in enumerate(tfds.as_numpy(dataset)):
            yield {"id": f"{split}/{number}", "origin": name, "text": example["text"].decode()}

    return {split: functools.partial(read, split) for split in SPLITS}
