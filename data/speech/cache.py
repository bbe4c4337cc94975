"""Prepares a cache of speech, in stages.

    packages      <data>/packages/           the source's packages, or also the vocabulary's, checked by SHA-256
    cache         <data>/caches/NAME/        samples of 16 bits at 16 kHz, and the tokens of their texts

A cache holds `train/TASK.array_record`, rows of one or several utterances (`data.speech.config.SpeechData.stored`);
`validation.array_record` and `test.array_record`, an utterance a row, with what is said, its language and task as
`validation.jsonl` and `test.jsonl`; and `tokenizer.json`. An utterance that cannot be read, is too long for a row, or has a text
that the vocabulary cannot write, is left out, counted and, if it is among the first, named.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import paths, stages
from data.packages import weights
from data.packages.fetch import Package
from data.reading import caches, packing
from data.reading.examples import record_of
from data.reading.files import HELD_FIRST, Contents, Tally, in_windows
from data.speech import sound, sources, taught
from data.speech.config import ALIGN, SpeechData
from data.speech.settings import CHARACTERS, FOLDER, TFDS, Speech
from data.speech.sources import Utterance
from data.speech.vocabulary import VocabularyError, open_vocabulary, write_characters
from data.stages import Progress, stage
from data.task import DataError, Example
from data.vocabularies import tokenizers

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
_WINDOW = 64  # utterances that are read at a time
_GAP = ALIGN * 160  # samples


@dataclasses.dataclass
class SpeechTally(Tally):
    """Also counts of utterances, several of which may share a row, and of their samples."""

    examples: int = 0
    samples: int = 0


def packages_of(settings: Speech) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    own = sources.packages_of(settings)
    return own if settings.vocabulary == CHARACTERS else (*own, weights.VOCABULARIES[settings.vocabulary])


def depends_on(cache: str, settings: Speech, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: digests of a folder's files and of a teacher's texts."""
    source = settings.source
    own = [paths.folder_digest(Path(source.removeprefix(FOLDER)))] if source.startswith(FOLDER) else []
    return [*own, taught.digest(cache, settings, root)] if settings.teacher else own


