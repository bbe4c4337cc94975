"""A teacher's texts for speech that nobody wrote down: which utterances it is asked for, and where its texts lie. No TensorFlow.

    <data>/taught/TEACHER/DIGEST/0000.jsonl, 0001.jsonl, ..., manifest.json

A file has the texts of at most ASKED utterances of one language, and is there as a whole or not at all: what is stopped goes on
with the first that is missing. DIGEST is of all that the texts depend on. They are written before a cache with a teacher is
prepared (scripts/recipes/listen.py); this module reads them.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from data import paths
from data.packages import weights
from data.speech import sources
from data.speech.settings import FOLDER, Speech
from data.speech.sources import Utterance
from data.task import DataError

ASKED = 256  # utterances of a file
MANIFEST = "manifest.json"  # written last
_FORMAT = 1  # increase it whenever the same teacher would be asked otherwise
# The settings that say which utterances are asked for.
_CHOICE = ("source", "language", "labelled", "validation", "test")


def told(settings: Speech, utterances: Iterable[Utterance]) -> list[Utterance]:
    """Returns training utterances with the texts that the settings leave them: all, or those of the first `settings.labelled`
    in an order that does not depend on that of the source."""
    utterances = list(utterances)
    if not settings.labelled:
        return utterances
    order = sorted(utterances, key=lambda u: hashlib.sha256(u.name.encode()).digest())
    kept = {u.name for u in [u for u in order if u.texts][: settings.labelled]}
    return [u if u.name in kept else dataclasses.replace(u, texts={}) for u in utterances]


def asked(utterances: Iterable[Utterance]) -> list[list[Utterance]]:
    """Returns the utterances whose transcript is missing, by language, at most ASKED at a time."""
    missing = sorted((u for u in utterances if not u.texts.get("transcribe")), key=lambda u: u.language)
    by_language = (list(some) for _, some in itertools.groupby(missing, key=lambda u: u.language))
    return [some[at : at + ASKED] for some in by_language for at in range(0, len(some), ASKED)]


def folder_of(settings: Speech, root: Path) -> Path:
    """Returns the folder of the teacher's texts, in the data folder `root`."""
    teacher = settings.teacher
    if teacher in weights.WEIGHTS:
        made_from = [package.sha256 for package in weights.WEIGHTS[teacher].packages]
    else:
        made_from = [paths.folder_digest(Path(teacher))]
    made_from += [package.sha256 for package in sources.packages_of(settings)]
    if settings.source.startswith(FOLDER):
        made_from += [paths.folder_digest(Path(settings.source.removeprefix(FOLDER)))]
    choice = [getattr(settings, name) for name in _CHOICE]
    return root / "taught" / Path(teacher).name / paths.digest([_FORMAT, *made_from, *choice])[:16]


def digest(cache: str, settings: Speech, root: Path) -> str:
    """Returns a digest of the texts; raises DataError, with the command to run, if they are not complete."""
    folder = folder_of(settings, root)
    if not (folder / MANIFEST).exists():
        raise DataError(
            f"cache {cache!r}: no texts by {settings.teacher} in {folder}; run: python -m scripts.prepare_data {cache}"
        )
    return paths.digest([paths.sha256(file) for file in sorted(folder.glob("*.jsonl"))])


def read(settings: Speech, root: Path, utterances: Iterable[Utterance]) -> list[Utterance]:
    """Returns the utterances of `told`; those without a transcript have the teacher's, unless it is unsure of it."""
    texts: dict[str, str] = {}
    for file in sorted(folder_of(settings, root).glob("*.jsonl")):
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if line["text"] and line["likelihood"] >= settings.likelihood:
                texts[line["name"]] = line["text"]
    return [
        dataclasses.replace(u, texts={**u.texts, "transcribe": texts[u.name]})
        if u.name in texts and not u.texts.get("transcribe")
        else u
        for u in utterances
    ]
