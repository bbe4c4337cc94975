"""Training examples with the labels of another model.

    <data>/taught/TEACHER/TASK_LIMIT_SEED_VOTES/examples.jsonl

They are written before a cache with a teacher is prepared (scripts/recipes/distil.py), by training the teacher and labelling
with it.
"""

from collections.abc import Sequence
from pathlib import Path

from data.derived import Derived
from data.labelled.caches import LabelledCache
from data.reading.splits import Example
from data.task import DataError

FILE = "examples.jsonl"


def labels_of(settings: LabelledCache, root: Path) -> Derived:
    """Returns the labels by a cache's teacher, in the data folder `root`."""
    name = f"{settings.task}_{settings.limit}_seed{settings.subset_seed}_votes{settings.votes}"
    return Derived(root / "taught" / settings.teacher / name, "labels", settings.teacher)


def read(settings: LabelledCache, root: Path, examples: Sequence[Example]) -> list[Example]:
    """Returns the training examples with their teacher's labels.

    Args:
      settings: the cache's settings, which name a teacher.
      root: the data folder.
      examples: the same examples with their own labels, in the same order.

    Raises:
      DataError: the labels belong to other examples.
    """
    labels = labels_of(settings, root)
    labelled = list(labels.lines())
    if list(map(_texts, labelled)) != list(map(_texts, examples)):
        raise DataError(f"the labels in {labels.folder} belong to other examples of {settings.task}: delete them and try again")
    return labelled


def _texts(example: Example) -> Example:
    return {name: value for name, value in example.items() if name != "label"}
