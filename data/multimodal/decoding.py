"""Held-out pictures and sounds as a model names or writes them down, scored by source and language."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from data.config import Decode
from data.decoding import PREFIX, Decoding, Scores
from data.features import Features, slots
from data.multimodal.config import MultimodalData
from data.multimodal.vocabulary import Languages
from data.reading import caches
from data.reading.examples import StoredExamples
from data.scores import chrf
from data.speech import metrics
from data.task import Example

_COLUMNS = ("chrf", "exact", "wer")
MEANINGS = metrics.MEANINGS | {
    "exact": "the share of texts that are written as the reference is, but for case",
    "most frequent text": "the training text that is most frequent of the source and language",
    "nearest picture": "the text of the training picture that is nearest by its pixels",
    "nearest to the model": "the text of the training picture whose vector, by the model, is nearest",
}


@dataclasses.dataclass(frozen=True)
class NamedExample:
    """A held-out thing: its place in the split, where it is from, and its text in a language."""

    split: str
    at: int
    name: str
    source: str
    language: str
    text: str


class MultimodalDecoding(Decoding[NamedExample]):
    """Pictures and sounds, and the texts that a model makes of them in the languages asked for.

    Args:
      data: the configuration.
      cache: with the pictures and sounds.
      vocabulary: the folder whose vocabulary the model writes in.
      rows: returns what a model gets of a split's first things, by cache, split and their number.
    """

    def __init__(self, data: MultimodalData, cache: Path, vocabulary: Path, rows: Callable[[Path, str, int], StoredExamples]):
        self.data, self.cache, self._rows = data, cache, rows
        self._read: dict[str, StoredExamples] = {}  # splits, each opened once
        self.languages = Languages(vocabulary)
        self.vocab, self.eos, self.pad = self.languages.size, self.languages.eos, self.languages.pad
        features = data.alone.features()
        self.source = {k: f for k, f in features.items() if not k.startswith("targets")} | {PREFIX: slots(1)}

    def examples(self, cache: Path, config: Decode) -> list[NamedExample]:
        """Returns things of a split; with a limit, as many of each source, spread evenly over it and its languages."""
        held_out = [NamedExample(config.split, at, **fields) for at, fields in enumerate(caches.examples(cache, config.split))]
        self._read[config.split] = self._rows(self.cache, config.split, len(held_out))
        if not config.limit:
            return held_out
        sources: dict[str, list[NamedExample]] = {}
        for e in held_out:
            sources.setdefault(e.source, []).append(e)
        share = max(1, config.limit // len(sources))
        chosen = []
        for some in sources.values():
            step = max(1, len(some) // share)
            # A step that divides the number of languages would leave most of them out.
            chosen += some[:: step + (step % 2 == 0)][:share]
        return chosen[: config.limit]

    def encode(self, example: NamedExample) -> Example:
        row = self._read[example.split][example.at]
        prefix = {PREFIX: np.array(self.languages.prefix(example.language), np.int32)}
        return {name: row[name] for name in self.source if name != PREFIX} | prefix

    def decode(self, ids: Sequence[int]) -> str:
        return self.languages.decode(ids)

    def scores(self, examples: Sequence[NamedExample], outputs: Sequence[str]) -> Scores:
        """Returns the scores of all, and of each source and language."""
        parts: dict[str, list[tuple[str, str]]] = {}
        for e, output in zip(examples, outputs, strict=True):
            parts.setdefault(e.source, []).append((e.text, output))
            parts.setdefault(f"{e.source}/{e.language}", []).append((e.text, output))
        every = [(e.text, output) for e, output in zip(examples, outputs, strict=True)]
        return {"all": _scores(every) | {"examples": float(len(every))}} | {k: _scores(v) for k, v in sorted(parts.items())}

    @property
    def names(self) -> list[str]:
        return list(self.scores([], [])["all"])

    def scalars(self, scores: Scores) -> dict[str, float]:
        """Returns the scores of all, and chrF of each source."""
        sources = {f"{name}/chrf": row["chrf"] for name, row in scores.items() if name != "all" and "/" not in name}
        return dict(scores["all"]) | sources

    def baselines(self, examples: Sequence[NamedExample], decoder: Callable[[Sequence[NamedExample]], list[str]]) -> Scores:
        """Returns the scores of the most frequent training text of each source and language, and of the text of the training
        picture that is nearest by its pixels; of all, and of each source and language."""
        del decoder
        texts = [self._training.frequent.get((e.source, e.language), "") for e in examples]
        return self._compared("most frequent text", examples, texts) | self._nearest(
            "nearest picture", examples, lambda places: np.stack([_thumbnail(place.content) for place in places])
        )

    @property
    def compared(self) -> Features:
        return {name: feature for name, feature in self.source.items() if name in ("images", "images_segments")}

    def neighbours(self, examples: Sequence[NamedExample], vectors: Callable[[Sequence[Example]], np.ndarray]) -> Scores:
        """Returns the scores of the text of the training picture that is nearest by the angle between a model's vectors."""

        def directions(places: Sequence[_Place]) -> np.ndarray:
            embedded = vectors([{name: row[name] for name in self.compared} for row in (p.rows[p.at] for p in places)])
            return embedded / np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-12)

        return self._nearest("nearest to the model", examples, directions)

    @cached_property
    def _training(self) -> "_Training":
        frequent, pictures, places = {}, {}, dict[bytes, tuple[int, _Place]]()
        for part, about in caches.read_manifest(self.cache)["parts"].items():
            source, _, language = part.partition("-")
            records = self._rows(self.cache, f"train/{part}", about["rows"])
            rows = [records.row(i) for i in range(len(records))]
            texts = [self.decode(row["targets"][row["targets"] > 0][1:].tolist()) for row in rows]
            frequent[source, language] = Counter(texts).most_common(1)[0][0]
            if rows and rows[0]["form"] == 1 and self.data.height:
                for at, row in enumerate(rows):
                    places.setdefault(row["content"].tobytes(), (len(places), _Place(records, at)))
                pictures[language] = np.array([places[row["content"].tobytes()][0] for row in rows]), texts
        return _Training(frequent, pictures, [place for _, place in places.values()])

    def _nearest(
        self, name: str, examples: Sequence[NamedExample], vectors: Callable[[Sequence["_Place"]], np.ndarray]
    ) -> Scores:
        """Returns the scores of the text, in its language, of the training picture that is nearest to each picture."""
        known = self._training
        seen = [(e, _Place(self._read[e.split], e.at)) for e in examples if e.language in known.pictures]
        seen = [(e, place) for e, place in seen if place.rows.row(place.at)["form"] == 1]
        if not seen:
            return {}
        known_ND, texts = vectors(known.places), []
        for (e, _), asked_D in zip(seen, vectors([place for _, place in seen]), strict=True):
            numbers, names = known.pictures[e.language]
            texts.append(names[int(np.argmin(np.square(known_ND[numbers] - asked_D).sum(axis=1)))])
        return self._compared(name, [e for e, _ in seen], texts)

    def _compared(self, name: str, examples: Sequence[NamedExample], texts: Sequence[str]) -> Scores:
        """Returns the scores of a baseline under its name, and those of each source and language under "NAME/PART"."""
        scores = self.scores(examples, texts)
        return {name: scores["all"]} | {f"{name}/{part}": row for part, row in scores.items() if "/" in part}

    def table(self, scores: Scores, *, details: bool = False) -> str:
        rows = {k: v for k, v in scores.items() if k != "baselines"} | scores.get("baselines", {})
        rows = {name: row for name, row in rows.items() if details or "/" not in name}
        lines = [f"{'':24}" + "".join(f"{column:>10}" for column in _COLUMNS)]
        lines += [f"{name:24}" + "".join(f"{row[column]:10.3f}" for column in _COLUMNS) for name, row in rows.items()]
        return "\n".join(lines)


