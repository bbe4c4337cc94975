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
from data.labelled import encoding, own, pseudo_labels
from data.labelled.caches import ExampleCache, LabelledCache, OwnLabelledCache
from data.labelled.sources import TASKS, PackageTask
from data.own_maker import OwnMaker
from data.packages import weights
from data.packages.fetch import Package
from data.reading import labels, packing
from data.reading.splits import Example, subset
from data.reading.tally import Tally
from data.stages import Progress, stage
from data.task import DataError
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
        return counts(tally)

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


class OwnLabelledMaker(OwnMaker[OwnLabelledCache]):
    """Makes a cache of a user's own labelled text."""

    FORMAT = 2

    def check_vocabulary(self, folder: Path) -> None:
        """Raises UserError for a folder without a vocabulary with the marks of an encoder."""
        encoding.check_marks(tokenizers.Tokenizer(folder))

    def open(self) -> None:
        source, seen = self.location.name, own.Labels()
        fields = own.fields_of(source, self.columns)
        if fields is None:
            raise DataError(f"{source}: no labelled text there any more")
        s = self.settings
        self.form: encoding.Form = fields.form
        self.divide(own.files(source), own.reader(fields, self.columns), seen=seen.add)
        self.labels, self.values = seen.names(), seen.values
        self.length = s.length or (384 if self.form == "span" else 128)
        self.slots = s.slots or {"tagging": self.length, "span": 4, "pair": 16, "classification": 16}[self.form]
        self.seen = dict[str, set[str]]()  # the labels that each split has
        self.write_vocabulary()
        self.tokenizer = tokenizers.Tokenizer(self.folder)

    def why_left_out(self, example: Example) -> str:
        given = (example.get("label"), *example.get("tags", ()))
        unknown = labels.NONE in given and labels.NONE not in self.labels
        return (
            f"its label is {labels.NONE}, which stands for none beside {self.labels[0]} and {self.labels[1]}" if unknown else ""
        )

    def content(self, example: Example) -> str:
        """Returns what a model is given, whatever it is asked for, and however the example is called."""
        return super().content({name: value for name, value in example.items() if name not in ("score", "id", "answers")})

    def examples(self, split: str) -> Iterator[Example]:
        names = self.seen[split] = set()
        for example in super().examples(split):
            names.add(example.get("label", ""))
            yield example

    def finished(self, example: Example) -> Example:
        return own.with_label(example, self.values, self.labels)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        examples = packing.shuffled_in_windows(self.examples("train"), self.SEED)
        rows = encoding.rows_of(examples, self.tokenizer, self.form, self.length, self.slots, self.labels, tally)
        return (packing.record_of(encoding.record_of(row)) for row in rows)

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return counts(tally)

    def manifest(self) -> dict[str, Any]:
        decided = dict(form=self.form, labels=self.labels, length=self.length, slots=self.slots, vocabulary=self.tokenizer.size)
        named = self.form in ("classification", "pair") and self.labels and not self.values
        more = {"missing": self.missing(self.labels, self.seen)} if named else {"values": self.values} if self.values else {}
        return super().manifest() | decided | more

    def show(self, part: str, record: bytes) -> str:
        row = encoding.row_of(record, self.form, self.length, self.slots)
        return encoding.shown(row, self.tokenizer, self.form, self.labels)


def counts(tally: Tally) -> dict[str, int]:
    """Returns the counts of a part of labelled text."""
    kept = dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0])
    return kept | dict(dropped=tally.left_out, cut=tally.cut)


MAKERS = {LabelledCache: LabelledMaker, OwnLabelledCache: OwnLabelledMaker}
