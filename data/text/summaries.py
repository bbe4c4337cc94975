"""Reports and their summaries as one running text in full rows, as MLPerf's fine-tuning of Llama 2 has them. No TensorFlow.

A report is put into words as in llama2_70b_lora/scripts/utils.py of github.com/mlcommons/training; one that is longer than a row
is left out. What stays is one text, which is cut into rows of L tokens that see all of themselves; the end that fills no row is
left out. A row is int32 [4 * L]: tokens, segments (all 1), positions, loss weights.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.reading import own, tables
from data.reading.own import Entry
from data.reading.tables import TableFile
from data.reading.tally import Tally
from data.vocabularies.tokenizers import Tokenizer

COLUMNS = ("input", "output")
_BEFORE, _BETWEEN = "### Summarize the following text:\n ", "\n ### Summary:\n "


def opened(source: str | Path, columns: Mapping[str, str]) -> tuple[list[TableFile], Callable[[TableFile], Iterator[Entry]]]:
    """Returns the tables of a source, and a function that yields the entries of each."""
    return tables.files(source), functools.partial(_entries, dict(columns))


def _entries(columns: dict[str, str], file: TableFile) -> Iterator[Entry]:
    for row in tables.rows_of(file, columns):
        split, why = own.given_split(row)
        try:
            example = {name: own.text_of(row.get(name), name) for name in COLUMNS}
        except ValueError as problem:
            yield Entry(row.place, {}, why=str(problem))
            continue
        yield Entry(row.place, example, own.group_of(row, example["input"]), split, why)


def rows_of(
    pairs: Iterable[Mapping[str, Any]], tokenizer: Tokenizer, length: int, tally: Tally, *, summaries: bool = False
) -> Iterator[np.ndarray]:
    """Yields full rows, int32 [4 * length], of reports and summaries.

    Args:
      tally: counts pairs and their tokens.
      summaries: the summaries alone have a loss weight of 1, without the end behind each; by default every token has. As in the
        reference, a summary begins after as many tokens as the text before it has alone.
    """
    tokens, weights = list[int](), list[int]()
    for number, pair in enumerate(pairs):
        given = [*tokenizer.before, *tokenizer.encode(f"{_BEFORE}{pair['input']}{_BETWEEN}")]
        whole = [*tokenizer.before, *tokenizer.encode(f"{_BEFORE}{pair['input']}{_BETWEEN}{pair['output']}"), tokenizer.end]
        if len(whole) > length:
            tally.leave_out(f"report {number + 1}", f"{len(whole):,} tokens do not fit a row of {length:,}")
            continue
        tally.examples += 1
        tally.others["tokens"] += len(whole)
        scored = range(len(given), len(whole) - 1) if summaries else range(len(whole))
        tokens += whole
        weights += [int(i in scored) for i in range(len(whole))]
        while len(tokens) >= length:
            parts = tokens[:length], [1] * length, range(length), weights[:length]
            yield np.concatenate([np.asarray(part, np.int32) for part in parts])
            del tokens[:length], weights[:length]
