"""Made-up words, and small packages of message catalogues in them."""

import hashlib
import random
import struct
import zipfile
from pathlib import Path

from data.packages.fetch import Package
from data.translation.caches import TranslationCache
from data.translation.sources import CATALOGUES

PERMISSIVE = CATALOGUES["permissive"]  # the real one, whatever a fixture puts in its place
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
_CHANCE = random.Random(0)
WORDS = sorted({"".join(_CHANCE.choices(_SYLLABLES, k=_CHANCE.randint(1, 3))) for _ in range(300)})
TINY = TranslationCache(catalogue="permissive", source_vocabulary=420, target_vocabulary=360, source_length=24, target_length=20)
LANGUAGES = {"sw": "swa", "br": "bre", "zh_TW": "zha", "sr@latin": "sra"}


def write_wheel(path: Path, catalogues_by_name: dict[str, str]) -> Package:
    """A wheel with the given .po files, and its pin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in catalogues_by_name.items():
            wheel.writestr(name, text)
    name = path.name.split("-")[0]
    return Package(
        registry="pypi", name=name, version="1.0", file=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
    )


def po_file(translations: dict[str, str]) -> str:
    """A .po file of {English: translation}; no string may need escaping."""
    entries = (f'msgid "{english}"\nmsgstr "{text}"\n' for english, text in translations.items())
    return "\n".join(['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8"\n', *entries])


def make_mo(entries: dict[str, str], order: str) -> bytes:
    """A .mo file as msgfmt lays it out."""
    keys, values = [[text.encode() for text in side] for side in (entries.keys(), entries.values())]
    tables, strings, offset = b"", b"", 28 + 16 * len(entries)
    for text in keys + values:
        tables += struct.pack(order + "2I", len(text), offset + len(strings))
        strings += text + b"\0"
    head = struct.pack(order + "7I", 0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, offset)
    return head + tables + strings
