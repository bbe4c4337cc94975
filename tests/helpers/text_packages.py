"""A tiny corpus of two origins, in one small package."""

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.packages import archives
from data.packages.fetch import npm_package
from data.paths import sha256
from data.text.sources import CORPORA, Source
from tests.helpers.archives import tarball
from tests.helpers.catalogues import WORDS


def sentence(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(3, 12))).capitalize() + "."


def entries(origin: str):
    """Reads the documents of an origin from the tiny package."""

    def read(package):
        ((_, content),) = archives.members(package, f"^package/{origin}.json$")
        yield from json.loads(content)

    return read


@contextlib.contextmanager
def tiny_corpus(root: Path) -> Iterator[None]:
    """Puts 120 letters and 40 notes into a data folder, in place of the corpus `english_small`."""
    chance = random.Random(2)
    letters = [(f"l{i}", f"l{i}", " ".join(sentence(chance) for _ in range(chance.randint(1, 12)))) for i in range(120)]
    notes = [(f"n{i}", f"g{i // 2}", sentence(chance) + "\nÜ 漢字!") for i in range(40)]
    (root / "packages").mkdir(exist_ok=True)
    files = {"package/letters.json": json.dumps(letters), "package/notes.json": json.dumps(notes)}
    package = tarball(root / "packages" / "tiny-1.0.tgz", files)
    pin = npm_package("tiny", "1.0", sha256(package))
    with pytest.MonkeyPatch.context() as patch:
        origins = ("letters", "notes")
        patch.setitem(CORPORA, "english_small", tuple(Source(origin, pin, entries(origin)) for origin in origins))
        yield
