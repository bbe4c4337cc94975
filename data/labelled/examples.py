"""Reads raw examples of labelled text from TFDS's folder: data sets made from packages, and public sets by their names.

Importing this module imports TensorFlow (5 s); training reads the packed cache (`data.labelled.maker`) and never does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from data.labelled import labelled_text
from data.labelled.encoding import Form
from data.labelled.sources import TASKS, PackageTask, PublicTask
from data.packages.tfds import dataset_folder
from data.reading.splits import Example

_BATCH = 1024  # examples that are handed from TensorFlow to Python at a time


def tfds_name(name: str) -> str:
    """Returns the TFDS name of a task: data set, config and version."""
    task = TASKS[name]
    own = f"{labelled_text.LabelledText.name}/{name}:{labelled_text.LabelledText.VERSION}"
    return own if isinstance(task, PackageTask) else task.tfds_name


def raw_examples(name: str, split: str, data_dir: Path) -> Iterator[Example]:
    """Yields the examples of a task's split as `data.labelled.sources` describes them, in the order of the data set.

    Raises:
      NotPreparedError: the data set is not in `data_dir`, TFDS's folder.
    """
    task = TASKS[name]
    builder = tfds.builder_from_directory(dataset_folder(tfds_name(name), data_dir))
    own = task.splits[split] if isinstance(task, PublicTask) else split
    stored: Any = builder.as_dataset(split=own)  # pyright: ignore[reportCallIssue] - sees its decorator
    for batch in _rename(stored, name).ragged_batch(_BATCH).prefetch(1):
        columns = {field: _to_list(values) for field, values in batch.items()}
        for values in zip(*columns.values(), strict=True):
            yield _named(dict(zip(columns, values, strict=True)), task)


def _rename(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """Renames fields to those of a raw example, with answers in two columns and labels as numbers; drops other fields."""
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
    """Returns nested lists of str and int from a dense or ragged tensor."""
    return _decode(values.numpy().tolist() if isinstance(values, tf.Tensor) else values.to_list())


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def _named(example: dict[str, Any], task: PackageTask | PublicTask) -> Example:
    """Returns an example with label names instead of numbers, and with the starts of its answers."""
    match task.form:
        case "classification":
            return {**example, "label": task.labels[example["label"]]}
        case "tagging":
            return {**example, "tags": [task.labels[tag] for tag in example["tags"]]}
        case "span":
            answers = zip(example["answers"], example.pop("starts"), strict=True)
            return {**example, "answers": [{"text": text, "start": start} for text, start in answers]}
    return example