def _scores(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Returns chrF, the share of texts that are written exactly, letters' case aside, and the word error rate."""
    if not pairs:
        return {"chrf": 0.0, "exact": 0.0, "wer": 0.0}
    texts, outputs = map(list, zip(*pairs, strict=True))
    exact = float(np.mean([text.lower() == output.lower() for text, output in pairs]))
    return chrf(texts, outputs) | {"exact": exact, "wer": metrics.error_rates(texts, outputs)["wer"]}


@dataclasses.dataclass(frozen=True)
class _Place:
    """A picture's place: a row of a file."""

    rows: StoredExamples
    at: int

    @property
    def content(self) -> bytes:
        return self.rows.row(self.at)["content"].tobytes()


@dataclasses.dataclass(frozen=True)
class _Training:
    """A summary of the training split: the most frequent text by source and language; by language the numbers of the
    pictures and their texts; each picture once."""

    frequent: dict[tuple[str, str], str]
    pictures: dict[str, tuple[np.ndarray, list[str]]]
    places: list[_Place]


def _thumbnail(encoded: bytes) -> np.ndarray:
    """Returns a picture of 16 x 16 as a vector."""
    from data.images import pictures

    image = pictures.cut_out(encoded, 3, lambda width, height: (0.0, 0.0, float(width), float(height)), 16, 16)
    return np.asarray(image, np.float32).reshape(-1) / 255
