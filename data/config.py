"""The base classes of the configurations of data, caches and evaluation: plain values, no JAX."""

import abc
import dataclasses
from typing import Any, ClassVar, Protocol

from data.features import Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(abc.ABC):
    """The examples that a model reads, and how many at a time: plain values.

    Attributes:
      kind: a key of data.kinds.KINDS.
      benchmark: the benchmark that measures runs (trainers/measure/mlperf_rules.py).
      cache: name of the prepared cache; "" is random data in full rows, for throughput and tests: no files, no TensorFlow.
      batch_size: rows of a global batch.
      seed: seed of the order of rows, and of how they are augmented.
    """

    kind: ClassVar[str]
    benchmark: ClassVar[str] = "throughput"

    cache: str = ""
    batch_size: int
    seed: int = 0

    @abc.abstractmethod
    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores it, in that order."""

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it."""
        return self.stored()

    @abc.abstractmethod
    def tiny(self) -> "DataConfig":
        """Returns a configuration of random data whose batches run in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The settings of a prepared cache: plain values. Its contents depend on them and on packages alone.

    Attributes:
      kind: a key of data.kinds.KINDS.
      made_of: the forms of a user's own data that the class makes a cache of, for messages; "" if of none.
    """

    kind: ClassVar[str]
    made_of: ClassVar[str] = ""

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> "CacheConfig | None":
        """Returns the settings of a cache of a user's own data, if this class makes any of it.

        Args:
          source: a folder, a file, a pattern of files, or "tfds:NAME".
          columns: the columns of a table that have other names than the kind's, "text=body,label=topic"; a class that reads
            tables keeps them as its field `columns`.
        """
        return None

    def encoded_with(self, tokenizer: str) -> "CacheConfig":
        """Returns these settings with a released vocabulary, a key of `data.packages.weights.VOCABULARIES`; "" is that of a
        folder. Settings whose vocabulary is no field `tokenizer` are returned as they are."""
        has_one = any(field.name == "tokenizer" for field in dataclasses.fields(self))
        return dataclasses.replace(self, **{"tokenizer": tokenizer}) if has_one else self

    def started_from(self, weights: str) -> "CacheConfig":
        """Returns these settings for runs that start from weights, as `train.finetune.init_from` names them: other settings where
        the cache stores something of theirs beside their ids."""
        return self

    def flat(self) -> dict[str, Any]:
        """Returns the settings by name, none of them nested, as the cache's manifest and the digest of its inputs have them."""
        return vars(self)

    @property
    def caches(self) -> tuple[str, ...]:
        """The prepared caches that this one is made from, such as the one whose vocabulary it takes."""
        return ()

    @property
    def released(self) -> bool:
        """True if the cache is encoded with the vocabulary of a folder, which is named when it is prepared."""
        return False

    @property
    def derived_by(self) -> str:
        """The model that labels, transcribes or scores examples before the cache is prepared; "" if none does."""
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceCache(CacheConfig):
    """The settings of a cache whose examples have one source.

    Attributes:
      source: a name, "tfds:NAME", "folder:PATH" or "file:PATH" (data.packages.locations); the kind of data says which it takes.
    """

    source: str


class EvalConfig(Protocol):
    """A way to evaluate a model: a frozen dataclass of plain values.

    Attributes:
      form: the evaluator's module in trainers/evaluation/.
      split: which held-out examples of the cache: "validation" or "test" (some caches have more).
      batch_size: examples read together.
    """

    form: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def split(self) -> str: ...

    @property
    def batch_size(self) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The model's own loss and metrics on held-out examples, encoded with the vocabulary that lies beside the weights.

    Attributes:
      split: which held-out examples of the cache: "validation" or "test".
      limit: at most so many examples; 0 takes all.
      rows: of these examples' packed rows the first so many alone, which then count as the examples; 0 takes all. Scores for
        which the number of whole examples or of bytes must be known, such as bits per byte, are left out.
      batch_size: packed rows read together.
    """

    form: ClassVar[str] = "held_out"

    split: str = "validation"
    limit: int = 0
    rows: int = 0
    batch_size: int = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decode:
    """Decoding of held-out examples by beam search, and the scores of the outputs (data/decoding.py).

    Attributes:
      split: which held-out examples of the cache: "validation" or "test" (some caches have more).
      limit: at most so many examples; 0 takes all.
      beams: hypotheses of an example; 1 is greedy search.
      length_penalty: alpha of ((5 + length) / 6)^alpha, which divides the log-probability (models/parts/decoding.py).
      max_length: longest output in tokens, its end included; of sounds, in each window.
      batch_size: examples decoded together.
    """

    form: ClassVar[str] = "decoded"

    split: str = "validation"
    limit: int = 0
    beams: int = 4
    length_penalty: float = 0.8
    max_length: int = 64
    batch_size: int = 64
