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
      default: the language that is translated into where none is named.
    """

    size: int
    eos_id: int
    default: str = ENGLISH

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

    @abc.abstractmethod
    def marked(self, source: Sequence[int], target: Sequence[int]) -> str:
        """Returns the text of both sides of a pair with their marks, for a person."""


def open_vocabularies(folder: Path) -> Vocabularies:
    """Returns the vocabularies of a cache, of a release or of a Hugging Face folder."""
    return Trained(folder) if (folder / SOURCE).exists() else Released(folder)


class Trained(Vocabularies):
    """`source.model` with a tag for each language, and `target.model`, of one language.

    Args:
      languages: those that have a tag; by default those of the folder's manifest.
      to: the language of the target; by default the manifest's, English where it says none.
    """

    def __init__(self, folder: Path, languages: Collection[str] | None = None, to: str = ENGLISH):
        self._source, self._target = Vocabulary(folder / SOURCE), Vocabulary(folder / TARGET)
        self.default, self._languages = to, languages or ()
        if languages is None:
            manifest = caches.read_manifest(folder)
            self.default, self._languages = manifest.get("to", ENGLISH), manifest["languages"]
        self.size, self.eos_id, self.source_size = self._target.size, self._target.eos_id, self._source.size

    def source(self, language: str, text: str, most: int | None = None) -> list[int]:
        if language not in self._languages:
            raise DataError(f"the model does not know language {language!r}{nearest(language, self._languages)}")
        ids = [self._source.tag_id(language), *self._source.encode(text)]
        return [*ids[: None if most is None else most - 1], self._source.eos_id]

    def target(self, language: str, text: str) -> list[int]:
        return [*self.begin(language), *self._target.encode(text), self._target.eos_id]

    def begin(self, language: str) -> list[int]:
        if language != self.default:
            name = "English" if self.default == ENGLISH else repr(self.default)
            raise DataError(f"the model translates into {name} alone, not into {language!r}; did you mean {self.default!r}?")
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return self._target.decode(ids)

    def marked(self, source: Sequence[int], target: Sequence[int]) -> str:
        return f"{self._source.marked(source)} => {self._target.marked(target)}"


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

    def marked(self, source: Sequence[int], target: Sequence[int]) -> str:
        return f"{self._both.marked(source)} => {self._both.marked(target)}"

    def _known(self, language: str) -> str:
        if name := self.name(language):
            return name
        known = self._both.languages
        raise DataError(
            f"the model does not know language {language!r}{nearest(language, {*known, *languages.short_codes(known)})}"
        )
