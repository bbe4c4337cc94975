"""Running text as a task: packed rows as they are, for causal models, or with masked tokens, for encoders."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.reading.caches import check_fields, check_vocabularies, examples, smallest_vocabulary
from data.reading.examples import unpack
from data.reading.tally import Tally
from data.task import DataError, Example, HeldOutExamples, Sum, Task
from data.text import encoding, masking, pairs, spans, summaries
from data.text.config import MaskedTextData, SpanTextData, SummaryData, TextData
from data.vocabularies.tokenizers import Tokenizer
from models.families import ModelConfig

_MEANINGS = {
    "perplexity": "e to the cross-entropy of a token: among how many equally likely ones it is as hard to guess",
    "byte_perplexity": "the same of a byte, which models with other vocabularies can be compared by",
    "bits_per_byte": "its logarithm of base 2",
}


class TextTask(Task[TextData]):
    """Packed rows of running text; held-out text is scored per token and per byte."""

    packed_with = ("length",)

    @property
    def temperature(self) -> float:
        return self.data.temperature

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, *self.packed_with)
        check_vocabularies(model, manifest)

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes(manifest) | {"positions": self.data.length}

    def synthetic_key(self, model: ModelConfig) -> str:
        return str(smallest_vocabulary(model))

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        length, vocabulary = self.data.length, smallest_vocabulary(model)
        return {
            "tokens": rng.integers(3, vocabulary, length, dtype=np.int32),
            "segments": np.ones(length, np.int32),
            "positions": np.arange(length, dtype=np.int32),
        }

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's rows; `extra` is the bytes of their text in UTF-8."""
        texts = [example["text"] for example in examples(cache, split, limit)]
        records, size = encoding.rows_of(texts, Tokenizer(vocabulary), self.data.length)
        return HeldOutExamples(self._augmented_once(records, None), len(texts), size)

    def _augmented_once(self, records: Iterable[np.ndarray], assets: Any) -> list[Example]:
        """Returns stored rows as the model gets them, augmented the same way every time: scores differ only if the model does."""
        rows = (unpack(record, self.data.stored()) for record in records)
        return [self.augment(row, np.random.default_rng((0, i)), assets) for i, row in enumerate(rows)]

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the perplexity per token and per byte, and bits per byte."""
        if not examples.extra:
            return {}
        nats, tokens = float(totals["cross_entropy"].sum), float(totals["cross_entropy"].over)
        return {
            "perplexity": _perplexity(nats, tokens),
            "byte_perplexity": _perplexity(nats, examples.extra),
            "bits_per_byte": nats / examples.extra / math.log(2),
        }

    @property
    def directions(self) -> Mapping[str, bool]:
        return dict.fromkeys(("perplexity", "byte_perplexity", "bits_per_byte"), True)

    @property
    def meanings(self) -> Mapping[str, str]:
        return _MEANINGS

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        tokens = sum(part["tokens"] for part in manifest["parts"].values())
        corpus = f"English (`{manifest['corpus']}`" if "corpus" in manifest else f"text (`{manifest['cache']}`"
        parts, fingerprint = ", ".join(sorted(manifest["parts"])), manifest["fingerprint"][:16]
        return [
            f"Trained on {tokens:,} tokens of {corpus}: {parts}; fingerprint {fingerprint}), rows of {manifest['length']} tokens."
        ]


class MaskedTextTask(TextTask):
    """The same rows with tokens masked anew every time they come, and pairs of sentences where the cache has them."""

    data: MaskedTextData

    packed_with = ("length", "pairs")

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        row, count = super().synthetic(rng, model), self.data.pairs
        if count:
            row["types"] = np.zeros(self.data.length, np.int32)
            row["pair_slots"] = np.arange(count, dtype=np.int32)
            row["pair_targets"] = rng.integers(0, 2, count, dtype=np.int32)
        return row

    def assets(self, folder: Path | None, model: ModelConfig) -> masking.Vocabulary:
        """Returns the vocabulary that masking needs; that of random data has no words."""
        if folder is None:
            return masking.Vocabulary.without_words(smallest_vocabulary(model))
        return masking.Vocabulary.from_tokenizer(Tokenizer(folder))

    @property
    def augmentation(self) -> str:
        return f"{self.data.rate:g}-{self.data.whole_word}"

    def augment(self, row: Example, rng: np.random.Generator, assets: masking.Vocabulary) -> Example:
        d = self.data
        return masking.mask(row, rng, assets, rate=d.rate, whole_word=d.whole_word, predictions=d.predictions)

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's rows; the same tokens are masked each time."""
        d, tokenizer, documents = self.data, Tokenizer(vocabulary), list(examples(cache, split, limit))
        texts = [document["text"] for document in documents]
        if d.pairs:
            records = pairs.rows_of(texts, tokenizer, d.length, d.pairs, [document["origin"] for document in documents])
        else:
            records, _ = encoding.rows_of(texts, tokenizer, d.length)
        words = masking.Vocabulary.from_tokenizer(tokenizer)
        return HeldOutExamples(self._augmented_once(records, words), len(texts))


