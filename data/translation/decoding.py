"""Held-out sentences as a model translates them, and their scores per language and per amount of training data."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.decoding import PREFIX, Decoding, Scores
from data.features import positions, slots
from data.reading import caches
from data.scores import MEANINGS as STRING_SCORES
from data.scores import bleu, chrf
from data.task import Example
from data.translation.config import Translate
from data.translation.holdout import PLACEHOLDER
from data.translation.vocabularies import ENGLISH, open_vocabularies

BUCKETS = ("high", "middle", "low")
COLUMNS = ("stripped_bleu", "bleu", "stripped_chrf", "chrf")
MEANINGS = STRING_SCORES | {
    "stripped_bleu": "BLEU of lower-case words alone, without placeholders, tags and punctuation, which a copy has right",
    "stripped_chrf": "chrF of the same words",
    "buckets": "high, middle and low resource are thirds of the languages by their pairs in training; unseen had none",
    "source copied": "the source itself in place of a translation",
    "other sources": "the model's output for another source of the language: what it scores without reading the source",
}
_LENGTH = 256  # tokens of a source where no manifest says how long a row is
_MARKS = re.compile(r"[^\w\s]|_")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of a language, its reference where there is one, and the language to translate it into."""

    lang: str
    source: str
    target: str = ""
    to: str = ENGLISH


class TranslationDecoding(Decoding[Sentence]):
    """Sentences with the token of their language, and outputs in the language asked for, English by default.

    Args:
      folder: with vocabularies (data.translation.vocabularies): a prepared cache, a release, or a Hugging Face folder. Its
        manifest, where it has one, says how long a row is and how much of each language was trained on.
    """

    def __init__(self, folder: Path):
        self.vocabularies = open_vocabularies(folder)
        manifest = caches.read_manifest(folder) if (folder / "manifest.json").exists() else {}
        self.languages: Mapping[str, Any] = manifest.get("languages", {})
        self.length = manifest.get("source_length", _LENGTH)
        self.source = positions(self.length, "inputs") | {PREFIX: slots(1)}
        self.vocab, self.eos = self.vocabularies.size, self.vocabularies.eos_id

    def example(self, lang: str, text: str, to: str = "") -> Sentence:
        """Returns a sentence without a reference; `to` is the vocabularies' own language by default, or English."""
        return Sentence(lang, text, to=to or self.vocabularies.default)

    def examples(self, cache: Path, config: Translate) -> list[Sentence]:
        return read_sentences(cache, config.split, config.per_language)[: config.limit or None]

    def encode(self, example: Sentence) -> Example:
        """Returns the language's token, the text's and the end, at most as many as a row has: the text is cut."""
        rows = {
            "inputs": self.vocabularies.source(example.lang, example.source, self.length),
            PREFIX: self.vocabularies.begin(example.to),
        }
        arrays = {name: np.zeros(feature.shape, np.int32) for name, feature in self.source.items()}
        for name, ids in rows.items():
            arrays[name][: len(ids)] = ids
        return arrays

    def decode(self, ids: Sequence[int]) -> str:
        return self.vocabularies.decode(ids)

    def scores(self, examples: Sequence[Sentence], outputs: Sequence[str]) -> Scores:
        """Returns the scores of all sentences, and under "buckets" and "languages" those of each bucket and language."""
        bucket_of = buckets(self.languages)

        def score_some(indices: Iterable[int]) -> dict[str, float]:
            indices = list(indices)
            references = [examples[i].target for i in indices]
            return score(references, [outputs[i] for i in indices]) | {"sentences": len(indices)}

        def score_parts(name_of: Callable[[Sentence], str]) -> dict[str, dict[str, float]]:
            names = [name_of(example) for example in examples]
            return {name: score_some(i for i, other in enumerate(names) if other == name) for name in sorted(set(names))}

        return {
            "all": score_some(range(len(examples))),
            "buckets": score_parts(lambda example: bucket_of.get(example.lang, "unseen")),
            "languages": score_parts(lambda example: example.lang),
        }

    @property
    def names(self) -> list[str]:
        known = sorted(set(buckets(self.languages).values()))
        return [*score([""], [""]), "sentences", *(f"stripped_bleu_{bucket}" for bucket in known)]

    def scalars(self, scores: Scores) -> dict[str, float]:
        """Returns the scores of all sentences, the stripped BLEU of each bucket, and three scores of each language."""
        scalars = dict(scores["all"])
        scalars |= {f"stripped_bleu_{name}": row["stripped_bleu"] for name, row in scores["buckets"].items()}
        for lang, row in scores["languages"].items():
            scalars |= {f"language/{lang}/{name}": row[name] for name in ("bleu", "chrf", "stripped_bleu")}
        return scalars

    def baselines(self, examples: Sequence[Sentence], decoder: Callable[[Sequence[Sentence]], list[str]]) -> Scores:
        """Returns the scores of copying the source, and of translating other sources of the same language."""
        references = [example.target for example in examples]
        return {
            "source copied": score(references, [example.source for example in examples]),
            "other sources": score(references, decoder(shuffled(examples))),
        }

    def table(self, scores: Scores, *, details: bool = False) -> str:
        rows = {"all": scores["all"]}
        rows |= {f"{name} resource": scores["buckets"][name] for name in BUCKETS if name in scores["buckets"]}
        rows |= scores.get("baselines", {}) | (scores["languages"] if details else {})
        lines = [f"{'':16}" + "".join(f"{column:>15}" for column in COLUMNS)]
        lines += [f"{name:16}" + "".join(f"{row[column]:15.2f}" for column in COLUMNS) for name, row in rows.items()]
        return "\n".join(lines)


