"""Conversations as a task: packed rows in a checkpoint's chat template, of which the assistant's turns are learned."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.chat import encoding
from data.chat.config import ChatData
from data.chat.encoding import ChatEncoder, Counts
from data.dialog.encoding import rows_of
from data.reading import packing
from data.reading.caches import examples
from data.task import Example, HeldOutExamples, Sum
from data.text.task import TextTask
from models.families import ModelConfig


class ChatTask(TextTask):
    """Packed rows of conversations; held-out ones are scored by what the assistant says."""

    data: ChatData

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        row = super().synthetic(rng, model)
        return row | {"predicted": rng.integers(0, 2, self.data.length, dtype=np.int32)}

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's conversations, those that have something to learn."""
        encoder, counts, tally = ChatEncoder(vocabulary), Counts(), packing.Tally()
        made: Iterator[packing.Example] = encoding.conversations(
            examples(cache, split, limit), encoder, self.data.length, counts
        )
        rows = self._augmented_once(rows_of(made, self.data.length, tally), None)
        return HeldOutExamples(rows, tally.examples)

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the perplexity of a token of the assistant."""
        loss = totals["cross_entropy"]
        return {"perplexity": math.exp(min(float(loss.sum) / max(float(loss.over), 1.0), 700.0))}

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"perplexity": True}

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        (part,) = manifest["parts"].values()
        return [
            f"Fine-tuned on {part['examples']:,} conversations (`{manifest['cache']}`, fingerprint "
            f"{manifest['fingerprint'][:16]}): {part['learned']:,} tokens of the assistant, in the chat template of the weights "
            "that it started from.",
        ]


def task(data: ChatData) -> ChatTask:
    """Returns the task of a configuration of this kind."""
    return ChatTask(data)
