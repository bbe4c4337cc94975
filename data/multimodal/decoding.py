"""Held-out pictures and sounds as a model names or writes them down, scored by source and language."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data.config import Decode
from data.decoding import PREFIX, Decoding, Scores
from data.features import slots
from data.multimodal.config import MultimodalData
from data.multimodal.vocabulary import Languages
from data.reading import caches
from data.reading.examples import StoredExamples
from data.speech.metrics import error_rates
from data.task import Example
from data.translation import metrics

_COLUMNS = ("chrf", "exact", "wer")


@dataclasses.dataclass(frozen=True)
class Named:
    """A held-out thing: its place in the split, where it is from, and its text in a language."""

    split: str
    at: int
    name: str
    source: str
    language: str
    text: str


class MultimodalDecoding(Decoding[Named]):
    """Pictures and sounds, and the texts that a model makes of them in the languages asked for.

    Args:
      data: the configuration.
      cache: with the pictures and sounds.
      vocabulary: the folder whose vocabulary the model writes in.
      rows: returns what a model gets of a split's first things, by cache, split and their number.
    """

    def __init__(
        self, data: MultimodalData, cache: Path, vocabulary: Path, rows: Callable[[Path, str, int], StoredExamples]
    ):
        self.data, self.cache, self._rows = data, cache, rows
        self._read: dict[str, StoredExamples] = {}  # splits, each opened once
        self.languages = Languages(vocabulary)
        self.vocab, self.eos, self.pad = self.languages.size, self.languages.eos, self.languages.pad
        features = data.features()
        self.source = {k: f for k, f in features.items() if not k.startswith("targets")} | {PREFIX: slots(1)}

    def examples(self, cache: Path, config: Decode) -> list[Named]:
        """Returns things of a split; with a limit, so many that are spread evenly over it, sources and languages alike."""
        found = [Named(config.split, at, **fields) for at, fields in enumerate(caches.examples(cache, config.split))]
        self._read[config.split] = self._rows(self.cache, config.split, len(found))
        step = max(1, len(found) // config.limit) if config.limit else 1
        # A step that divides the number of languages would leave most of them out.
        return found[:: step + (step % 2 == 0)][: config.limit or None]

    def encode(self, example: Named) -> Example:
        row = self._read[example.split][example.at]
        prefix = {PREFIX: np.array(self.languages.prefix(example.language), np.int32)}
        return {name: row[name] for name in self.source if name != PREFIX} | prefix

    def decode(self, ids: Sequence[int]) -> str:
        return self.languages.decode(ids)

    def scores(self, examples: Sequence[Named], outputs: Sequence[str]) -> Scores:
        """Returns the scores of all, and of each source and language."""
        parts: dict[str, list[tuple[str, str]]] = {}
        for e, output in zip(examples, outputs, strict=True):
            parts.setdefault(e.source, []).append((e.text, output))
            parts.setdefault(f"{e.source}/{e.language}", []).append((e.text, output))
        every = [(e.text, output) for e, output in zip(examples, outputs, strict=True)]
        return {"all": _scores(every) | {"examples": float(len(every))}} | {
            k: _scores(v) for k, v in sorted(parts.items())
        }

    @property
    def names(self) -> list[str]:
        return list(self.scores([], [])["all"])

    def scalars(self, scores: Scores) -> dict[str, float]:
        """Returns the scores of all, and chrF of each source."""
        sources = {f"{name}/chrf": row["chrf"] for name, row in scores.items() if name != "all" and "/" not in name}
        return dict(scores["all"]) | sources

    def baselines(self, examples: Sequence[Named], decoder: Callable[[Sequence[Named]], list[str]]) -> Scores:
        """Returns the scores of the most frequent training text of each source and language, and of the text of the training
        picture that is nearest by its pixels."""
        del decoder
        frequent, pictures = self._training()
        texts = [frequent.get((e.source, e.language), "") for e in examples]
        found = {"most frequent text": self.scores(examples, texts)["all"]}
        seen = [(e, text) for e, text in zip(examples, self._nearest(examples, pictures), strict=True) if text]
        if seen:
            found["nearest picture"] = self.scores(*map(list, zip(*seen, strict=True)))["all"]  # pyright: ignore[reportArgumentType]
        return found

    def _training(self) -> tuple[dict[tuple[str, str], str], dict[str, tuple[np.ndarray, list[str]]]]:
        """Returns (the most frequent text by source and language; by language the training pictures [N, D] and their texts)."""
        frequent, pictures = {}, {}
        for part, about in caches.read_manifest(self.cache)["parts"].items():
            source, _, language = part.partition("-")
            records = self._rows(self.cache, f"train/{part}", about["rows"])
            rows = [records.row(i) for i in range(len(records))]
            texts = [self.decode(row["targets"][row["targets"] > 0][1:].tolist()) for row in rows]
            frequent[source, language] = Counter(texts).most_common(1)[0][0]
            if rows and rows[0]["form"] == 1 and self.data.height:
                pictures[language] = np.stack([_thumbnail(row["content"].tobytes()) for row in rows]), texts
        return frequent, pictures

    def _nearest(self, examples: Sequence[Named], pictures: dict[str, tuple[np.ndarray, list[str]]]) -> list[str]:
        found = []
        for e in examples:
            row = self._read[e.split].row(e.at)
            if row["form"] != 1 or e.language not in pictures:
                found.append("")
                continue
            known, texts = pictures[e.language]
            place = np.argmin(np.square(known - _thumbnail(row["content"].tobytes())).sum(axis=1))
            found.append(texts[int(place)])
        return found

    def table(self, scores: Scores, *, details: bool = False) -> str:
        rows = {k: v for k, v in scores.items() if k != "baselines" and (details or "/" not in k)}
        rows |= scores.get("baselines", {})
        lines = [f"{'':24}" + "".join(f"{column:>10}" for column in _COLUMNS)]
        lines += [f"{name:24}" + "".join(f"{row[column]:10.3f}" for column in _COLUMNS) for name, row in rows.items()]
        return "\n".join(lines)


def _scores(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Returns chrF, the share of texts that are written exactly, letters' case aside, and the word error rate."""
    if not pairs:
        return {"chrf": 0.0, "exact": 0.0, "wer": 0.0}
    texts, outputs = map(list, zip(*pairs, strict=True))
    exact = float(np.mean([text.lower() == output.lower() for text, output in pairs]))
    return metrics.chrf(texts, outputs) | {"exact": exact, "wer": error_rates(texts, outputs)["wer"]}


def _thumbnail(encoded: bytes) -> np.ndarray:
    """Returns a picture of 16 x 16 as a vector."""
    from data.images import pictures

    image = pictures.cut_out(encoded, 3, lambda width, height: (0.0, 0.0, float(width), float(height)), 16, 16)
    return np.asarray(image, np.float32).reshape(-1) / 255
