"""Encodes conversations and preference pairs as examples of packed rows. No TensorFlow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from data.chat.sources import Record
from data.reading import packing
from data.reading.tally import Tally
from data.vocabularies.chat_templates import ChatEncoder
from data.vocabularies.marks import TemplateRefusal


def _refuse(tally: Tally, refusal: TemplateRefusal) -> None:
    """Counts a record that the template does not take, with the reason."""
    tally.others["refused"] += 1
    tally.reasons[:] = [str(refusal)]


def conversations(records: Iterable[Record], encoder: ChatEncoder, length: int, tally: Tally) -> Iterator[packing.Example]:
    """Yields an example for each conversation that has something to learn; one that is too long loses its end.

    Counts in `tally.others` are "refused" (by the template), "unlearned" (nothing in it is learned, or nothing that a row has
    room for), "learned" (tokens), and "lost" (tokens of cut ends that were to be learned).
    """
    for record in records:
        try:
            ids, weights = encoder.conversation(record["messages"], record.get("tools"))
        except TemplateRefusal as refusal:
            _refuse(tally, refusal)
            continue
        if len(ids) > length:
            tally.cut += 1
            tally.others["lost"] += int(weights[length:].sum())
            ids, weights = ids[:length], weights[:length]
        learned = int(weights[1:].sum())  # the first token has none before it to be predicted from
        if not learned:
            tally.others["unlearned"] += 1
            continue
        tally.others["learned"] += learned
        yield ids, weights


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
    records: Iterable[Record], encoder: ChatEncoder, length: int, tally: Tally
) -> Iterator[tuple[Record, packing.Example, packing.Example]]:
    """Yields records with their two conversations, if a row has room for both: an answer that is cut has another likelihood."""
    for record in records:
        try:
            chosen, rejected = pair(record, encoder)
        except TemplateRefusal as refusal:
            _refuse(tally, refusal)
            continue
        learned = [int(weights[1:].sum()) for _, weights in (chosen, rejected)]
        if len(chosen[0]) + len(rejected[0]) > length or not all(learned):
            tally.others["unlearned"] += 1
            continue
        tally.others["learned"] += sum(learned)
        yield record, chosen, rejected


def pairs(records: Iterable[Record], encoder: ChatEncoder, length: int, tally: Tally) -> Iterator[packing.Example]:
    """Yields an example for each pair: the ids, how much each counts, where the second conversation begins, and the reference,
    which is `record["reference"]`."""
    for record, chosen, rejected in fitting_pairs(records, encoder, length, tally):
        ids, weights = (np.concatenate(both) for both in zip(chosen, rejected, strict=True))
        yield ids, weights, np.array([len(chosen[0])]), np.array([record["reference"]], np.float32)


def rows_of_pairs(examples: Iterable[packing.Example], length: int, most: int, tally: Tally) -> Iterator[dict[str, np.ndarray]]:
    """Yields packed rows of pairs, at most so many in each."""

    def lay_out(chosen: list[packing.Example], lengths: Sequence[int]) -> Any:
        row = packing.lay_out_weighted(_conversations(chosen), (length, length)).reshape(4, length)
        reference = np.zeros((most, 2), np.float32)
        for i, example in enumerate(chosen):
            reference[i] = example[3]
        return dict(zip(("tokens", "segments", "positions", "loss_weights"), row, strict=True)) | {"reference": reference}

    return packing.pack(examples, (length, length, most, most), tally, lay_out)  # pyright: ignore[reportReturnType]


def _conversations(examples: Iterable[packing.Example]) -> list[packing.Example]:
    """Returns the two conversations of each pair, one after the other."""
    return [(ids[part], weights[part]) for ids, weights, (at,), _ in examples for part in (slice(None, at), slice(at, None))]
