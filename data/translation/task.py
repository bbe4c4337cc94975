"""Translated pairs as a task: packed rows on two sides, mixed by language."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.reading import packing
from data.reading.caches import check_fields, check_vocabularies, smallest_vocabulary
from data.reading.examples import unpack
from data.reading.tally import Tally
from data.task import Example, HeldOutExamples, Task
from data.translation.config import TranslationData
from data.translation.decoding import BUCKETS, MEANINGS, Sentence, TranslationDecoding, read_sentences
from data.translation.vocabularies import open_vocabularies
from models.families import ModelConfig


class TranslationTask(Task[TranslationData]):
    """Packed rows of translated pairs. Held-out sentences are translated, or scored by their loss as packed rows."""

    packed_with = ("source_length", "target_length")

    @property
    def temperature(self) -> float:
        return self.data.temperature

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, *self.packed_with)
        check_vocabularies(model, manifest)

    def parts(self, manifest: Mapping[str, Any]) -> dict[str, int]:
        return {name: language["pairs"] for name, language in manifest["languages"].items() if language["rows"]}

    def rows(self, manifest: Mapping[str, Any]) -> int:
        return sum(language["rows"] for language in manifest["languages"].values())

    def synthetic_key(self, model: ModelConfig) -> str:
        return str(smallest_vocabulary(model))

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        vocabulary = smallest_vocabulary(model)
        row: Example = {}
        for side, length in (("inputs", self.data.source_length), ("targets", self.data.target_length)):
            row[side] = rng.integers(3, vocabulary, length, dtype=np.int32)
            row[f"{side}_segments"] = np.ones(length, np.int32)
            row[f"{side}_positions"] = np.arange(length, dtype=np.int32)
        return row

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's sentences, of a limit as many of each language as of any other."""
        sentences = read_sentences(cache, split)
        if limit:
            per_language = -(-limit // len({sentence.lang for sentence in sentences}))
            sentences = read_sentences(cache, split, per_language)[:limit]
        return self.packed(sentences, vocabulary)

    def packed(self, sentences: Sequence[Sentence], vocabulary: Path) -> HeldOutExamples:
        """Returns sentences in packed rows; those that are longer than a row are left out."""
        vocabularies, tally = open_vocabularies(vocabulary), Tally()
        pairs = (
            (np.array(vocabularies.source(s.lang, s.source), np.int32), np.array(vocabularies.target(s.to, s.target), np.int32))
            for s in sentences
        )
        records = list(packing.pack(pairs, (self.data.source_length, self.data.target_length), tally))
        return HeldOutExamples([unpack(record, self.data.stored()) for record in records], tally.examples)

    def decoding(self, vocabulary: Path) -> TranslationDecoding:
        return TranslationDecoding(vocabulary)

    @property
    def directions(self) -> Mapping[str, bool]:
        scores = ("bleu", "chrf", "stripped_bleu", "stripped_chrf")
        return dict.fromkeys((*scores, *(f"stripped_bleu_{bucket}" for bucket in (*BUCKETS, "unseen"))), False)

    @property
    def meanings(self) -> Mapping[str, str]:
        return MEANINGS

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        languages, pairs = manifest["languages"], sum(language["pairs"] for language in manifest["languages"].values())
        names, fingerprint = ", ".join(sorted(languages)), manifest["fingerprint"][:16]
        if to := manifest.get("to"):  # a user's own
            into, example = repr(to), sorted(languages)[0]
            origin = f"`{manifest['cache']}` (fingerprint {fingerprint})."
        else:
            into, example = "English", "de"
            origin = (
                f"software messages (`{manifest['catalogue']}`, fingerprint {fingerprint}): short strings of user interfaces, by "
                "volunteers. Other text is out of domain."
            )
        return [
            f"Translates {len(languages)} languages into {into}: {names}.",
            "",
            f"Trained on {pairs:,} pairs of {origin}",
            "",
            f"    python -m scripts.translate --checkpoint THIS_FOLDER --from {example} 'Passwort vergessen?'",
        ]


task = TranslationTask
