"""The settings of prepared caches of labelled text, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import CacheConfig
from data.labelled import own
from data.own_cache import OwnCache
from data.reading.tables import columns_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleCache(CacheConfig):
    """Settings that say which training examples of which task a cache has, of any kind of data.

    Attributes:
      task: a key of `data.labelled.sources.TASKS`.
      limit: how many training examples are taken, in the order that `subset_seed` gives; 0 takes all.
      subset_seed: seed of that order (`data.reading.splits.subset`); held-out examples are the same for every seed.
    """

    task: str
    limit: int = 0
    subset_seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledCache(ExampleCache):
    """Settings of a cache of labelled text.

    Attributes:
      tokenizer: released weights whose tokenizer is used, e.g. "minilm_l6".
      length: tokens L of a packed row.
      slots: the most labels P of a row.
      teacher: an experiment whose model labels the training examples, except for those that it was trained on, which keep
        their own labels (`data.labelled.pseudo_labels`).
      votes: how many labels an example has with a teacher, in proportion to the teacher's probabilities.
    """

    kind: ClassVar[str] = "labelled"

    tokenizer: str
    length: int
    slots: int
    teacher: str = ""
    votes: int = 8

    @property
    def derived_by(self) -> str:
        return self.teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLabelledCache(OwnCache):
    """Settings of a cache of a user's own labelled text (data/labelled/own.py).

    Attributes:
      tokenizer: a vocabulary with [CLS] and [SEP]; see OwnCache.
      length: tokens L of a packed row; 0 is 384 for questions with answers, 128 for others.
      slots: the most labels P of a row; 0 is one for each token of tagged words, 4 for questions, 16 for others.
    """

    kind: ClassVar[str] = "labelled"
    made_of: ClassVar[str] = (
        "a table (.csv, .tsv, .jsonl, .json, .parquet, .arrow) of texts or pairs of texts with labels or scores, of tagged "
        "words, or of questions with answers"
    )

    tokenizer: str = "minilm_l6"
    length: int = 0
    slots: int = 0

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source is a table whose columns are those of labelled text, or files like CoNLL's."""
        return own.fields_of(source, columns_of(columns)) is not None


def _minilm(task: str, *, length: int = 128, slots: int, limit: int = 0, teacher: str = "") -> LabelledCache:
    return LabelledCache(task=task, tokenizer="minilm_l6", length=length, slots=slots, limit=limit, teacher=teacher)


CACHES = (LabelledCache, OwnLabelledCache)
ENTRIES = {
    # One data set at four training sizes; the smaller are subsets of the larger, the test is the same.
    "debian_sections_1k": _minilm("debian_sections", slots=16, limit=1_000),
    "debian_sections_5k": _minilm("debian_sections", slots=16, limit=5_000),
    "debian_sections_20k": _minilm("debian_sections", slots=16, limit=20_000),
    "debian_sections": _minilm("debian_sections", slots=16),
    "debian_descriptions": _minilm("debian_descriptions", length=256, slots=8),
    # The same 5,000 packages as debian_sections_5k, with the beginning of the description: a teacher for those without labels.
    "debian_descriptions_5k": _minilm("debian_descriptions", length=48, slots=4, limit=5_000),
    "debian_taught_5k": _minilm("debian_sections", slots=128, limit=25_000, teacher="bert.minilm_debian_descriptions_5k"),
    "debian_similar": _minilm("debian_similar", length=256, slots=16),
    "brown_tags": _minilm("brown_tags", slots=128),
    "brown_genres": _minilm("brown_genres", length=256, slots=4),
    "spam": _minilm("spam", length=256, slots=8),
    "glue_cola": _minilm("glue_cola", slots=16),
    "glue_sst2": _minilm("glue_sst2", slots=16),
    "glue_mrpc": _minilm("glue_mrpc", slots=8),
    "glue_qqp": _minilm("glue_qqp", slots=8),
    "glue_mnli": _minilm("glue_mnli", slots=8),
    "glue_mnli_mismatched": _minilm("glue_mnli_mismatched", slots=8),
    "glue_qnli": _minilm("glue_qnli", slots=8),
    "glue_rte": _minilm("glue_rte", length=256, slots=8),
    "glue_wnli": _minilm("glue_wnli", slots=8),
    "squad": _minilm("squad", length=384, slots=4),
}


def with_seed(name: str, seed: int) -> tuple[str, LabelledCache]:
    """Returns the name and settings of a cache like the one called `name`, of the training examples that `seed` draws."""
    return f"{name}_seed{seed}" if seed else name, dataclasses.replace(ENTRIES[name], subset_seed=seed)
