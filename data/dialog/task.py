"""Conversations as a task: responses and their ratings, learned by one model (LaMDA, arXiv 2201.08239, section 6.1)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.dialog import encoding, format
from data.dialog.config import DialogData
from data.reading import packing
from data.reading.caches import examples, read_manifest
from data.reading.examples import unpack
from data.task import Example, HeldOutExamples, Sum
from data.text.task import TextTask
from data.vocabularies.tokenizers import Tokenizer
from models.families import ModelConfig


class DialogTask(TextTask):
    """Packed rows of conversations; of a held-out one the last response is scored."""

    data: DialogData

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        row = super().synthetic(rng, model)
        return row | {"predicted": rng.integers(0, 2, self.data.length, dtype=np.int32)}

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's conversations, a generative example each."""
        tokenizer, conversations = Tokenizer(vocabulary), list(examples(cache, split, limit))
        length = read_manifest(cache)["turn_length"]
        made = (encoding.generative(c["turns"], tokenizer, length) for c in conversations)
        records = encoding.rows_of(made, self.data.length, packing.Tally())
        return HeldOutExamples([unpack(r, self.data.stored()) for r in records], len(conversations))

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the perplexity of a token of a response."""
        loss = totals["cross_entropy"]
        return {"perplexity": math.exp(min(float(loss.sum) / max(float(loss.over), 1.0), 700.0))}

    @property
    def directions(self) -> Mapping[str, bool]:
        better_higher = ("auc_witty", "auc_upbeat", "auc_interesting", "reciprocal_rank", "first")
        return {"perplexity": True, **dict.fromkeys(better_higher, False)}

    # --- ranking of responses (data.task.RanksResponses) ---

    @property
    def ranking(self) -> Mapping[str, float]:
        """LaMDA's weights of sensibleness, specificity and interestingness (section 6.1), for what stands in their place."""
        return dict(zip(format.ATTRIBUTES, (3.0, 1.0, 1.0), strict=True))

    @property
    def floors(self) -> Mapping[str, float]:
        """A stand-in for LaMDA's threshold of safety, which the package has no ratings of: gloomy responses are dropped."""
        return {"upbeat": 0.2}

    def rating_ids(self, vocabulary: Path, attribute: str) -> tuple[list[int], list[int]]:
        return encoding.ratings(attribute, Tokenizer(vocabulary))

    # --- words ---

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        responses, ratings = (manifest["parts"][part]["examples"] for part in ("responses", "ratings"))
        return [
            f"Fine-tuned on {responses:,} responses and {ratings:,} ratings of conversations (`{manifest['cache']}`, fingerprint "
            f"{manifest['fingerprint'][:16]}): small talk of volunteers, rated for being witty, upbeat and interesting; "
            "nothing in it says what is safe or true.",
        ]


task = DialogTask
