"""The settings of prepared caches of text to text, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.labelled.caches import ExampleCache
from data.labelled.sources import TASKS
from data.own_cache import TrainedCache
from data.packages.weights import VOCABULARIES
from data.reading.tables import columns_of
from data.task import DataError
from data.text_to_text import own
from models.errors import nearest


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextToTextCache(ExampleCache):
    """Settings of a cache of text to text.

    Attributes:
      task: its examples have a label, tags or an answer.
      tokenizer: the vocabulary of the weights that are fine-tuned: the name of the prepared cache that they were pre-trained on,
        or released weights, a key of `data.packages.weights.VOCABULARIES`.
      inputs_length, targets_length: tokens of a packed row. Longer inputs lose their end, longer targets are left out.

    Raises:
      DataError: there is no such task, or its examples have nothing that could be written.
    """

    kind: ClassVar[str] = "text_to_text"

    tokenizer: str
    inputs_length: int = 256
    targets_length: int = 64

    def __post_init__(self) -> None:
        written = [name for name, task in TASKS.items() if task.form != "pair"]
        if self.task not in TASKS:
            raise DataError(f"no task {self.task!r}{nearest(self.task, written)}")
        if self.task not in written:
            raise DataError(f"task {self.task!r} pairs similar texts and has no label to write{nearest(self.task, written)}")

    @property
    def caches(self) -> tuple[str, ...]:
        return () if self.tokenizer in VOCABULARIES else (self.tokenizer,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTextToTextCache(TrainedCache):
    """Settings of a cache of a user's own texts with what is to be written of each (data/text_to_text/own.py).

    Attributes:
      inputs_length, targets_length: tokens of a packed row; 0 is as many as the longest training example has, in 64s, and 512 at
        most. Longer inputs lose their end, longer targets are left out.
    """

    kind: ClassVar[str] = "text_to_text"
    made_of: ClassVar[str] = (
        "a table of texts with what is to be written of each, in the columns inputs and targets (split, group)"
    )

    inputs_length: int = 0
    targets_length: int = 0

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source is a table whose columns are inputs and targets."""
        return bool(own.fields_of(source, columns_of(columns)))


def _quickstart(task: str, *, inputs: int = 256, targets: int = 64, limit: int = 0) -> TextToTextCache:
    return TextToTextCache(task=task, tokenizer="t5_small", inputs_length=inputs, targets_length=targets, limit=limit)


CACHES = (TextToTextCache, OwnTextToTextCache)
# In the vocabulary of t5.quickstart and switch.quickstart.
ENTRIES = {
    "t5_debian_sections_1k": _quickstart("debian_sections", limit=1_000),
    "t5_debian_sections_5k": _quickstart("debian_sections", limit=5_000),
    "t5_debian_sections_20k": _quickstart("debian_sections", limit=20_000),
    "t5_debian_sections": _quickstart("debian_sections"),
    "t5_debian_descriptions": _quickstart("debian_descriptions", inputs=512),
    "t5_brown_tags": _quickstart("brown_tags", targets=256),
    "t5_brown_genres": _quickstart("brown_genres", inputs=512),
    "t5_spam": _quickstart("spam", inputs=512),
    **{f"t5_{name}": _quickstart(name) for name in TASKS if name.startswith("glue_")},
    "t5_squad": _quickstart("squad", inputs=512),
}