def build(settings: Speech, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder; returns its part of the manifest.

    Raises:
      DataError: a source holds no utterances, or none of a split that could be used.
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    if settings.source.startswith(TFDS):
        stages.quiet_tensorflow()
    with stage("source", progress):
        opened = sources.open_source(settings, root)
        train = taught.told(settings, opened["train"]) if settings.labelled or settings.teacher else opened["train"]
        heard = taught.read(settings, root, train) if settings.teacher else train
        if settings.vocabulary == CHARACTERS:
            # A teacher's texts have letters and digits that people did not write.
            said = [text for u in train for task in settings.tasks if (text := u.texts.get(task))]
            said = said or [text for u in heard for task in settings.tasks if (text := u.texts.get(task))]
            write_characters(said, folder / tokenizers.FILE)
        else:
            weights.write_vocabulary(settings.vocabulary, root / "packages", folder / tokenizers.FILE)
    writer = Writer(settings, folder)
    (folder / "train").mkdir()
    tallies: dict[str, SpeechTally] = {}
    for split in HELD_FIRST[:-1]:
        with stage(split, progress):
            tallies[split] = writer.held_out(opened[split], split)
    for task in settings.tasks:
        with stage(task, progress):
            tallies[task] = writer.train(heard, task)
    for name, tally in tallies.items():
        first = tally.named[0] if tally.named else "there is none"
        if tally.left_out:
            total = tally.examples + tally.left_out
            progress(f"{name}: {tally.left_out:,} of {total:,} utterances left out; {first}")
        if not tally.rows:
            raise DataError(f"{settings.source}: no utterance of {name} can be used; {first}")
    parts = {
        task: {"examples": t.examples, "rows": t.rows, "seconds": round(t.samples / sound.RATE), "left_out": t.left_out}
        for task in settings.tasks
        for t in (tallies[task],)
    }
    return {
        "vocabulary": writer.vocabulary.size,
        "target_vocabulary": writer.vocabulary.size,
        "parts": parts,
        "held_out": {split: tallies[split].examples for split in ("validation", "test")},
        "left_out": {name: tally.named for name, tally in tallies.items() if tally.named},
    }


class Writer:
    """Writes the splits of a cache, with the vocabulary in its folder."""

    def __init__(self, settings: Speech, folder: Path):
        self.settings, self.folder = settings, folder
        self.vocabulary = open_vocabulary(folder)
        self.limit = round(settings.seconds * sound.RATE)
        self._contents = Contents()

    def train(self, utterances: Iterable[Utterance], task: str) -> SpeechTally:
        """Writes the rows of a task, each with as many utterances as there is room for, first-fit."""
        tally, s = SpeechTally(), self.settings
        stored = self._stored(s.slots)

        def examples() -> Iterator[packing.Example]:
            for _, samples, ids in self._usable(utterances, task, "train", tally):
                yield np.pad(samples, (0, _aligned(len(samples)) - len(samples))), ids, np.array([len(samples)])

        def layout(chosen: list[packing.Example], lengths: Any) -> np.ndarray:
            del lengths
            row = _row([(samples[: size[0]], ids) for samples, ids, size in chosen], s.slots, s.targets_length)
            return np.frombuffer(record_of(row, stored), np.uint8)

        room = (self.limit + _GAP, s.targets_length, s.slots)
        counted = packing.Tally()
        rows = packing.pack(examples(), room, counted, layout)
        packing.write_records(self.folder / "train" / f"{task}.array_record", (row.tobytes() for row in rows))
        tally.rows = counted.rows
        return tally

    def held_out(self, utterances: Iterable[Utterance], split: str) -> SpeechTally:
        """Writes the utterances of a held-out split, for every task, and what is said in them."""
        tally, kept, stored = SpeechTally(), [], self._stored(1)
        utterances = list(utterances) if len(self.settings.tasks) > 1 else utterances

        def records() -> Iterator[bytes]:
            for task in self.settings.tasks:
                for u, samples, ids in self._usable(utterances, task, split, tally):
                    text = {"name": u.name, "language": u.language, "task": task, "text": u.texts.get(task, "")}
                    kept.append(text)
                    yield record_of(_row([(samples, ids)], 1, self.settings.targets_length), stored)

        packing.write_records(self.folder / f"{split}.array_record", records())
        caches.write_examples(self.folder / f"{split}.jsonl", kept)
        tally.rows = len(kept)
        return tally

    def _stored(self, slots: int) -> Any:
        s = self.settings
        return SpeechData(batch_size=1, seconds=s.seconds, slots=slots, targets_length=s.targets_length).stored()

    def _usable(
        self, utterances: Iterable[Utterance], task: str, split: str, tally: SpeechTally
    ) -> Iterator[tuple[Utterance, np.ndarray, np.ndarray]]:
        """Yields (an utterance, its samples, its target), read by several threads, in order; counts all."""

        read = functools.partial(_read, self.settings, self.folder, task)
        for u, samples, target in in_windows(read, utterances, _WINDOW):
            if samples is None:
                tally.leave_out(u.name, target)
                continue
            if why := self._contents.why_copied(samples.tobytes(), split):
                tally.leave_out(u.name, why)
                continue
            tally.examples += 1
            tally.samples += len(samples)
            yield u, samples, target


@functools.cache
def _vocabulary(folder: Path) -> Any:
    return open_vocabulary(folder)


def _read(settings: Speech, folder: Path, task: str, u: Utterance) -> tuple[Utterance, np.ndarray | None, Any]:
    """Returns an utterance, its samples of 16 bits and its target; None and why in place of both where it cannot be used."""
    text, limit = u.texts.get(task), round(settings.seconds * sound.RATE)
    heard = dataclasses.replace(u, read=_nothing)  # what reads it may be no plain data
    try:
        if settings.targets_length and not text:
            raise sound.SoundError(f"has no text to {task}")
        encoded = text and settings.targets_length
        target = _vocabulary(folder).target(text, u.language, task) if encoded else []
        if len(target) > settings.targets_length:
            raise sound.SoundError(f"its text has {len(target)} tokens, more than {settings.targets_length}")
        samples = u.read()
        if len(samples) > limit:
            raise sound.SoundError(f"is {len(samples) / sound.RATE:.1f} s long, a row {settings.seconds:g} s")
        if len(samples) < sound.RATE // 20:
            raise sound.SoundError(f"is {len(samples) / sound.RATE:.3f} s long, too short to say anything")
    except (sound.SoundError, VocabularyError) as error:
        return heard, None, str(error)
    return heard, sound.to_pcm(samples), np.array(target, np.int32)


def _nothing() -> np.ndarray:
    raise sound.SoundError("was read before")


def _aligned(samples: int) -> int:
    """Returns the samples that an utterance takes of a row: a gap follows it, and the next begins at a multiple of it."""
    return (-(-samples // _GAP) + 1) * _GAP


def _row(utterances: list[tuple[np.ndarray, np.ndarray]], slots: int, targets_length: int) -> Example:
    """Returns a stored row of (samples, target) pairs."""
    ends = np.zeros(slots, np.int32)
    ends[: len(utterances)] = np.cumsum([len(samples) for samples, _ in utterances])
    targets = packing.lay_out([ids for _, ids in utterances], targets_length)
    texts = dict(zip(("targets", "targets_segments", "targets_positions"), targets, strict=True))
    texts = texts if targets_length else {}
    return {"ends": ends, **texts, "samples": np.concatenate([samples for samples, _ in utterances])}
