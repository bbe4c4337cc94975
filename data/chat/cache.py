"""Prepares a cache of conversations, in stages.

    packages      <data>/packages/      the conversations and the weights whose vocabulary is used, checked by SHA-256
    rows          <data>/caches/NAME/   packed rows

A cache holds `train/conversations.array_record` (rows as in data.dialog.encoding), the held-out conversations as
`validation.jsonl` and `test.jsonl`, and the vocabulary with its chat template. A file of the user's own is read in place; the
cache is made anew when it changes.
"""

import dataclasses
import random
from pathlib import Path
from typing import Any

from data import paths
from data.chat import encoding, sources
from data.chat.encoding import ChatEncoder, Counts
from data.chat.settings import FILE, Chat
from data.chat.sources import Record
from data.dialog.encoding import rows_of
from data.packages import weights
from data.packages.fetch import Package
from data.reading import caches, packing
from data.stages import Progress, stage
from data.task import DataError
from data.text.sources import CHATS
from data.vocabularies import files

FORMAT = 1  # version of the cache's format; increase it whenever the same packages would give another cache
PART = "conversations"
_SEED = 0


def packages_of(settings: Chat) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    own = () if settings.source.startswith(FILE) else (CHATS,)
    return own if settings.released else (*own, *weights.WEIGHTS[settings.tokenizer].packages)


def depends_on(cache: str, settings: Chat, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: digests of the user's file and of the vocabulary.

    Raises:
      DataError: no folder with a vocabulary was named.
    """
    own = [paths.sha256(file_of(settings))] if settings.source.startswith(FILE) else []
    if not settings.released:
        return own
    if not (listed := files.listed(_adopted(settings, root))):
        raise DataError(f"cache {cache!r} needs a vocabulary and a chat template: name their folder with --vocabulary")
    return [*own, paths.digest({file.name: paths.sha256(file) for file in listed})]


def file_of(settings: Chat) -> Path:
    """Returns the user's file."""
    path = Path(settings.source.removeprefix(FILE))
    if not path.is_file():
        raise DataError(f"no file {path}, of which the cache is made")
    return path


def adopt(settings: Chat, vocabulary: Path, root: Path) -> None:
    """Takes vocabulary and chat template of a folder for caches with these settings.

    Raises:
      DataError: the folder has no chat template, or one that teaches no model to stop.
    """
    _ = ChatEncoder(vocabulary).end
    with paths.new_folder(_adopted(settings, root)) as new:
        files.copy(vocabulary, new)


def _adopted(settings: Chat, root: Path) -> Path:
    return root / "vocabularies" / f"chat-{paths.digest(dataclasses.asdict(settings))[:16]}"


def build(settings: Chat, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest.

    Raises:
      DataError: a line of the file cannot be read, or nothing in it is learned.
    """
    if settings.released:
        files.copy(_adopted(settings, root), folder)
    else:
        files.copy(weights.fetch_weights(settings.tokenizer, root, progress), folder)
    encoder = ChatEncoder(folder)
    with stage("rows", progress):
        own = settings.source.startswith(FILE)
        records = sources.read(file_of(settings)) if own else sources.read_package(root / "packages")
        splits: dict[str, list[Record]] = {"train": [], **{split: [] for split in settings.shares}}
        for record in records:
            splits[sources.split_of(record, settings.shares)].append(record)
        for split in settings.shares:
            caches.write_examples(folder / f"{split}.jsonl", splits[split])
        (folder / "train").mkdir()
        part = write_rows(splits["train"], encoder, settings.length, folder)
    return {"vocabulary": encoder.tokenizer.size, "parts": {PART: part}}


def write_rows(records: list[Record], encoder: ChatEncoder, length: int, folder: Path) -> dict[str, int]:
    """Writes the rows of conversations; returns their counts.

    Raises:
      DataError: nothing is learned of any of them.
    """
    random.Random(_SEED).shuffle(records)
    tally, counts = packing.Tally(), Counts()
    rows = rows_of(encoding.conversations(records, encoder, length, counts), length, tally)
    packing.write_rows(folder / "train" / f"{PART}.array_record", rows)
    if not tally.examples:
        raise DataError(
            f"none of {len(records)} conversations has anything to learn in rows of {length} tokens: {counts.unlearned} without "
            f"a turn of the assistant, {counts.refused} refused{f' ({counts.why})' if counts.why else ''}"
        )
    return dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], **counts.numbers())
