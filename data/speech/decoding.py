"""Held-out speech as a model transcribes or translates it, and its error rates, by task and language."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.config import Decode
from data.decoding import Decoding, Scores
from data.reading import caches
from data.reading.examples import StoredExamples
from data.speech import metrics, sound
from data.speech.config import SpeechData
from data.speech.vocabulary import open_vocabulary
from data.task import Example

_COLUMNS = ("wer", "cer", "chrf", "bleu")


@dataclasses.dataclass(frozen=True)
class HeldOutUtterance:
    """A held-out utterance: its place in the split, and what was said, or that in English."""

    split: str
    at: int
    name: str
    language: str
    task: str
    text: str


class SpeechDecoding(Decoding[HeldOutUtterance]):
    """Utterances, and the texts that a model makes of them.

    Args:
      data: the configuration.
      cache: with the utterances.
      vocabulary: the folder whose vocabulary the model writes in.
      rows: returns what a model reads of a split's first utterances, by cache, split and their number.
    """

    def __init__(self, data: SpeechData, cache: Path, vocabulary: Path, rows: Callable[[Path, str, int], StoredExamples]):
        self.cache, self._rows = cache, rows
        self._read: dict[str, StoredExamples] = {}  # splits, each opened once
        self.vocabulary = open_vocabulary(vocabulary)
        self.vocab, self.eos, self.pad = self.vocabulary.size, self.vocabulary.eos, self.vocabulary.pad
        features = data.features()
        self.source = {name: features[name] for name in ("frames", "frames_segments")}

    def examples(self, cache: Path, config: Decode) -> list[HeldOutUtterance]:
        read = list(caches.examples(cache, config.split, config.limit))
        self._read[config.split] = self._rows(self.cache, config.split, len(read))
        return [HeldOutUtterance(config.split, at, **fields) for at, fields in enumerate(read)]

    def encode(self, example: HeldOutUtterance) -> Example:
        row = self._read[example.split][example.at]
        return {name: row[name] for name in self.source}

    def samples(self, example: HeldOutUtterance) -> np.ndarray:
        """Returns the samples of an utterance [N], float32 at 16 kHz (data.decoding.HasSounds)."""
        row = self._read[example.split].row(example.at)
        return sound.from_pcm(row["samples"][: row["ends"][0]])

    def decode(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids)

    def scores(self, examples: Sequence[HeldOutUtterance], outputs: Sequence[str]) -> Scores:
        """Returns the scores of transcripts, or of translations where there are none; each task's under its name."""
        parts: Scores = {}
        for task in ("transcribe", "translate"):
            pairs = [(e.text, output) for e, output in zip(examples, outputs, strict=True) if e.task == task]
            if pairs:
                parts[task] = metrics.scores([text for text, _ in pairs], [output for _, output in pairs], task)
        first = next(iter(parts.values()), metrics.scores([], [], "transcribe"))
        return {"all": first | {"examples": float(len(examples))}, **parts}

    @property
    def names(self) -> list[str]:
        return [*self.scores([], [])["all"]]

    def scalars(self, scores: Scores) -> dict[str, float]:
        """Returns the scores of transcripts, and those of translations under "translate/"."""
        other = scores.get("translate", {}) if "transcribe" in scores else {}
        return dict(scores["all"]) | {f"translate/{name}": value for name, value in other.items()}

    def table(self, scores: Scores, *, details: bool = False) -> str:
        del details
        lines = [f"{'':16}" + "".join(f"{column:>10}" for column in _COLUMNS)]
        for name in ("transcribe", "translate"):
            if row := scores.get(name):
                lines.append(f"{name:16}" + "".join(_cell(row.get(column), column) for column in _COLUMNS))
        return "\n".join(lines)


def _cell(value: Any, column: str) -> str:
    if value is None:
        return f"{'':10}"
    return f"{value:10.2f}" if column in ("chrf", "bleu") else f"{value:10.3f}"
