"""The contract of a kind of data: what reading, evaluation, releases and commands ask of it. No JAX, no TensorFlow."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from data.config import DataConfig
from data.decoding import Decoding
from data.features import Example, Features, stacked
from models.errors import UserError
from models.families import ModelConfig

Config = TypeVar("Config", bound=DataConfig)

_VOCABULARIES = ("vocabulary", "source_vocabulary", "target_vocabulary")  # keys of a manifest


class DataError(UserError):
    """Data that is missing or does not fit the experiment; the message is one line that says what to do."""


class Sum(Protocol):
    """A metric as a sum over a count (models.parts.losses.Ratio): scalars, or vectors of the same shape."""

    @property
    def sum(self) -> Any: ...

    @property
    def over(self) -> Any: ...


@dataclasses.dataclass(frozen=True)
class HeldOutExamples:
    """Held-out examples as the model reads them.

    Attributes:
      rows: arrays by name, at least those of the task's features.
      count: how many examples the rows hold.
      extra: whatever the task's scores need beside the model's metrics.
      needs_outputs: whether they also need the model's outputs (models.protocol.HasOutputs).
      features: the arrays of a row, where they are not those of a training row.
    """

    rows: Sequence[Example]
    count: int
    extra: Any = None
    needs_outputs: bool = False
    features: Features | None = None


class Task(abc.ABC, Generic[Config]):
    """The behaviour of a kind of data for one configuration. The defaults are those of data that comes as it is stored.

    Attributes:
      packed_with: the fields of the configuration that a cache was packed with, which have the same names in its manifest.
    """

    packed_with: ClassVar[tuple[str, ...]] = ()

    def __init__(self, data: Config):
        self.data = data

    # --- reading ---

    @property
    def temperature(self) -> float:
        """T: a cache's parts are drawn in proportion to n^(1/T)."""
        return 1.0

    def weights(self, sizes: Mapping[str, int]) -> list[float]:
        """Returns how often each part of a cache is drawn, relative to the others, from the parts' sizes."""
        return [n ** (1 / self.temperature) for n in sizes.values()]

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        """Raises DataError where a cache is not what the configuration says, or the model cannot take it."""

    def decided(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the configuration that a cache decides, by name, with the values that fit it."""
        return {field: manifest.get(field, 0) for field in self.packed_with}

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the sizes of a model that a cache decides, once the configuration fits it, by the names that families have
        fields for (configs/from_data.py): those of vocabularies are the least, that of `labels` their number."""
        vocabularies = {name: size for name in _VOCABULARIES if isinstance(size := manifest.get(name), int)}
        labels = manifest.get("labels")
        return vocabularies | ({"labels": len(labels)} if labels else {})

    def parts(self, manifest: Mapping[str, Any]) -> dict[str, int]:
        """Returns the size of each part of a cache, a file of its own under train/: a language, an origin of text."""
        return {name: part["rows"] for name, part in manifest["parts"].items()}

    def rows(self, manifest: Mapping[str, Any]) -> int:
        """Returns how many training rows a cache has."""
        return sum(part["rows"] for part in manifest["parts"].values())

    @abc.abstractmethod
    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns a stored row of random data that fits the model."""

    def synthetic_key(self, model: ModelConfig) -> str:
        """Names what random rows depend on beside the configuration, for their fingerprint."""
        return self.data.kind

    def assets(self, folder: Path | None, model: ModelConfig) -> Any:
        """Returns what `augment` needs beside a row, such as a vocabulary.

        Args:
          folder: the prepared cache; None for random data.
        """
        return None

    @property
    def augmentation(self) -> str:
        """Names how rows are augmented, for the fingerprint of what a run has read; "" where they come as they are stored."""
        return ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        """Returns a stored row as the model gets it this time: a pure function of its arguments."""
        return row

    @property
    def group_size(self) -> int:
        """Number of consecutive rows passed to `combine` at once; groups start at multiples of it."""
        return 1

    @property
    def rows_per_group(self) -> int:
        """Number of rows that `combine` returns; less than `group_size` where it packs, more where a stored row is several."""
        return self.group_size

    def combine(self, rows: Sequence[Example], rng: np.random.Generator) -> Example:
        """Returns augmented rows as the model gets them, mixed or packed if at all: a pure function of its arguments.

        The `rows_per_group` rows are in front of each array. Not called when `augmentation` is empty.
        """
        return stacked(rows)

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the examples of a held-out split, augmented the same way every time.

        Args:
          cache: the prepared cache with the examples.
          vocabulary: the folder whose vocabulary encodes them: the cache, or a release.
          limit: at most so many examples; 0 takes all.

        Raises:
          DataError: the kind has no rows for the model's own loss to score, as where its examples are decoded.
        """
        raise DataError(f"data of kind {self.data.kind!r} has no held-out rows that a loss could score")

    def decoding(self, vocabulary: Path) -> Decoding[Any]:
        """Returns how held-out examples are decoded and their outputs scored, with the vocabulary of a folder.

        Raises:
          DataError: the examples of the kind are not decoded.
        """
        raise DataError(f"held-out examples of data of kind {self.data.kind!r} are scored by a loss, not decoded")

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the task's scores by name from the model's metrics over all examples.

        Args:
          totals: metrics as sums; scalars are reported as they are, what vectors mean is the task's affair.
          outputs: the model's outputs for the rows, in order, where `examples.needs_outputs`.
        """
        return {}

    @property
    def directions(self) -> Mapping[str, bool]:
        """True where less is better, for each of the task's scores that is better one way; by the last part of its name."""
        return {}

    @property
    def meanings(self) -> Mapping[str, str]:
        """Explains the task's scores and baselines, each in a line: by the last part of its name, up to a "_" where several share
        one explanation."""
        return {}

    # --- words ---

    @abc.abstractmethod
    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        """Returns the lines of a release's README that tell what the model was trained on."""


@runtime_checkable
class ReadsGiven(Protocol):
    """A task that reads examples which were given to it, such as those that scripts.classify names the classes of."""

    @property
    def given(self) -> str:
        """The field of such an example that says it all: "text", or "picture", a file."""
        ...

    @property
    def shown(self) -> int:
        """Number of classes of such an example that are shown to a person."""
        ...

    def read_given(self, given: Sequence[Mapping[str, Any]], vocabulary: Path) -> list[Example]:
        """Returns rows of raw examples; `owners` [P] says which example each slot belongs to, -1 where none does.

        Raises:
          DataError: an example cannot be read.
        """
        ...

    def class_names(self, vocabulary: Path) -> list[str]:
        """Returns the names of the classes; raises DataError where nothing in the folder says them."""
        ...


class RankedItems(Protocol):
    """The items of a cache as one of its users may be shown them."""

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """Returns the items, each with its `item` as the data write it, and its `name`."""
        ...

    @property
    def features(self) -> Features:
        """Returns the arrays of a row."""
        ...

    def candidates(self, seen: bool) -> list[int]:
        """Returns the places of the items that are ranked: without those that the user has seen in training, unless `seen`."""
        ...

    def rows(self, places: Sequence[int]) -> Iterable[Example]:
        """Returns the rows that a model must read to rank the items at these places."""
        ...

    def probabilities(self, outputs: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """Returns the probability [N] of each item, from the outputs of a model for the rows."""
        ...


@runtime_checkable
class RanksItems(Protocol):
    """A task of users and items, whose models say what a user likes."""

    def catalogue(self, cache: Path, user: str) -> RankedItems:
        """Returns the items of a prepared cache, for a user.

        Raises:
          DataError: the cache has no users, or none of this name.
        """
        ...


@runtime_checkable
class RanksResponses(Protocol):
    """A task whose models rate the responses that they draw."""

    @property
    def ranking(self) -> Mapping[str, float]:
        """The weight of each rating's probability in the score of a response, by attribute."""
        ...

    @property
    def floors(self) -> Mapping[str, float]:
        """The least probability of a rating, by attribute; a response below is dropped."""
        ...

    def prompt(self, turns: Sequence[str]) -> str:
        """Returns a conversation up to where a response begins; the last of its turns, which speakers take one by one, is the
        other's."""
        ...

    def rating_ids(self, vocabulary: Path, attribute: str) -> tuple[list[int], list[int]]:
        """Returns the ids of the two ratings (bad, good) that may stand behind a response; they differ in the last alone."""
        ...


@runtime_checkable
class ChoosesThresholds(Protocol):
    """A task whose scores need thresholds chosen on another split."""

    def choose_thresholds(self, totals: Mapping[str, Sum]) -> Any:
        """Returns the thresholds that are best by the model's metrics on some examples."""
        ...

    def scores_at(self, totals: Mapping[str, Sum], thresholds: Any) -> dict[str, float]:
        """Returns the task's scores by name, with these thresholds."""
        ...
