"""SeqIO tasks: what the data is. One a task of `data.labelled.sources`, under the same name.

Their examples are the sequences of `data.labelled.encoding`, before they are packed. `raw_examples` reads the same
data sets as text. Importing this module imports TensorFlow (5 s); training reads the packed cache and never does.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data.labelled import labelled_text
from data.labelled.encoding import Encoder, Form
from data.labelled.metrics import metrics_of
from data.labelled.sources import TASKS, PackageTask, PublicTask
from data.labelled.splits import Example
from data.packages.tfds_folders import dataset_folder
from data.vocabularies.tokenizers import Tokenizer

_FEATURES = ("tokens", "types", "slots", "targets")
_BATCH = 1024  # examples that are handed from TensorFlow to Python at a time


def tfds_name(name: str) -> str:
    """Data set, config and version of a task."""
    task = TASKS[name]
    own = f"{labelled_text.LabelledText.name}/{name}:{labelled_text.LabelledText.VERSION}"
    return own if isinstance(task, PackageTask) else task.tfds_name


def source_of(name: str, data_dir: Path) -> seqio.TfdsDataSource:
    """Where a task's examples come from; raises NotPreparedError if they are not in `data_dir`, TFDS's folder."""
    task, data_set = TASKS[name], tfds_name(name)
    dataset_folder(data_set, data_dir)
    splits = task.splits if isinstance(task, PublicTask) else None
    return seqio.TfdsDataSource(data_set, tfds_data_dir=str(data_dir), splits=splits, read_only=True)


def raw_examples(name: str, split: str, data_dir: Path) -> Iterator[Example]:
    """The examples of a task's split as `data.labelled.sources` describes them, in the order of the data set.

    Raises:
      NotPreparedError: the data set is not in `data_dir`, TFDS's folder.
    """
    task = TASKS[name]
    dataset = _rename(source_of(name, data_dir).get_dataset(split, shuffle=False), name)
    for batch in dataset.ragged_batch(_BATCH).prefetch(1):
        columns = {field: _to_list(values) for field, values in batch.items()}
        for values in zip(*columns.values(), strict=True):
            yield _named(dict(zip(columns, values, strict=True)), task)


def _rename(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """Fields as in a raw example, answers in two columns, labels as numbers; other fields are dropped."""
    task = TASKS[name]

    def rename(example: dict[str, Any]) -> dict[str, Any]:
        if isinstance(task, PackageTask):
            return example
        texts = {new: example[old] for new, old in zip(_text_fields(task.form), task.texts, strict=False)}
        if task.form == "span":
            answers = example["answers"]
            return {"id": example["id"], **texts, "answers": answers["text"], "starts": answers["answer_start"]}
        return {**texts, "label": example["label"]}

    return dataset.map(rename, num_parallel_calls=tf.data.AUTOTUNE)


def _text_fields(form: Form) -> tuple[str, str]:
    return ("question", "context") if form == "span" else ("text", "pair")


def _to_list(values: Any) -> list:
    """Nested lists of str and int from a dense or ragged tensor."""
    return _decode(values.numpy().tolist() if isinstance(values, tf.Tensor) else values.to_list())


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def _named(example: dict[str, Any], task: PackageTask | PublicTask) -> Example:
    """Label names instead of numbers, and answers with where they start."""
    match task.form:
        case "classification":
            return {**example, "label": task.labels[example["label"]]}
        case "tagging":
            return {**example, "tags": [task.labels[tag] for tag in example["tags"]]}
        case "span":
            answers = zip(example["answers"], example.pop("starts"), strict=True)
            return {**example, "answers": [{"text": text, "start": start} for text, start in answers]}
    return example


def add_task(name: str, *, tokenizer: Path, length: int, slots: int, data_dir: Path) -> seqio.Task:
    """Registers, or registers anew, a task. Its examples are int32 `tokens` and `types` [n], `slots` and `targets` [s].

    A span's targets are [2 s], a start and an end in turn; its long contexts give several examples. The two sequences
    of a pair are one example, one after the other.

    Args:
      name: a key of `data.labelled.sources.TASKS`.
      tokenizer: a tokenizer.json file with [CLS] and [SEP].
      length, slots: tokens and labels at most.
      data_dir: TFDS's folder.

    Raises:
      NotPreparedError: the data set is not in `data_dir`.
    """
    task = TASKS[name]
    vocabulary = Tokenizer(tokenizer)
    encode = functools.partial(_encode, Encoder(vocabulary, task.form, length, slots, task.labels), task)
    source = source_of(name, data_dir)
    seqio.TaskRegistry.remove(name)
    return seqio.TaskRegistry.add(
        name,
        # SeqIO's protocol and its own class disagree on whether a split may have no known size.
        source=source,  # pyright: ignore[reportArgumentType]
        preprocessors=[functools.partial(_rename, name=name), functools.partial(_encoded, encode=encode)],
        output_features={
            feature: seqio.Feature(seqio.PassThroughVocabulary(vocabulary.size), add_eos=False) for feature in _FEATURES
        },
        metric_fns=list(metrics_of(name, task.form)),
    )


def _encode(encoder: Encoder, task: PackageTask | PublicTask, fields: list[str], *values: Any) -> list[np.ndarray]:
    """The sequences of one example: for each feature all numbers, one after the other, and how many each has."""
    # A string arrives as bytes, everything else as an array.
    plain = (value if isinstance(value, bytes) else value.tolist() for value in values)
    example = {field: _decode(value) for field, value in zip(fields, plain, strict=True)}
    sequences = encoder(_named(example, task))
    columns = [[getattr(sequence, feature).ravel() for sequence in sequences] for feature in _FEATURES]
    flat = [np.concatenate(column).astype(np.int32) for column in columns]
    return flat + [np.array([len(part) for part in column], np.int64) for column in columns]


def _encoded(dataset: tf.data.Dataset, encode: Any) -> tf.data.Dataset:
    def sequences(example: dict[str, tf.Tensor]) -> tf.data.Dataset:
        fields = sorted(example)
        run = functools.partial(encode, fields)
        types = [tf.int32] * len(_FEATURES) + [tf.int64] * len(_FEATURES)
        results = tf.numpy_function(run, [example[field] for field in fields], types, stateful=False)
        ragged = {}
        for feature, flat, lengths in zip(_FEATURES, results[: len(_FEATURES)], results[len(_FEATURES) :], strict=True):
            flat.set_shape([None])
            lengths.set_shape([None])
            from_lengths = tf.RaggedTensor.from_row_lengths  # pyright: ignore[reportAttributeAccessIssue]
            ragged[feature] = from_lengths(flat, lengths)
        return tf.data.Dataset.from_tensor_slices(ragged)  # pyright: ignore[reportArgumentType]

    return dataset.flat_map(sequences)