def read_sentences(cache: Path, split: str, per_language: int = 0) -> list[Sentence]:
    """Returns the held-out sentences of a cache's split; of each language the first `per_language`, or all if that is 0."""
    count: dict[str, int] = {}
    sentences = []
    for fields in caches.examples(cache, split):
        sentence = Sentence(**fields)
        count[sentence.lang] = count.get(sentence.lang, 0) + 1
        if not per_language or count[sentence.lang] <= per_language:
            sentences.append(sentence)
    return sentences


def strip(text: str) -> str:
    """Returns lower-cased words alone: without placeholders, tags, entities and punctuation, which a copy has right."""
    return " ".join(_MARKS.sub(" ", PLACEHOLDER.sub(" ", text)).lower().split())


def score(references: Sequence[str], outputs: Sequence[str]) -> dict[str, float]:
    """Returns BLEU and chrF, each raw and on stripped text, 0 to 100."""
    stripped = [strip(text) for text in references], [strip(text) for text in outputs]
    scores = bleu(references, outputs) | chrf(references, outputs)
    return scores | {f"stripped_{k}": v for f in (bleu, chrf) for k, v in f(*stripped).items()}


def buckets(languages: Mapping[str, Any]) -> dict[str, str]:
    """Returns each language's bucket, "high", "middle" or "low": thirds by number of training pairs."""
    ranked = sorted(languages, key=lambda name: (-languages[name]["pairs"], name))
    third = -(-len(ranked) // 3)
    return {name: BUCKETS[i // third] for i, name in enumerate(ranked)}


def shuffled(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Returns the same references with other sources of the same language, as a model scores that ignores its input.

    Sources move on by half their language's sentences, so that none keeps its own where a language has several.
    """
    by_lang: dict[str, list[int]] = {}
    for i, sentence in enumerate(sentences):
        by_lang.setdefault(sentence.lang, []).append(i)
    moved = list(sentences)
    for places in by_lang.values():
        for at, i in enumerate(places):
            other = sentences[places[(at + max(1, len(places) // 2)) % len(places)]]
            moved[i] = dataclasses.replace(sentences[i], source=other.source)
    return moved