class SpanTextTask(TextTask):
    """The same rows as inputs and targets of an encoder-decoder; a packed row is one running text, as in T5."""

    data: SpanTextData

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        super().check(manifest, model)
        needed = manifest["vocabulary"] + self._sentinels
        if (known := smallest_vocabulary(model)) < needed:
            raise DataError(
                f"the model knows {known} tokens: cache {manifest['cache']!r} has {manifest['vocabulary']}, and "
                f"data.sentinels={self.data.sentinels} come on top; at least {needed}"
            )

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes(manifest) | {"vocabulary": manifest["vocabulary"] + self._sentinels}

    @property
    def _sentinels(self) -> int:
        return self.data.sentinels if self.data.objective == "spans" else 0

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        row = super().synthetic(rng, model)
        row["tokens"] = rng.integers(3, smallest_vocabulary(model) - self._sentinels, self.data.length, dtype=np.int32)
        return row

    def assets(self, folder: Path | None, model: ModelConfig) -> tuple[int, int]:
        """Returns (the size of the vocabulary, the id of the end of text), of random data made-up ones."""
        if folder is None:
            return smallest_vocabulary(model) - self._sentinels, 1
        return _size_and_end(Tokenizer(folder))

    @property
    def augmentation(self) -> str:
        d = self.data
        return f"{d.objective}-{d.rate:g}-{d.mean_span:g}-{d.sentinels}-{d.multiple}"

    def augment(self, row: Example, rng: np.random.Generator, assets: tuple[int, int]) -> Example:
        d, (size, eos) = self.data, assets
        tokens = row["tokens"][row["segments"] > 0]
        if len(tokens) < 2:  # nothing to take out
            inputs, targets = tokens, np.array([eos], np.int32)
        elif d.objective == "prefix":
            inputs, targets = spans.prefix(tokens, rng, eos=eos)
        else:
            first = size + d.sentinels - 1
            inputs, targets = spans.corrupt(tokens, rng, rate=d.rate, mean=d.mean_span, first_sentinel=first, eos=eos)
        return spans.lay_out({"inputs": inputs, "targets": targets}, d.lengths)

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's rows; the same spans are taken out each time."""
        tokenizer, texts = Tokenizer(vocabulary), [example["text"] for example in examples(cache, split, limit)]
        records, _ = encoding.rows_of(texts, tokenizer, self.data.length)
        return HeldOutExamples(self._augmented_once(records, _size_and_end(tokenizer)), len(texts))


class WeightedTask(TextTask):
    """Packed rows of which some tokens alone are predicted, as responses are; held-out text is scored by those."""

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        row = super().synthetic(rng, model)
        return row | {"loss_weights": rng.integers(0, 2, self.data.length, dtype=np.int32)}

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the perplexity of a token that is predicted."""
        loss = totals["cross_entropy"]
        return {"perplexity": _perplexity(float(loss.sum), float(loss.over))}

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"perplexity": True}


class SummaryTask(WeightedTask):
    """Full rows of reports and summaries; held-out ones are scored by the summaries."""

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's full rows, each of which counts as an example."""
        rows = summaries.rows_of(examples(cache, split, limit), Tokenizer(vocabulary), self.data.length, Tally(), summaries=True)
        made = self._augmented_once(rows, None)
        if not made:
            raise DataError(f"cache {cache.name!r}: the split {split!r} does not fill a row of {self.data.length} tokens")
        return HeldOutExamples(made, len(made))


def _perplexity(nats: float, units: float) -> float:
    """Returns the perplexity of a unit, a token or a byte; at most e^700, which is a number yet."""
    return math.exp(min(nats / max(units, 1.0), 700.0))


def _size_and_end(tokenizer: Tokenizer) -> tuple[int, int]:
    return tokenizer.size, tokenizer.end


def task(data: TextData) -> TextTask:
    """Returns the task of a configuration of this kind."""
    if isinstance(data, SpanTextData):
        return SpanTextTask(data)
    if isinstance(data, SummaryData):
        return SummaryTask(data)
    return MaskedTextTask(data) if isinstance(data, MaskedTextData) else TextTask(data)
