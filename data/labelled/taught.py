"""Training examples with a teacher's labels: their folder, their digest, and the check that they are those of a cache.

    <data>/taught/TEACHER/TASK_LIMIT_SEED_VOTES/examples.jsonl

They are written before a cache with a teacher is prepared, by training the teacher and labelling with it; this module
reads them.
"""

from collections.abc import Sequence
from pathlib import Path

from data import paths
from data.labelled.settings import Labelled
from data.labelled.splits import Example
from data.reading import caches
from data.task import DataError

SPLIT = "examples"  # the file's name, without .jsonl


def folder_of(settings: Labelled, root: Path) -> Path:
    """Returns the folder of the labels by a cache's teacher, in the data folder `root`."""
    name = f"{settings.task}_{settings.limit}_seed{settings.subset_seed}_votes{settings.votes}"
    return root / "taught" / settings.teacher / name


def digest(cache: str, settings: Labelled, root: Path) -> str:
    """Returns the hexadecimal SHA-256 of the labelled examples; raises DataError, with the command to run, if there are none."""
    file = folder_of(settings, root) / f"{SPLIT}.jsonl"
    if not file.exists():
        raise DataError(
            f"cache {cache!r}: no labels by {settings.teacher} at {file}; run: python -m scripts.prepare_data {cache}"
        )
    return paths.sha256(file)


def read(settings: Labelled, root: Path, untaught: Sequence[Example]) -> list[Example]:
    """Returns the training examples with their teacher's labels.

    Args:
      settings: the cache's settings, which name a teacher.
      root: the data folder.
      untaught: the same examples with their own labels, in the same order.

    Raises:
      DataError: the labels belong to other examples.
    """
    folder = folder_of(settings, root)
    examples = list(caches.examples(folder, SPLIT))
    if list(map(_texts, examples)) != list(map(_texts, untaught)):
        raise DataError(f"the labels in {folder} belong to other examples of {settings.task}: delete them and try again")
    return examples


def _texts(example: Example) -> Example:
    return {name: value for name, value in example.items() if name != "label"}
