"""Held-out examples as a model answers them in words, scored as the labels, tags and answers that the words mean."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.config import Decode
from data.decoding import Decoding, Scores
from data.features import positions
from data.labelled import metrics
from data.reading import caches
from data.reading.splits import Example as Raw
from data.task import Example
from data.text_to_text import texts


class TextToTextDecoding(Decoding[Raw]):
    """Raw examples of a labelled task, and outputs that name their label, their tags or their answer; or a user's own texts.

    Args:
      manifest: the cache's; it names the task, its form and its labels.
      vocabulary: the folder whose vocabulary encodes the examples.
      length: the most tokens of the inputs.
    """

    pad = -1  # byte-level vocabularies end texts with id 0

    def __init__(self, manifest: Mapping[str, Any], vocabulary: Path, length: int):
        self.task, self.form, self.labels = manifest["task"], manifest["form"], manifest["labels"]
        self.length = length
        self.source = positions(length, "inputs", "inputs_segments")
        self.encoder = texts.Encoder(vocabulary)
        self.vocab, self.eos = self.encoder.size, self.encoder.eos
        # A label is known by the words that the vocabulary makes of it: one may ignore case, or set marks apart.
        self.numbers = {self.encoder.seen(label): number for number, label in enumerate(self.labels)}

    def examples(self, cache: Path, config: Decode) -> list[Raw]:
        return list(caches.examples(cache, config.split, config.limit))

    def given(self, text: str) -> Raw:
        return {"inputs": text}

    def encode(self, example: Raw) -> Example:
        """Returns the tokens of the inputs, cut as in training."""
        ids = self.encoder.cut(self.encoder.ids(texts.input_text(self.task, example)), self.length)
        room = self.length - len(ids)
        return {"inputs": np.pad(ids, (0, room)), "inputs_segments": np.pad(np.ones_like(ids), (0, room))}

    def decode(self, ids: Sequence[int]) -> str:
        return self.encoder.text(ids)

    def scores(self, examples: Sequence[Raw], outputs: Sequence[str]) -> Scores:
        """Returns SQuAD's scores of answers, and of a user's own targets; of labels and tags the accuracy, those of
        `data.labelled.metrics.scores_of`, and "invalid", the share of labels in whose place the output has none."""
        count = {"examples": float(len(examples))}
        if self.form in ("span", texts.TEXT):
            own = self.form == texts.TEXT
            answers = [[e["targets"]] if own else [answer["text"] for answer in e["answers"]] for e in examples]
            return {"all": metrics.squad(answers, outputs) | count}
        confusion, wrong = self.confusion(examples, outputs), slice(len(self.labels), None)
        invalid = confusion[:, wrong].sum() / max(confusion.sum(), 1)
        if len(self.labels) == 2:  # as in T5, an output that is neither of two classes counts as the one that is wrong
            confusion = confusion[:, :2] + confusion[:, wrong] * np.array([[0, 1], [1, 0]])
        scores = {"accuracy": metrics.accuracy(confusion), **metrics.scores_of(self.task, confusion)}
        return {"all": scores | {"invalid": float(invalid)} | count}

    def confusion(self, examples: Sequence[Raw], outputs: Sequence[str]) -> np.ndarray:
        """Returns counts [true class C, predicted class C + 1], of whole texts or of words; the last column is no class.

        Tags stand in the order of the words. A word that no tag is left for has none; tags after the last word are ignored.
        """
        classes = len(self.labels)
        confusion = np.zeros((classes, classes + 1), np.int64)
        for example, output in zip(examples, outputs, strict=True):
            tagging = self.form == "tagging"
            true = example["tags"] if tagging else [example["label"]]
            named = output.split() if tagging else [output]
            named += [""] * (len(true) - len(named))
            for label, words in zip(true, named, strict=False):
                confusion[self.labels.index(label), self.numbers.get(words, classes)] += 1
        return confusion

    @property
    def names(self) -> list[str]:
        """The scores by name: those of no examples."""
        return list(self.scores([], [])["all"])

    def table(self, scores: Scores, *, details: bool = False) -> str:
        """Returns a line for each score; there are no parts."""
        del details
        return "\n".join(f"{name:28} {value:14.4f}" for name, value in scores["all"].items())
