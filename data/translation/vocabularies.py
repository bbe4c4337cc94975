"""Encoders of both sides of a translation: with the two vocabularies of a cache, or with that of released weights."""

import abc
from collections.abc import Collection, Sequence
from pathlib import Path

from data.reading import caches
from data.task import DataError
from data.translation import languages
from data.vocabularies.multilingual import Multilingual
from data.vocabularies.sentencepiece import Vocabulary
from models.errors import nearest

ENGLISH = "en"
SOURCE, TARGET = "source.model", "target.model"  # the vocabularies that are trained for a cache


class Vocabularies(abc.ABC):
    """Both sides' vocabularies. Languages are those of catalogues (`data.translation.languages`), or a vocabulary's own codes.

    Attributes:
      size: number of ids of the target's.
      eos_id: the id that ends a target.
    """

    size: int
    eos_id: int

    @abc.abstractmethod
    def source(self, language: str, text: str, most: int | None = None) -> list[int]:
        """Returns the ids of a source, with the text cut if they are more than `most`.

        Raises:
          DataError: the vocabulary has no token of the language.
        """

    @abc.abstractmethod
    def target(self, language: str, text: str) -> list[int]:
        """Returns the ids of a whole target, its end included; raises DataError for another language than the model's."""

    @abc.abstractmethod
    def begin(self, language: str) -> list[int]:
        """Returns the ids that every target in a language begins with; raises DataError for another language than the model's."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids up to the first end."""


def open_vocabularies(folder: Path) -> Vocabularies:
    """Returns the vocabularies of a cache, of a release or of a Hugging Face folder."""
    return Trained(folder) if (folder / SOURCE).exists() else Released(folder)


class Trained(Vocabularies):
    """`source.model` with a tag for each language, and `target.model`, in English.

    Args:
      languages: those that have a tag; by default those of the folder's manifest.
    """

    def __init__(self, folder: Path, languages: Collection[str] | None = None):
        self._source, self._target = Vocabulary(folder / SOURCE), Vocabulary(folder / TARGET)
        self._languages: Collection[str] = caches.read_manifest(folder)["languages"] if languages is None else languages
        self.size, self.eos_id = self._target.size, self._target.eos_id

    def source(self, language: str, text: str, most: int | None = None) -> list[int]:
        if language not in self._languages:
            raise DataError(f"the model does not know language {language!r}{nearest(language, self._languages)}")
        ids = [self._source.tag_id(language), *self._source.encode(text)]
        return [*ids[: None if most is None else most - 1], self._source.eos_id]

    def target(self, language: str, text: str) -> list[int]:
        return [*self.begin(language), *self._target.encode(text), self._target.eos_id]

    def begin(self, language: str) -> list[int]:
        if language != ENGLISH:
            raise DataError(f"the model translates into English alone, not into {language!r}; did you mean {ENGLISH!r}?")
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return self._target.decode(ids)


class Released(Vocabularies):
    """The one vocabulary of M2M-100 or NLLB: sources and targets begin with the token of their language."""

    def __init__(self, folder: Path):
        self._both = Multilingual(folder)
        self.size, self.eos_id = self._both.size, self._both.eos_id

    def name(self, language: str) -> str | None:
        """Returns the vocabulary's own code of a language, None where it has none."""
        return languages.named_among(language, self._both.languages)

    def source(self, language: str, text: str, most: int | None = None) -> list[int]:
        return self._both.source(self._known(language), text, most)

    def target(self, language: str, text: str) -> list[int]:
        return self._both.target(self._known(language), text)

    def begin(self, language: str) -> list[int]:
        return [self._both.languages[self._known(language)]]

    def decode(self, ids: Sequence[int]) -> str:
        return self._both.decode(ids)

    def _known(self, language: str) -> str:
        if name := self.name(language):
            return name
        known = self._both.languages
        raise DataError(
            f"the model does not know language {language!r}{nearest(language, {*known, *languages.short_codes(known)})}"
        )
