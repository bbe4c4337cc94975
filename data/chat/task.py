"""Conversations as a task: packed rows in a checkpoint's chat template, of which the assistant's turns are learned."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.chat import encoding
from data.chat.config import ChatData, PreferenceData
from data.reading import packing
from data.reading.caches import examples
from data.reading.tally import Tally
from data.task import Example, HeldOutExamples, Sum
from data.text.task import WeightedTask
from data.vocabularies.chat_templates import ChatEncoder
from models.families import ModelConfig


class ChatTask(WeightedTask):
    """Packed rows of conversations; held-out ones are scored by what the assistant says."""

    data: ChatData

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's conversations, those that have something to learn."""
        encoder, tally = ChatEncoder(vocabulary), Tally()
        made: Iterator[packing.Example] = encoding.conversations(examples(cache, split, limit), encoder, self.data.length, tally)
        rows = self._augmented_once(packing.pack_weighted(made, self.data.length, tally), None)
        return HeldOutExamples(rows, tally.examples)

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        (part,) = manifest["parts"].values()
        return [
            f"Fine-tuned on {part['examples']:,} conversations (`{manifest['cache']}`, fingerprint "
            f"{manifest['fingerprint'][:16]}): {part['learned']:,} tokens of the assistant, in the chat template of the weights "
            "that it started from."
        ]


class PreferenceTask(ChatTask):
    """Packed rows of preference pairs; of held-out ones, how many the model's own margins tell right."""

    packed_with = ("length", "pairs")

    data: PreferenceData

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        length, sides = self.data.length, 2 * self.data.pairs
        each = length // sides
        at = np.arange(length, dtype=np.int32)
        inside = at < each * sides
        return {
            "tokens": super().synthetic(rng, model)["tokens"] * inside,
            "segments": (at // each + 1) * inside,
            "positions": at % each * inside,
            "loss_weights": (at % each >= each // 2).astype(np.int32) * inside,
            "reference": rng.normal(-each, 1, (self.data.pairs, 2)).astype(np.float32),
        }

    @property
    def augmentation(self) -> str:
        return f"{self.data.beta:g}"

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        """Returns a row with the weight of each of its pairs."""
        pairs = 2 * np.arange(1, self.data.pairs + 1) <= row["segments"].max()
        return row | {"betas": np.where(pairs, self.data.beta, 0).astype(np.float32)}

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's pairs, those that a row has room for."""
        encoder, tally = ChatEncoder(vocabulary), Tally()
        made = encoding.pairs(examples(cache, split, limit), encoder, self.data.length, tally)
        rows = encoding.rows_of_pairs(made, self.data.length, self.data.pairs, tally)
        return HeldOutExamples([self.augment(row, np.random.default_rng(0), None) for row in rows], tally.examples)

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns nothing: the model's metrics say it all."""
        return {}

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"preference_loss": True, "win_rate": False, "margin": False}

    @property
    def meanings(self) -> Mapping[str, str]:
        return {
            "preference_loss": "of direct preference optimization; log 2, 0.693, where the model is its reference yet",
            "win_rate": "the share of pairs whose chosen answer has gained more than the rejected one, against the reference",
            "margin": "how much more it has gained, as beta times the difference of log-probabilities",
        }

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        (part,) = manifest["parts"].values()
        return [
            f"Tuned on {part['examples']:,} preference pairs (`{manifest['cache']}`, fingerprint {manifest['fingerprint'][:16]}) "
            f"by direct preference optimization, beta {self.data.beta:g}, with what it started from as the reference."
        ]


def task(data: ChatData) -> ChatTask:
    """Returns the task of a configuration of this kind."""
    return PreferenceTask(data) if isinstance(data, PreferenceData) else ChatTask(data)
