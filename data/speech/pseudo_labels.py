"""Transcripts by another model of speech that nobody transcribed. No TensorFlow.

    <data>/taught/TEACHER/DIGEST/0000.jsonl, 0001.jsonl, ..., manifest.json

A file has the texts of at most BATCH utterances of one language, and is there as a whole or not at all: what is stopped goes on
with the first that is missing. DIGEST is of all that the texts depend on. They are written before a cache with a teacher is
prepared (scripts/recipes/transcribe_unlabelled.py).
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

from data import paths
from data.derived import Derived
from data.packages import weights
from data.packages.locations import Location
from data.speech.caches import SpeechCache
from data.speech.sources import PACKAGES
from data.speech.utterances import Utterance

BATCH = 256  # utterances of a file
_FORMAT = 1  # increase it whenever the same teacher would give other texts
# The settings that say which utterances are transcribed.
_CHOICE = ("source", "language", "labelled", "validation", "test")


def with_transcripts(settings: SpeechCache, utterances: Iterable[Utterance]) -> list[Utterance]:
    """Returns the training utterances, with transcripts removed beyond the first `labelled` in an order that does not depend on
    that of the source."""
    utterances = list(utterances)
    if not settings.labelled:
        return utterances
    order = sorted(utterances, key=lambda u: hashlib.sha256(u.name.encode()).digest())
    kept = {u.name for u in [u for u in order if u.texts][: settings.labelled]}
    return [u if u.name in kept else dataclasses.replace(u, texts={}) for u in utterances]


def untranscribed(utterances: Iterable[Utterance]) -> list[list[Utterance]]:
    """Returns the utterances whose transcript is missing, by language, at most BATCH at a time."""
    missing = sorted((u for u in utterances if not u.texts.get("transcribe")), key=lambda u: u.language)
    by_language = (list(group) for _, group in itertools.groupby(missing, key=lambda u: u.language))
    return [group[at : at + BATCH] for group in by_language for at in range(0, len(group), BATCH)]


def texts_of(settings: SpeechCache, root: Path) -> Derived:
    """Returns the teacher's texts, in the data folder `root`."""
    teacher, location = settings.teacher, Location.of(settings.source)
    if teacher in weights.WEIGHTS:
        inputs = [package.sha256 for package in weights.WEIGHTS[teacher].packages]
    else:
        inputs = [paths.folder_digest(Path(teacher))]
    inputs += [package.sha256 for package in location.packages(PACKAGES)] + location.digests()
    choice = [getattr(settings, name) for name in _CHOICE]
    folder = root / "taught" / Path(teacher).name / paths.digest([_FORMAT, *inputs, *choice])[:16]
    return Derived(folder, "texts", teacher)


def read(settings: SpeechCache, root: Path, utterances: Iterable[Utterance]) -> list[Utterance]:
    """Returns the utterances; those without a transcript have the teacher's, unless it is unsure of it."""
    lines = texts_of(settings, root).lines()
    texts = {line["name"]: line["text"] for line in lines if line["text"] and line["likelihood"] >= settings.likelihood}
    return [
        dataclasses.replace(u, texts={**u.texts, "transcribe": texts[u.name]})
        if u.name in texts and not u.texts.get("transcribe")
        else u
        for u in utterances
    ]
