"""Prepares a cache of text to text from labelled examples, in stages.

    caches        <data>/caches/           the cache whose vocabulary it takes (`settings.caches`)
    packages      <data>/packages/         the task's package, or also the vocabulary's, checked by SHA-256
    data set      <data>/tfds/             the splits of the task, those of `data.labelled.cache`
    cache         <data>/caches/NAME/      packed rows

A cache holds `train/all.array_record` (rows of two sides, see `data.reading.packing`), the raw examples as `train.jsonl`,
`validation.jsonl` and `test.jsonl` (see `data.labelled.sources`), and `tokenizer.json`.
TensorFlow is imported by `build`, when it runs; finding a cache up to date doesn't need it.
"""

import shutil
from pathlib import Path
from typing import Any

from data import paths, stages
from data.labelled import cache as labelled
from data.labelled.sources import TASKS, PackageTask
from data.packages import weights
from data.packages.fetch import Package
from data.reading import caches, packing
from data.stages import Progress, stage
from data.text_to_text import texts
from data.text_to_text.settings import TextToText
from data.vocabularies import tokenizers

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
PART = "all"


def packages_of(settings: TextToText) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    task = TASKS[settings.task]
    own = (task.package,) if isinstance(task, PackageTask) else ()
    return own if settings.caches else (*own, weights.VOCABULARIES[settings.tokenizer])


def depends_on(cache: str, settings: TextToText, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: the digest of another cache's vocabulary."""
    del cache
    return [paths.sha256(root / "caches" / other / tokenizers.FILE) for other in settings.caches]


def build(settings: TextToText, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest.

    Raises:
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    stages.quiet_tensorflow()
    from data.labelled.examples import raw_examples

    examples = {"train": labelled.training_examples(settings, root, progress)}
    with stage("examples", progress):
        examples |= {split: list(raw_examples(settings.task, split, root / "tfds")) for split in ("validation", "test")}
        for split, split_examples in examples.items():
            caches.write_examples(folder / f"{split}.jsonl", split_examples)
    with stage("rows", progress):
        if settings.caches:
            shutil.copyfile(root / "caches" / settings.tokenizer / tokenizers.FILE, folder / tokenizers.FILE)
        else:
            weights.write_vocabulary(settings.tokenizer, root / "packages", folder / tokenizers.FILE)
        encoder = texts.Encoder(folder)
        lengths = settings.inputs_length, settings.targets_length
        tally = packing.Tally()
        (folder / "train").mkdir()
        rows = texts.packed(settings.task, examples["train"], encoder, lengths, tally)
        packing.write_rows(folder / "train" / f"{PART}.array_record", rows)
    tokens = dict(zip(("inputs_tokens", "targets_tokens"), tally.tokens, strict=True))
    return {
        "form": TASKS[settings.task].form,
        "labels": list(TASKS[settings.task].labels),
        "vocabulary": encoder.size,
        "parts": {PART: dict(examples=tally.examples, rows=tally.rows, **tokens, dropped=tally.dropped)},
    }
