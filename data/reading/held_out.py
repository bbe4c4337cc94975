"""Held-out examples as rows, encoded anew with whatever vocabulary lies beside the weights. No TensorFlow."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.experiment import Data
from data.features import Array
from data.labelled import encoding as labelled
from data.labelled.config import LabelledData
from data.reading import examples as rows
from data.reading.caches import examples, read_manifest
from data.reading.examples import Row
from data.text import encoding, masking, pairs
from data.text.config import MaskedTextData, TextData
from data.vocabularies.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class HeldOutRows:
    """Packed rows of a held-out split, and what scores need beside them.

    Attributes:
      rows: those of labelled examples also have `owners`, and `offsets` of spans (`data.labelled.encoding`).
      examples: how many the rows hold.
      bytes: of running text, in UTF-8; else 0.
      task: of labelled examples, see `data.labelled.sources`; else "".
      questions: raw examples of spans, numbered as in `owners`; else empty.
    """

    rows: list[Row]
    examples: int
    bytes: int = 0
    task: str = ""
    questions: Sequence[dict[str, Any]] = ()


def batches(rows: Sequence[Row], arrays: Mapping[str, Array], size: int) -> Iterator[Row]:
    """The rows in batches of `size`, the last one filled up with empty rows, whose targets are -1.

    Args:
      arrays: those that are wanted, with the shape they have in a row.
    """
    empty: Row = {k: np.full(a.shape, -1 if k.endswith("targets") else 0, np.int32) for k, a in arrays.items()}
    for start in range(0, len(rows), size):
        chosen = rows[start : start + size]
        chosen = [*chosen, *[empty] * (size - len(chosen))]
        yield {k: np.stack([row[k] for row in chosen]) for k in arrays}


def read(data: Data, cache: Path, vocabulary: Path, split: str, limit: int = 0) -> HeldOutRows:
    """The rows of a held-out split.

    Args:
      cache: the prepared cache with the examples.
      vocabulary: the folder whose tokenizer.json encodes them.
      limit: at most so many examples; 0 takes all.
    """
    found = list(examples(cache, split, limit))
    if isinstance(data, LabelledData):
        return _labelled(data, found, cache, vocabulary)
    assert isinstance(data, TextData)
    return _text(data, found, vocabulary)


def _text(data: TextData, found: list[dict[str, Any]], vocabulary: Path) -> HeldOutRows:
    tokenizer = Tokenizer(vocabulary)
    if isinstance(data, MaskedTextData) and data.pairs:
        records = pairs.rows_of(
            [e["text"] for e in found], tokenizer, data.length, data.pairs, [e["origin"] for e in found]
        )
        size = 0
    else:
        records, size = encoding.rows_of([e["text"] for e in found], tokenizer, data.length)
    plain = [rows.unpack(record, data.stored()) for record in records]
    if not isinstance(data, MaskedTextData):
        return HeldOutRows(plain, len(found), size)
    words = masking.Vocabulary.of(tokenizer)
    # The same tokens are masked in every evaluation: a number that moves means that the model did.
    masked = [rows.masked(data, row, np.random.default_rng((0, i)), words) for i, row in enumerate(plain)]
    return HeldOutRows(masked, len(found))


def _labelled(data: LabelledData, found: list[dict[str, Any]], cache: Path, vocabulary: Path) -> HeldOutRows:
    manifest = read_manifest(cache)
    form = manifest["form"]
    made = labelled.rows_of(found, Tokenizer(vocabulary), form, data.length, data.slots, manifest["labels"])
    return HeldOutRows(list(made), len(found), task=manifest["task"], questions=found if form == "span" else ())
