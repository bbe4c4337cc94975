"""Labelled examples as text in, text out, as T5 writes them (arXiv 1910.10683, section 2.4 and appendix D). No TensorFlow.

    form             inputs                                                          targets
    classification   debian_sections text: small text editor                         editors
                     mrpc sentence1: He left. sentence2: He went away.               equivalent
    tagging          brown_tags words: The cat sat .                                 DET NOUN VERB .
    span             question: Who sat? context: The cat sat on the mat.             The cat
    text             (a user's own inputs and targets, as they are)

Inputs begin with the task's name, questions excepted. GLUE's tasks have the names and the order of fields that released T5's were
trained with. The fields of a task are `texts` of `data.labelled.sources.TASKS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from data.labelled.sources import TASKS, PublicTask
from data.reading import packing
from data.reading.splits import Example
from data.reading.tally import Tally
from data.vocabularies.tokenizers import Tokenizer
from models.errors import shortened

TEXT = "text"  # the form of a user's own inputs and targets


def input_text(name: str, example: Example) -> str:
    """Returns the inputs of a raw example of a task; its label, tags or answers are not looked at. Those of a user are as they
    are."""
    if "inputs" in example:
        return example["inputs"]
    task = TASKS[name]
    match task.form:
        case "span":
            return f"question: {example['question']} context: {example['context']}"
        case "tagging":
            fields = {"words": " ".join(example["words"])}
        case _:
            texts = (example[side] for side in ("text", "pair") if side in example)
            fields = dict(zip(task.texts, texts, strict=True))
            if isinstance(task, PublicTask):  # as T5: MNLI's hypothesis comes before its premise
                fields = dict(sorted(fields.items()))
    return " ".join([_prefix(name), *(f"{field}: {text}" for field, text in fields.items())])


def target_text(name: str, example: Example) -> str:
    """Returns the targets of a raw example of a task: its label, its tags in the order of the words, or its first answer."""
    if "targets" in example:
        return example["targets"]
    match TASKS[name].form:
        case "span":
            return example["answers"][0]["text"]
        case "tagging":
            return " ".join(example["tags"])
    return example["label"]


def pair_of(name: str, example: Example) -> tuple[str, str]:
    """Returns the inputs and targets of a raw example of a task."""
    return input_text(name, example), target_text(name, example)


def _prefix(name: str) -> str:
    task = TASKS[name]
    # "mrpc" of glue/mrpc:2.0.0, and "mnli" of both of its tests.
    return task.tfds_name.partition("/")[2].partition(":")[0] if isinstance(task, PublicTask) else name


class Encoder:
    """Encodes texts as ids that end with the vocabulary's end of text, and turns them back into text.

    Attributes:
      size: how many ids a text may have: those from here on are sentinels of a released vocabulary.
      eos: the id that ends a text.

    Raises:
      VocabularyError: the vocabulary has no end of text.
    """

    def __init__(self, folder: Path):
        self._tokenizer = Tokenizer(folder)
        self.eos, self.size = self._tokenizer.end, self._tokenizer.size
        while self.size - 1 in self._tokenizer.special_ids and self.size - 1 != self.eos:
            self.size -= 1

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a text, with what begins one in its vocabulary, such as BART's <s>, and its end."""
        return [*self._tokenizer.before, *self._tokenizer.encode(text), self.eos]

    def cut(self, ids: list[int], length: int) -> np.ndarray:
        """Returns the ids of a text, int32 [<= length]; a longer one loses its end, as in T5, but not the mark of it."""
        return np.array(ids if len(ids) <= length else [*ids[: length - 1], self.eos], np.int32)

    def text(self, ids: Iterable[int]) -> str:
        """Returns the text of ids up to their end."""
        ids = [int(id_) for id_ in ids]
        return self._tokenizer.decode(ids[: ids.index(self.eos)] if self.eos in ids else ids).strip()

    def marked(self, ids: Sequence[int]) -> str:
        """Returns the text of ids with the marks in it, for a person."""
        return self._tokenizer.marked(ids)

    def seen(self, text: str) -> str:
        """Returns a text as it is after it was encoded and decoded: a vocabulary may ignore case, or set marks apart."""
        return self.text(self.ids(text))


def packed(
    name: str, examples: Iterable[Example], encoder: Encoder, lengths: tuple[int, int], tally: Tally
) -> Iterator[np.ndarray]:
    """Yields packed rows (`data.reading.packing`) of raw examples of a task; longer inputs are cut, longer targets left out.

    Args:
      lengths: tokens of a row of inputs and of targets.
      tally: incremented; it names what is left out.
    """

    def sides() -> Iterator[packing.Example]:
        for example in examples:
            texts = pair_of(name, example)
            inputs, targets = map(encoder.ids, texts)
            if len(targets) > lengths[1]:
                tally.leave_out(shortened(texts[0]), f"its {len(targets):,} tokens of targets are more than {lengths[1]}")
                continue
            tally.cut += len(inputs) > lengths[0]
            yield encoder.cut(inputs, lengths[0]), np.array(targets, np.int32)

    return packing.pack(sides(), lengths, tally)
