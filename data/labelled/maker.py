"""Prepares a cache of labelled text.

The task's package becomes the data set <data>/tfds/labelled_text/ (`data.labelled.labelled_text`); public sets are there.

A cache holds `train/all.array_record` (rows as in `data.labelled.encoding`), the raw examples as `train.jsonl` (those
that the rows are made of), `validation.jsonl` and `test.jsonl` (see `data.labelled.sources`), and `tokenizer.json`.
TensorFlow is imported when the source is opened; finding a cache up to date doesn't need it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from data import stages
from data.cache_maker import CacheMaker
from data.labelled import encoding, pseudo_labels
from data.labelled.caches import ExampleCache, LabelledCache
from data.labelled.sources import TASKS, PackageTask
from data.packages import weights
from data.packages.fetch import Package
from data.reading import packing
from data.reading.splits import Example, subset
from data.reading.tally import Tally
from data.stages import Progress, stage
from data.vocabularies import tokenizers

Config = TypeVar("Config", bound=ExampleCache)


class ExampleMaker(CacheMaker[Config]):
    """Makes a cache of the examples of a task; the raw ones of training are written too."""

    SPLITS = ("train", "validation", "test")

    @property
    def task(self) -> Any:
        return TASKS[self.settings.task]

    def packages(self) -> tuple[Package, ...]:
        return (self.task.package,) if isinstance(self.task, PackageTask) else ()

    def open(self) -> None:
        stages.quiet_tensorflow()
        from data.labelled.examples import raw_examples

        self.splits = {"train": training_examples(self.settings, self.root, self.progress)}
        for split in ("validation", "test"):
            self.splits[split] = list(raw_examples(self.settings.task, split, self.root / "tfds"))

    def manifest(self) -> dict[str, Any]:
        return {"form": self.task.form, "labels": list(self.task.labels)}


class LabelledMaker(ExampleMaker[LabelledCache]):
    """Makes a cache of labelled text."""

    FORMAT = 3

    def packages(self) -> tuple[Package, ...]:
        return *super().packages(), weights.VOCABULARIES[self.settings.tokenizer]

    def inputs(self) -> list[Any]:
        return pseudo_labels.labels_of(self.settings, self.root).digests(self.name) if self.settings.teacher else []

    def open(self) -> None:
        super().open()
        if self.settings.teacher:
            self.splits["train"] = pseudo_labels.read(self.settings, self.root, self.splits["train"])
        weights.write_vocabulary(self.settings.tokenizer, self.root / "packages", self.folder / tokenizers.FILE)
        self.tokenizer = tokenizers.Tokenizer(self.folder)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        s, task = self.settings, self.task
        rows = encoding.rows_of(self.splits["train"], self.tokenizer, task.form, s.length, s.slots, task.labels, tally)
        return (packing.record_of(encoding.record_of(row)) for row in rows)

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        kept = dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0])
        return kept | dict(dropped=tally.left_out, cut=tally.cut)

    def manifest(self) -> dict[str, Any]:
        return {**super().manifest(), "vocabulary": self.tokenizer.size}


def training_examples(settings: ExampleCache, root: Path, progress: Progress) -> list[Example]:
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
    return subset(raw_examples(settings.task, "train", root / "tfds"), settings.limit, settings.subset_seed)


maker = LabelledMaker
