"""Prepares a cache of rated conversations, in stages.

    packages      <data>/packages/      the conversations and the vocabulary, checked by SHA-256
    rows          <data>/caches/NAME/   packed rows

A cache holds `train/responses.array_record` and `train/ratings.array_record` (rows as in `data.dialog.encoding`), the held-out
conversations as `validation.jsonl` and `test.jsonl`, those of training as `train.jsonl` (id, turns, ratings), and the vocabulary.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.dialog import conversations, encoding
from data.dialog.conversations import Conversation
from data.dialog.settings import Dialog
from data.labelled.splits import without_copies
from data.packages import weights
from data.packages.fetch import Package
from data.reading import caches, packing
from data.stages import Progress, stage
from data.text.sources import CHATS
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer

FORMAT = 1  # version of the cache's format; increase it whenever the same packages would give another cache
_SEED = 0
_RECENT = 8  # turns of a response and its context at most: more seldom fit


def packages_of(settings: Dialog) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    return CHATS, weights.VOCABULARIES[settings.tokenizer]


def depends_on(cache: str, settings: Dialog, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: there are none."""
    del cache, settings, root
    return []


def build(settings: Dialog, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest."""
    splits: dict[str, list[Conversation]] = {"train": [], "validation": [], "test": []}
    for conversation in conversations.read(root / "packages" / CHATS.file):
        splits[conversations.split_of(conversation)].append(conversation)
    splits = without_copies(splits, lambda conversation: "\n".join(conversation["turns"]))
    for split, members in splits.items():
        caches.write_examples(folder / f"{split}.jsonl", members)
    weights.write_vocabulary(settings.tokenizer, root / "packages", folder / tokenizers.FILE)
    tokenizer = Tokenizer(folder)
    (folder / "train").mkdir()
    with stage("rows", progress):
        parts = write_parts(splits["train"], tokenizer, settings, folder)
    return {"vocabulary": tokenizer.size, "parts": parts}


def write_parts(members: list[Conversation], tokenizer: Tokenizer, settings: Dialog, folder: Path) -> dict[str, dict[str, int]]:
    """Writes the rows of conversations, those of either form to a file of its own; returns the counts of each."""
    parts = {"responses": _responses(members, tokenizer, settings), "ratings": _ratings(members, tokenizer, settings)}
    return {part: _write(part, examples, settings.length, folder) for part, examples in parts.items()}


def _responses(members: list[Conversation], tokenizer: Tokenizer, settings: Dialog) -> Iterator[packing.Example]:
    """Yields an example for each turn that answers another."""
    for conversation in members:
        turns = conversation["turns"]
        for end in range(2, len(turns) + 1):
            recent = turns[max(0, end - _RECENT) : end]
            yield encoding.generative(recent, tokenizer, settings.turn_length)


def _ratings(members: list[Conversation], tokenizer: Tokenizer, settings: Dialog) -> Iterator[packing.Example]:
    for conversation in members:
        yield from encoding.discriminative(conversation["turns"], conversation["ratings"], tokenizer, settings.length)


def _write(part: str, examples: Iterator[packing.Example], length: int, folder: Path) -> dict[str, int]:
    tally, shuffled = packing.Tally(), list(examples)
    random.Random(f"{_SEED} {part}").shuffle(shuffled)
    packing.write_rows(folder / "train" / f"{part}.array_record", encoding.rows_of(shuffled, length, tally))
    return dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0])
