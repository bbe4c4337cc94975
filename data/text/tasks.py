"""SeqIO tasks of running text, for causal language models: our own corpora, and public sets by their TFDS names.

    english_text_english_small      the corpus of that name; see add_english_text
    lm1b, c4_en, wikipedia_en       see add_public and data.text.sources.PUBLIC

Examples are `targets` = the ids of a text, end. Importing this module imports TensorFlow (5 s); training reads the packed
cache, which is made of the same ids (`data.text.encoding`), and never does.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from data.packages.tfds_folders import dataset_folder
from data.text.corpus import SPLITS
from data.text.english_text import EnglishText
from data.text.sources import PUBLIC
from data.vocabularies import tokenizers

_HELD_OUT = 5000  # documents of a public set in each held-out split, at most

Document = dict[str, str]  # id, origin, text
Documents = Callable[[], Iterable[Document]]  # may be asked for again


class TokenizerVocabulary(seqio.Vocabulary):
    """A tokenizer.json file as a SeqIO vocabulary. In TensorFlow graphs it runs as a Python function."""

    def __init__(self, path: Path, extra_ids: int = 0):
        self.tokenizer = tokenizers.Tokenizer(path)
        super().__init__(extra_ids)

    @property
    def bos_id(self) -> int | None:
        return self.tokenizer.cls_id

    @property
    def eos_id(self) -> int | None:
        return self.tokenizer.eos_id

    @property
    def unk_id(self) -> int | None:
        return self.tokenizer.unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.size

    def _encode(self, s: str) -> list[int]:
        return self.tokenizer.encode(s)

    def _decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(ids)

    def _encode_tf(self, s: Any) -> tf.Tensor:
        def encode(text: Any) -> np.ndarray:
            return np.array(self._encode(np.asarray(text).item().decode()), np.int32)

        ids = tf.numpy_function(encode, [s], tf.int32)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: Any) -> tf.Tensor:
        return tf.numpy_function(lambda some: self._decode(some.tolist()).encode(), [ids], tf.string)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TokenizerVocabulary)
            and self.extra_ids == other.extra_ids
            and self.tokenizer.same_vocabulary(other.tokenizer)
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def add_text_task(name: str, *, tfds_name: str, tokenizer: Path, data_dir: Path) -> seqio.Task:
    """Registers, or registers anew, a task of the texts of a TFDS data set with a feature `text`.

    Args:
      tfds_name: data set, config and version.
      tokenizer: a tokenizer.json file, or a folder with one.
      data_dir: TFDS's folder.

    Raises:
      NotPreparedError: the data set is not in `data_dir`.
    """
    dataset_folder(tfds_name, data_dir)
    seqio.TaskRegistry.remove(name)
    return seqio.TaskRegistry.add(
        name,
        source=seqio.TfdsDataSource(  # pyright: ignore[reportArgumentType] - see data.translation.tasks
            tfds_name, tfds_data_dir=str(data_dir), splits=None, read_only=True
        ),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features={"targets": seqio.Feature(TokenizerVocabulary(tokenizer), add_eos=True)},
        metric_fns=[],
    )


def add_english_text(corpus: str, *, tokenizer: Path, data_dir: Path) -> seqio.Task:
    """Registers `english_text_CORPUS`, of a corpus of `data.text.sources`."""
    return add_text_task(
        f"{EnglishText.name}_{corpus}", tfds_name=_tfds_name(corpus), tokenizer=tokenizer, data_dir=data_dir
    )


def add_public(name: str, *, tokenizer: Path, data_dir: Path) -> seqio.Task:
    """Registers the task of a public set, a key of PUBLIC, from the data set of its name in TFDS."""
    return add_text_task(name, tfds_name=PUBLIC[name], tokenizer=tokenizer, data_dir=data_dir)


def _tfds_name(corpus: str) -> str:
    return f"{EnglishText.name}/{corpus}:{EnglishText.VERSION}"


def read_splits(corpus: str, data_dir: Path) -> dict[str, Documents]:
    """The documents (id, origin, text) of a corpus of ours, by split, in the order of the data set."""
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
    """The documents of a public set, read as they are asked for.

    A held-out split is the beginning of the set's own, or where it has none, of the end of its training split.
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
