"""Labelled examples as a task: classes of texts, pairs, words; answers in texts; similar texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.labelled import encoding, metrics
from data.labelled.answers import answer_texts
from data.labelled.config import LabelledData
from data.reading.caches import (
    check_fields,
    check_labels,
    check_vocabularies,
    class_names,
    examples,
    labels_of,
    read_manifest,
    smallest_vocabulary,
)
from data.task import DataError, Example, HeldOutExamples, Sum, Task
from data.text import masking
from data.vocabularies.tokenizers import Tokenizer
from models.families import ModelConfig


class LabelledTask(Task[LabelledData]):
    """Packed rows of labelled examples."""

    packed_with = ("length", "slots")

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, *self.packed_with)
        form = manifest.get("form", "")
        if form and (form == "span") is not self.data.spans:
            raise DataError(f"data.spans={self.data.spans}: cache {self.data.cache!r} holds examples of the form {form!r}")
        check_vocabularies(model, manifest)
        check_labels(model, manifest)

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes(manifest) | {"positions": self.data.length}

    def synthetic_key(self, model: ModelConfig) -> str:
        return str(smallest_vocabulary(model))

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns a row that is one example; labels are classes, spans of two tokens, or pairs of neighbours."""
        length, count, labels = self.data.length, self.data.slots, labels_of(model)
        slots = np.arange(count, dtype=np.int32)
        row = {
            "tokens": rng.integers(3, smallest_vocabulary(model), length, dtype=np.int32),
            "segments": np.ones(length, np.int32),
            "positions": np.arange(length, dtype=np.int32),
            "types": np.zeros(length, np.int32),
            "slots": slots,
        }
        if self.data.spans:
            row["targets"] = rng.integers(1, 8, (count, 1), dtype=np.int32) + np.arange(2, dtype=np.int32)
        else:
            row["targets"] = rng.integers(0, labels, count, dtype=np.int32) if labels else slots // 2
        return row

    def assets(self, folder: Path | None, model: ModelConfig) -> masking.Vocabulary | None:
        """Returns the vocabulary that masking needs; None if no tokens are masked. That of random data has no words."""
        if not self.data.masked:
            return None
        if folder is None:
            return masking.Vocabulary.without_words(smallest_vocabulary(model))
        return masking.Vocabulary.from_tokenizer(Tokenizer(folder))

    @property
    def augmentation(self) -> str:
        return f"{self.data.masked:g}" if self.data.masked else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: masking.Vocabulary | None) -> Example:
        return row if assets is None else masking.hide(row, rng, assets, self.data.masked)

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's rows; `extra` is (the task's name, the raw examples of questions, the values of scores)."""
        raw, manifest = list(examples(cache, split, limit)), read_manifest(cache)
        form, shape = manifest["form"], (self.data.length, self.data.slots)
        rows = list(encoding.rows_of(raw, Tokenizer(vocabulary), form, *shape, manifest["labels"]))
        questions = raw if form == "span" else []
        extra = manifest["task"], questions, manifest.get("values", [])
        return HeldOutExamples(rows, len(raw), extra, needs_outputs=bool(questions))

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the scores of classes (data.labelled.metrics.scores_of), or of answers as SQuAD scores their text.

        The model's accuracy of spans remains the share of windows whose span is exactly the labelled one.
        """
        name, questions, values = examples.extra
        confusion = np.asarray(totals["confusion"].sum) if "confusion" in totals else None
        scores = {} if confusion is None else metrics.scores_of(name, confusion)
        if values and confusion is not None:
            scores |= metrics.correlations(confusion, values)
        if not questions:
            return scores
        # There are more outputs than rows: those of the rows that pad the last batch.
        predicted = answer_texts(zip(examples.rows, outputs, strict=False), [q["context"] for q in questions])
        return scores | metrics.squad([[answer["text"] for answer in q["answers"]] for q in questions], predicted)

    @property
    def directions(self) -> Mapping[str, bool]:
        return dict.fromkeys(("f1", "macro_f1", "matthews", "exact_match", "pearson", "spearman"), False)

    @property
    def meanings(self) -> Mapping[str, str]:
        return metrics.MEANINGS

    @property
    def given(self) -> str:
        return "text"

    @property
    def shown(self) -> int:
        return 1

    def read_given(self, given: Sequence[Mapping[str, Any]], vocabulary: Path) -> list[Example]:
        """Returns rows of texts to be classified, {"text"} or {"text", "pair"}; labels are ignored."""
        plain = [{side: text[side] for side in ("text", "pair") if side in text} for text in given]
        shape = (self.data.length, self.data.slots)
        return list(encoding.rows_of(plain, Tokenizer(vocabulary), "classification", *shape))

    def class_names(self, vocabulary: Path) -> list[str]:
        """Returns the names of the classes from the manifest."""
        return class_names(vocabulary)

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        count = sum(part["examples"] for part in manifest["parts"].values())
        labels = f" Labels: {', '.join(manifest['labels'])}." if manifest["labels"] else ""
        return [f"Fine-tuned on {count:,} examples of `{manifest['task']}` (fingerprint {manifest['fingerprint'][:16]}).{labels}"]


task = LabelledTask
