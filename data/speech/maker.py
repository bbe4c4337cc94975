"""Prepares a cache of speech: samples of 16 bits at 16 kHz, and the tokens of their texts.

A cache holds `train/TASK.array_record`, rows of one or several utterances (`data.speech.config.SpeechData.stored`);
`validation.array_record` and `test.array_record`, an utterance a row, with its text, language and task as
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
from data.cache_maker import RecordedMaker
from data.packages import weights
from data.packages.fetch import Package
from data.reading import media, packing
from data.reading.examples import record_of, unpack
from data.reading.files import in_windows
from data.reading.tally import Tally
from data.speech import pseudo_labels, sound, sources
from data.speech.caches import CHARACTERS, SpeechCache
from data.speech.config import ALIGN, SpeechData
from data.speech.utterances import Utterance
from data.speech.vocabulary import VocabularyError, open_vocabulary, write_characters
from data.task import Example
from data.vocabularies import tokenizers

_WINDOW = 64  # utterances that are read at a time
_GAP = ALIGN * 160  # samples


class SpeechMaker(RecordedMaker[SpeechCache]):
    """Makes a cache of speech."""

    FORMAT = 2
    NOUN = "utterance"
    REQUIRED = True
    SOURCES = sources.PACKAGES

    def packages(self) -> tuple[Package, ...]:
        own, vocabulary = super().packages(), self.settings.vocabulary
        return own if vocabulary == CHARACTERS else (*own, weights.VOCABULARIES[vocabulary])

    def inputs(self) -> list[Any]:
        own = [*super().inputs(), *media.beside(self.location, self.settings.columns, media.SOUND)]
        if not self.settings.teacher:
            return own
        return [*own, paths.digest(pseudo_labels.texts_of(self.settings, self.root).digests(self.name))]

    def open(self) -> None:
        s = self.settings
        if self.location.scheme == "tfds":
            stages.quiet_tensorflow()
        self.splits = dict(sources.open_source(s, self.root))
        train = self.splits["train"]
        if s.labelled or s.teacher:
            train = self.splits["train"] = pseudo_labels.with_transcripts(s, train)
        if s.teacher:
            self.splits["train"] = pseudo_labels.read(s, self.root, train)
        if s.vocabulary == CHARACTERS:
            # A teacher's texts have letters and digits that people did not write.
            texts = self._texts(train) or self._texts(self.splits["train"])
            write_characters(texts, self.folder / tokenizers.FILE)
        else:
            weights.write_vocabulary(s.vocabulary, self.root / "packages", self.folder / tokenizers.FILE)
        self.vocabulary = open_vocabulary(self.folder)

    def _texts(self, utterances: Iterable[Utterance]) -> list[str]:
        return [text for u in utterances for task in self.settings.tasks if (text := u.texts.get(task))]

    def parts(self) -> Iterable[str]:
        return self.settings.tasks

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        """Yields the rows of a task, each with as many utterances as there is room for, first-fit."""
        s = self.settings
        stored = self._stored(s.slots)

        def examples() -> Iterator[packing.Example]:
            for _, samples, ids in self._usable(self.splits["train"], part, "train", tally):
                tally.others["samples"] += len(samples)
                yield np.pad(samples, (0, _aligned(len(samples)) - len(samples))), ids, np.array([len(samples)])

        def layout(chosen: list[packing.Example], lengths: Any) -> np.ndarray:
            row = _row([(samples[: size[0]], ids) for samples, ids, size in chosen], s.slots, s.targets_length)
            return np.frombuffer(record_of(row, stored), np.uint8)

        room = (round(s.seconds * sound.RATE) + _GAP, s.targets_length, s.slots)
        return (row.tobytes() for row in packing.pack(examples(), room, tally, layout))

    def held_out(self, split: str, tally: Tally) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yields the utterances of a held-out split, for every task, with their texts."""
        s, stored = self.settings, self._stored(1)
        utterances = list(self.splits[split]) if len(s.tasks) > 1 else self.splits[split]
        for task in s.tasks:
            for u, samples, ids in self._usable(utterances, task, split, tally):
                tally.examples += 1
                text = {"name": u.name, "language": u.language, "task": task, "text": u.texts.get(task, "")}
                yield record_of(_row([(samples, ids)], 1, s.targets_length), stored), text

    def _stored(self, slots: int) -> Any:
        s = self.settings
        return SpeechData(batch_size=1, seconds=s.seconds, slots=slots, targets_length=s.targets_length).stored()

    def _usable(
        self, utterances: Iterable[Utterance], task: str, split: str, tally: Tally
    ) -> Iterator[tuple[Utterance, np.ndarray, np.ndarray]]:
        """Yields (an utterance, its samples, its target), read by several threads, in order; counts those that are left out."""
        read = functools.partial(_read, self.settings, self.folder, task)
        for u, samples, target in in_windows(read, utterances, _WINDOW):
            if samples is None:
                tally.leave_out(u.name, target)
            elif why := self.contents.why_copied(samples.tobytes(), split):
                tally.leave_out(u.name, why)
            else:
                yield u, samples, target

    def show(self, part: str, record: bytes) -> str:
        s = self.settings
        row = unpack(np.frombuffer(record, np.uint8), self._stored(s.slots))
        ends = row["ends"][row["ends"] > 0]
        lengths = ", ".join(f"{length / sound.RATE:.1f} s" for length in np.diff(ends, prepend=0))
        numbers = row["targets_segments"] if s.targets_length else np.zeros(0)
        texts = [self.vocabulary.decode(row["targets"][numbers == n].tolist()) for n in range(1, len(ends) + 1)]
        return f"sounds of {lengths}: {' | '.join(map(repr, texts))}" if s.targets_length else f"sounds of {lengths}"

    def counts(self, part: str, tally: Tally) -> dict[str, int]:
        return {**super().counts(part, tally), "seconds": round(tally.others["samples"] / sound.RATE)}

    def manifest(self) -> dict[str, Any]:
        return {**super().manifest(), "vocabulary": self.vocabulary.size, "target_vocabulary": self.vocabulary.size}


@functools.cache
def _vocabulary(folder: Path) -> Any:
    return open_vocabulary(folder)


def _read(settings: SpeechCache, folder: Path, task: str, u: Utterance) -> tuple[Utterance, np.ndarray | None, Any]:
    """Returns an utterance, its samples of 16 bits and its target; None and why in place of both where it cannot be used."""
    text, limit = u.texts.get(task), round(settings.seconds * sound.RATE)
    plain = dataclasses.replace(u, read=_nothing)  # what reads it may be no plain data
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
        return plain, None, str(error)
    return plain, sound.to_pcm(samples), np.array(target, np.int32)


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


MAKERS = {SpeechCache: SpeechMaker}
