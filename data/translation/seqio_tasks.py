"""SeqIO tasks: one for each language, a mixture of them, and public sets by their TFDS names.

    message_catalogues_permissive.sw     one language to English
    message_catalogues_permissive        all of them, at rates n ** (1 / temperature)

Importing this module imports TensorFlow (5 s); training reads the packed cache and never does.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf

from data.packages.tfds import dataset_folder
from data.scores import bleu, chrf
from data.vocabularies.sentencepiece import Vocabulary

DATASET = "message_catalogues"
VERSION = "1.1.0"
_SPLITS = ("train", "validation", "test", "udhr_dev", "udhr_test")


def split_sizes(name: str, data_dir: Path) -> dict[str, int]:
    """Returns the number of examples of each split of a prepared data set, read from its folder without a builder."""
    info = json.loads((dataset_folder(name, data_dir) / "dataset_info.json").read_text())
    return {split["name"]: sum(map(int, split["shardLengths"])) for split in info["splits"]}


def read_splits(catalogue: str, data_dir: Path, split: str) -> dict[str, list[tuple[str, str]]]:
    """Returns the (source, target) strings of a catalogue's splits `SPLIT_LANGUAGE`, e.g. `train_sw`, by language.

    Parses thousands of records at a time, which is 30 times faster than TFDS reading one by one.
    """
    folder = dataset_folder(f"{DATASET}/{catalogue}:{VERSION}", data_dir)
    files = sorted(map(str, folder.glob(f"{DATASET}-{split}_*.tfrecord-*")))
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("lang", "source", "target")}
    records = tf.data.TFRecordDataset(files).batch(4096)
    texts: dict[str, list[tuple[str, str]]] = {}
    for batch in records.map(lambda batch: tf.io.parse_example(batch, features)).as_numpy_iterator():
        for language, *pair in zip(batch["lang"], batch["source"], batch["target"], strict=True):
            texts.setdefault(language.decode(), []).append((pair[0].decode(), pair[1].decode()))
    return texts


def task_name(catalogue: str, language: str) -> str:
    """Returns the name of a language's task; SeqIO allows no hyphen in a name, so `zh-Hans` is written `zh_Hans`."""
    return f"{DATASET}_{catalogue}.{language.replace('-', '_')}"


def add_translation_task(
    name: str,
    *,
    tfds_name: str,
    splits: Mapping[str, str],
    data_dir: Path,
    preprocessors: Sequence[Callable],
    source: Path,
    target: Path,
    language: str,
) -> seqio.Task:
    """Registers, or registers anew, a task that translates into English.

    Its examples are `inputs` = tag, pieces, end and `targets` = pieces, end.

    Args:
      tfds_name: data set, config and version.
      splits: the task's split names to those of the data set.
      data_dir: TFDS's folder.
      preprocessors: functions that turn an example into the strings `inputs` and `targets`.
      source, target: SentencePiece models.
      language: the source language, whose tag is put in front.

    Raises:
      NotPreparedError: the data set is not in `data_dir`.
    """
    dataset_folder(tfds_name, data_dir)
    seqio.TaskRegistry.remove(name)
    return seqio.TaskRegistry.add(
        name,
        # SeqIO's protocol and its own class disagree on whether a split may have no known size.
        source=seqio.TfdsDataSource(  # pyright: ignore[reportArgumentType]
            tfds_name, tfds_data_dir=str(data_dir), splits=splits, read_only=True
        ),
        preprocessors=[
            *preprocessors,
            seqio.preprocessors.tokenize,
            functools.partial(prepend_id, identifier=Vocabulary(source).tag_id(language)),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={
            "inputs": seqio.Feature(seqio.SentencePieceVocabulary(str(source)), add_eos=True),
            "targets": seqio.Feature(seqio.SentencePieceVocabulary(str(target)), add_eos=True),
        },
        metric_fns=[bleu, chrf],
    )


def prepend_id(dataset: tf.data.Dataset, identifier: int) -> tf.data.Dataset:
    """Puts one id in front of the tokens of `inputs`."""
    return dataset.map(
        lambda example: {**example, "inputs": tf.concat([[identifier], example["inputs"]], axis=0)},
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def add_message_catalogues(
    catalogue: str, *, source: Path, target: Path, data_dir: Path, temperature: float = 5.0
) -> dict[str, seqio.Task]:
    """Registers the tasks of a catalogue's languages, and their mixture `message_catalogues_CATALOGUE`.

    Args:
      catalogue: config of the TFDS data set, e.g. "permissive".
      source, target: SentencePiece models.
      data_dir: TFDS's folder.
      temperature: a language of n training pairs is drawn at rate n ** (1 / temperature); 1 is in proportion to n.

    Returns:
      The task of each language.
    """
    tfds_name = f"{DATASET}/{catalogue}:{VERSION}"
    sizes = split_sizes(tfds_name, data_dir)
    tasks, rates = {}, []
    for language in sorted(split.removeprefix("train_") for split in sizes if split.startswith("train_")):
        splits = [split for split in _SPLITS if f"{split}_{language}" in sizes]
        name = task_name(catalogue, language)
        tasks[language] = add_translation_task(
            name,
            tfds_name=tfds_name,
            splits={split: f"{split}_{language}" for split in splits},
            data_dir=data_dir,
            preprocessors=[functools.partial(seqio.preprocessors.rekey, key_map={"inputs": "source", "targets": "target"})],
            source=source,
            target=target,
            language=language,
        )
        rates.append((name, sizes[f"train_{language}"] ** (1 / temperature)))
    mixture = f"{DATASET}_{catalogue}"
    seqio.MixtureRegistry.remove(mixture)
    seqio.MixtureRegistry.add(mixture, rates)
    return tasks


def tokens(task: seqio.Task, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the (inputs, targets) ids of a task's examples, whole and in the order of the data set."""
    dataset = task.get_dataset(None, split, shuffle=False)
    # Takes batches from TensorFlow, as ragged tensors: fetching single examples costs more than computing them.
    batches = dataset.map(lambda example: (example["inputs"], example["targets"])).ragged_batch(1024).prefetch(1)
    # Tuning a pipeline takes longer than running one over a few thousand strings.
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    for inputs, targets in batches.with_options(options):
        sides = (np.split(side.flat_values.numpy(), side.row_splits.numpy()[1:-1]) for side in (inputs, targets))
        yield from zip(*sides, strict=True)
