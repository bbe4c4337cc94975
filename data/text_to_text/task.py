"""Labelled examples as text in, text out, as a task: packed rows of two sides; held-out examples are decoded, or have a loss."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.labelled import metrics
from data.reading.caches import cache_folder, check_fields, check_vocabularies, examples, read_manifest, smallest_vocabulary
from data.reading.examples import unpack
from data.reading.tally import Tally
from data.task import Example, HeldOutExamples, Task
from data.text_to_text import texts
from data.text_to_text.config import TextToTextData
from data.text_to_text.decoding import TextToTextDecoding
from models.families import ModelConfig


class TextToTextTask(Task[TextToTextData]):
    """Packed rows of inputs and targets; an example's segments have the same number on both sides."""

    packed_with = ("inputs_length", "targets_length")

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, *self.packed_with)
        check_vocabularies(model, manifest)

    def synthetic_key(self, model: ModelConfig) -> str:
        return str(smallest_vocabulary(model))

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        row, vocabulary = {}, smallest_vocabulary(model)
        for side, length in self.data.lengths.items():
            row[side] = rng.integers(3, vocabulary, length, dtype=np.int32)
            row[f"{side}_segments"] = np.ones(length, np.int32)
            row[f"{side}_positions"] = np.arange(length, dtype=np.int32)
        return row

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's rows, for the loss of the targets; an example whose targets are too long is left out."""
        name, raw = read_manifest(cache)["task"], list(examples(cache, split, limit))
        tally = Tally()
        packed = texts.packed(name, raw, texts.Encoder(vocabulary), (self.data.inputs_length, self.data.targets_length), tally)
        return HeldOutExamples([unpack(row, self.data.stored()) for row in packed], tally.examples)

    def decoding(self, vocabulary: Path) -> TextToTextDecoding:
        folder = cache_folder(self.data)
        # Where the cache is not, as beside a release on another machine, texts can be written, and nothing can be scored.
        is_there = (folder / "manifest.json").exists()
        manifest = read_manifest(folder) if is_there else {"task": "", "form": texts.TEXT, "labels": []}
        return TextToTextDecoding(manifest, vocabulary, self.data.inputs_length)

    @property
    def directions(self) -> Mapping[str, bool]:
        scores = ("accuracy", "f1", "macro_f1", "matthews", "exact_match")
        return dict.fromkeys(scores, False) | {"invalid": True}

    @property
    def meanings(self) -> Mapping[str, str]:
        return metrics.MEANINGS

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        count = sum(part["examples"] for part in manifest["parts"].values())
        labels = f" It writes: {', '.join(manifest['labels'])}." if manifest["labels"] else ""
        return [
            f"Fine-tuned on {count:,} examples of `{manifest['task']}` as text in, text out "
            f"(fingerprint {manifest['fingerprint'][:16]}).{labels}"
        ]


task = TextToTextTask
