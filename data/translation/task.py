"""Translated pairs as a task: packed rows on two sides, mixed by language."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.reading.caches import check_fields, check_vocabularies, smallest_vocabulary
from data.task import Example, Task
from data.translation.config import TranslationData
from data.translation.decoding import BUCKETS, TranslationDecoding
from models.families import ModelConfig


class TranslationTask(Task[TranslationData]):
    """Packed rows of translated pairs. Held-out sentences are translated, not scored as rows."""

    @property
    def temperature(self) -> float:
        return self.data.temperature

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, "source_length", "target_length")
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

    def decoding(self, vocabulary: Path) -> TranslationDecoding:
        return TranslationDecoding(vocabulary)

    @property
    def directions(self) -> Mapping[str, bool]:
        scores = ("bleu", "chrf", "stripped_bleu", "stripped_chrf")
        return dict.fromkeys((*scores, *(f"stripped_bleu_{bucket}" for bucket in (*BUCKETS, "unseen"))), False)

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        pairs = sum(language["pairs"] for language in manifest["languages"].values())
        return [
            f"Translates {len(manifest['languages'])} languages into English: {', '.join(sorted(manifest['languages']))}.",
            "",
            f"Trained on {pairs:,} pairs of software messages (`{manifest['catalogue']}`, fingerprint "
            f"{manifest['fingerprint'][:16]}): short strings of user interfaces, by volunteers. Other text is out of domain.",
            "",
            "    python -m scripts.translate --checkpoint THIS_FOLDER --from de 'Passwort vergessen?'",
        ]


task = TranslationTask
