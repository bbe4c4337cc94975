"""The contract of held-out examples that a model decodes: translations, transcriptions, answers in words. No JAX."""

import abc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from data.config import Decode
from data.features import Example, Features

Item = TypeVar("Item")  # a held-out example with its reference, before it is encoded
PREFIX = "prefix"  # the array of `source` that holds the tokens which an output begins with, 0 where it chooses freely
Scores = dict[str, Any]  # scores by name under "all"; under other keys those of parts, by the part's name


class Decoding(abc.ABC, Generic[Item]):
    """The decoding of a task: examples are encoded for a model, and its outputs become texts, which are scored.

    Attributes:
      source: the arrays that a model reads of an example (models.protocol.SequenceToSequence.start), and PREFIX [P] where
        outputs begin with given tokens, such as that of their language.
      vocab: how many tokens an output may have: ids from here on are never produced.
      eos: the id that ends an output.
      pad: the id that follows the end, which is never produced; -1 where every id is a token.
    """

    source: Features
    vocab: int
    eos: int
    pad: int = 0

    @abc.abstractmethod
    def examples(self, cache: Path, config: Decode) -> list[Item]:
        """Returns the held-out examples that a configuration asks for; raises DataError for an unknown split."""

    @abc.abstractmethod
    def encode(self, example: Item) -> Example:
        """Returns the arrays of `source`; raises DataError for an example that the vocabulary cannot encode."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of an output, whatever follows its end left out."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Item], outputs: Sequence[str]) -> Scores:
        """Returns the scores of outputs against the examples' references."""

    @property
    @abc.abstractmethod
    def names(self) -> list[str]:
        """The names of the scalars that training logs, those of parts left out."""

    def scalars(self, scores: Scores) -> dict[str, float]:
        """Returns the scalars that training logs, from `scores`."""
        return dict(scores["all"])

    def baselines(self, examples: Sequence[Item], decoder: Callable[[Sequence[Item]], list[str]]) -> Scores:
        """Returns scores to compare with, by name: those of a copy, or of a model that ignores its input."""
        return {}

    @property
    def compared(self) -> Features:
        """The arrays of which a model gives vectors (models.protocol.Represents) for `neighbours`."""
        return {}

    def neighbours(self, examples: Sequence[Item], vectors: Callable[[Sequence[Example]], np.ndarray]) -> Scores:
        """Returns scores to compare with as `baselines` does: of the text of the training example that is most alike to a model.

        Args:
          vectors: returns a vector of each row of `compared` [N, D].
        """
        return {}

    @abc.abstractmethod
    def table(self, scores: Scores, *, details: bool = False) -> str:
        """Returns scores and baselines as text for people; `details` lists all parts."""


@runtime_checkable
class HasSounds(Protocol):
    """A decoding whose examples are sounds, each with its `language` and `task`, such as those that scripts.transcribe is given.

    Attributes:
      vocabulary: whose ids the model writes.
    """

    vocabulary: Any

    def samples(self, example: Any) -> np.ndarray:
        """Returns the samples of an example [N], float32 at 16 kHz."""
        ...


@runtime_checkable
class DecodesLanguages(Protocol):
    """A decoding of texts in several languages, such as those that scripts.translate is given."""

    def example(self, lang: str, text: str, to: str = "") -> Any:
        """Returns the example of a text without a reference; `to` is the language to translate it into, "" the usual one."""
        ...


@runtime_checkable
class WritesTexts(Protocol):
    """A decoding of texts that are written for given ones, such as those that scripts.generate is given."""

    def given(self, text: str) -> Any:
        """Returns the example of a text without a reference."""
        ...
