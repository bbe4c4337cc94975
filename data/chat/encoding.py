"""Encodes conversations and preference pairs as examples of packed rows. No TensorFlow.

A turn of the assistant is learned up to the special token that ends it; without one, the model would never learn to stop.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.chat.sources import Message, Record
from data.chat.templates import ChatTemplate, TemplateRefusal
from data.dialog.encoding import lay_out as lay_out_conversations
from data.reading import packing
from data.task import DataError
from data.vocabularies.tokenizers import Tokenizer


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


class ChatEncoder:
    """A vocabulary with its chat template.

    Args:
      folder: with both.

    Attributes:
      end: the id of the token that ends a turn of the assistant.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.template, self.tokenizer = ChatTemplate(folder), Tokenizer(folder, special=True)
        self._special = np.array(self.tokenizer.special_ids)

    @property
    def end(self) -> int:
        """Returns the id of the token that ends a turn of the assistant."""
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        ids, learned = self.conversation(turns)
        return int(ids[np.flatnonzero(learned)[-1]])

    def conversation(self, messages: Sequence[Message], tools: Any = None, *, given: int = 0) -> packing.Example:
        """Returns (ids, which of them are learned: 1 or 0).

        Args:
          given: how many turns of the assistant, the first ones, are not learned.

        Raises:
          DataError: the template ends a turn without a special token, or gives what is learned no place.
          TemplateRefusal: the template does not take such a conversation.
        """
        rendered = self.template.rendered(messages, tools)
        ids, starts = map(np.array, self.tokenizer.encode_starts(rendered.text))
        predicted, special = np.zeros(len(ids), np.int32), np.isin(ids, self._special)
        for begin, end in rendered.learned[given:]:
            if begin == end:
                continue
            first, last = (int(np.searchsorted(starts, edge)) for edge in (begin, end))
            if first == len(ids) or starts[first] > begin:
                first -= 1  # a token that begins before the first character reaches into it
            if self.template.marked and not special[last - 1] and last < len(ids) and special[last]:
                last += 1  # marks may leave out the token that ends the turn
            ending = first + int(np.flatnonzero(special[first:last])[-1]) if special[first:last].any() else -1
            behind = rendered.text[starts[ending + 1] : end] if ending + 1 < last else ""
            if ending < 0 or behind.strip():
                raise DataError(
                    f"{self.folder}: its chat template ends a turn of the assistant without a special token, from which a "
                    "model would not learn to stop; write one behind the content"
                )
            predicted[first : ending + 1] = 1
        return ids.astype(np.int32), predicted


def conversations(
    records: Iterable[Record], encoder: ChatEncoder, length: int, counts: Counts
) -> Iterator[packing.Example]:
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
    given = sum(message["role"] == "assistant" for message in prompt)
    chosen, rejected = (
        encoder.conversation([*prompt, *record[side]], tools, given=given) for side in ("chosen", "rejected")
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
    return [
        (ids[part], predicted[part])
        for ids, predicted, (at,), _ in examples
        for part in (slice(None, at), slice(at, None))
    ]
