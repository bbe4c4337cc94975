"""Encodes conversations and preference pairs as examples of packed rows. No TensorFlow."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from data.chat.sources import Record
from data.dialog.encoding import lay_out as lay_out_conversations
from data.reading import packing
from data.vocabularies.chat_templates import ChatEncoder, TemplateRefusal


@dataclasses.dataclass
class Counts:
    """What became of conversations, or of pairs.

    Attributes:
      refused: the template did not take them.
      unlearned: nothing in them is learned, or nothing that a row has room for.
      cut: they lost their end, of which `lost` tokens were to be learned.
      learned: tokens that are learned.
      why: what the template said of the last that it refused.
    """

    refused: int = 0
    unlearned: int = 0
    cut: int = 0
    lost: int = 0
    learned: int = 0
    why: str = ""

    def numbers(self) -> dict[str, int]:
        """Returns the counts by name, as a manifest has them."""
        return {name: value for name, value in dataclasses.asdict(self).items() if isinstance(value, int)}


def conversations(records: Iterable[Record], encoder: ChatEncoder, length: int, counts: Counts) -> Iterator[packing.Example]:
    """Yields an example for each conversation that has something to learn; one that is too long loses its end."""
    for record in records:
        try:
            ids, predicted = encoder.conversation(record["messages"], record.get("tools"))
        except TemplateRefusal as refusal:
            counts.refused, counts.why = counts.refused + 1, str(refusal)
            continue
        if len(ids) > length:
            counts.cut += 1
            counts.lost += int(predicted[length:].sum())
            ids, predicted = ids[:length], predicted[:length]
        learned = int(predicted[1:].sum())  # the first token has none before it to be predicted from
        if not learned:
            counts.unlearned += 1
            continue
        counts.learned += learned
        yield ids, predicted


def pair(record: Record, encoder: ChatEncoder) -> tuple[packing.Example, packing.Example]:
    """Returns a preference pair's two conversations, of which the answers are learned and nothing of the prompt.

    Raises:
      TemplateRefusal: the template does not take such a conversation.
    """
    prompt, tools = record["prompt"], record.get("tools")
    chosen, rejected = (
        encoder.conversation([*prompt, *record[side]], tools, given=len(prompt)) for side in ("chosen", "rejected")
    )
    return chosen, rejected


def fitting_pairs(
    records: Iterable[Record], encoder: ChatEncoder, length: int, counts: Counts
) -> Iterator[tuple[Record, packing.Example, packing.Example]]:
    """Yields records with their two conversations, if a row has room for both: an answer that is cut has another likelihood."""
    for record in records:
        try:
            chosen, rejected = pair(record, encoder)
        except TemplateRefusal as refusal:
            counts.refused, counts.why = counts.refused + 1, str(refusal)
            continue
        learned = [int(predicted[1:].sum()) for _, predicted in (chosen, rejected)]
        if len(chosen[0]) + len(rejected[0]) > length or not all(learned):
            counts.unlearned += 1
            continue
        counts.learned += sum(learned)
        yield record, chosen, rejected


def pairs(records: Iterable[Record], encoder: ChatEncoder, length: int, counts: Counts) -> Iterator[packing.Example]:
    """Yields an example for each pair: the ids, how much each counts, where the second conversation begins, and the reference,
    which is `record["reference"]`."""
    for record, chosen, rejected in fitting_pairs(records, encoder, length, counts):
        ids, predicted = (np.concatenate(both) for both in zip(chosen, rejected, strict=True))
        yield ids, predicted, np.array([len(chosen[0])]), np.array([record["reference"]], np.float32)


def rows_of_pairs(
    examples: Iterable[packing.Example], length: int, most: int, tally: packing.Tally
) -> Iterator[dict[str, np.ndarray]]:
    """Yields packed rows of pairs, at most so many in each."""

    def lay_out(chosen: list[packing.Example], lengths: Sequence[int]) -> Any:
        row = lay_out_conversations(_conversations(chosen), (length, length)).reshape(4, length)
        reference = np.zeros((most, 2), np.float32)
        for i, example in enumerate(chosen):
            reference[i] = example[3]
        return dict(zip(("tokens", "segments", "positions", "predicted"), row, strict=True)) | {"reference": reference}

    return packing.pack(examples, (length, length, most, most), tally, lay_out)  # pyright: ignore[reportReturnType]


def _conversations(examples: Iterable[packing.Example]) -> list[packing.Example]:
    """Returns the two conversations of each pair, one after the other."""
    return [(ids[part], predicted[part]) for ids, predicted, (at,), _ in examples for part in (slice(None, at), slice(at, None))]
