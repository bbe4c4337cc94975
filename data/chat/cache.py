"""Prepares a cache of conversations or of preference pairs, in stages.

    packages      <data>/packages/      the conversations and the weights whose vocabulary is used, checked by SHA-256
    reference     <data>/references/    of pairs, what the weights to start from say of them (scripts/recipes/reference.py)
    rows          <data>/caches/NAME/   packed rows

A cache holds `train/conversations.array_record` (rows as in data.dialog.encoding), the held-out conversations as
`validation.jsonl` and `test.jsonl`, and the vocabulary with its chat template. A file of the user's own is read in place; the
cache is made anew when it changes.
"""

import dataclasses
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data import paths
from data.chat import encoding, sources
from data.chat.config import PreferenceData
from data.chat.encoding import Counts
from data.chat.settings import FILE, Chat, Preferences
from data.chat.sources import Record
from data.dialog.encoding import rows_of
from data.labelled.splits import without_copies
from data.packages import weights
from data.packages.fetch import Package
from data.reading import caches, packing
from data.reading.examples import record_of
from data.stages import Progress, stage
from data.task import DataError
from data.text.sources import CHATS
from data.vocabularies import files
from data.vocabularies.chat_templates import ChatEncoder

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
PART, PAIRS = "conversations", "pairs"
SCORES = "scores.jsonl"
_SEED = 0


def packages_of(settings: Chat | Preferences) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    own = () if settings.source.startswith(FILE) else (CHATS,)
    if isinstance(settings, Preferences):
        return own
    return own if settings.released else (*own, *weights.WEIGHTS[settings.tokenizer].packages)


def depends_on(cache: str, settings: Chat | Preferences, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: digests of the user's file and of the vocabulary, and of
    pairs what their reference says.

    Raises:
      DataError: no folder with a vocabulary was named, or no weights as a reference.
    """
    own = state_of_file(settings)
    if isinstance(settings, Preferences):
        folder = reference_folder(settings, root)
        if not settings.reference or not (folder / SCORES).exists():
            raise DataError(f"cache {cache!r} needs the weights that a run starts from: name them with --reference")
        return [*own, *(paths.sha256(file) for file in (*files.listed(folder), folder / SCORES))]
    if not settings.released:
        return own
    if not (listed := files.listed(_adopted(settings, root))):
        raise DataError(f"cache {cache!r} needs a vocabulary and a chat template: name their folder with --vocabulary")
    return [*own, paths.digest({file.name: paths.sha256(file) for file in listed})]


def state_of_file(settings: Chat | Preferences) -> list[str]:
    """Returns the digest of the user's file, if there is one."""
    return [paths.sha256(file_of(settings))] if settings.source.startswith(FILE) else []


def reference_folder(settings: Preferences, root: Path) -> Path:
    """Returns the folder of what a reference says of pairs: `scores.jsonl`, a line for each that `pairs_of` yields, with the
    log-probability of the chosen and of the rejected answer, or null; and the reference's vocabulary."""
    return root / "references" / paths.digest(dataclasses.asdict(settings))[:16]


def pairs_of(settings: Preferences, root: Path) -> Iterator[Record]:
    """Yields the pairs of a source, in its order."""
    own = settings.source.startswith(FILE)
    records = sources.read(file_of(settings)) if own else sources.read_pairs(root / "packages")
    return itertools.islice(records, settings.limit or None)


def file_of(settings: Chat | Preferences) -> Path:
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


def build(settings: Chat | Preferences, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest.

    Raises:
      DataError: a line of the file cannot be read, or nothing in it is learned.
    """
    if isinstance(settings, Preferences):
        return _build_pairs(settings, root, folder, progress)
    if settings.released:
        files.copy(_adopted(settings, root), folder)
    else:
        files.copy(weights.fetch_weights(settings.tokenizer, root, progress), folder)
    encoder = ChatEncoder(folder)
    with stage("rows", progress):
        own = settings.source.startswith(FILE)
        records = sources.read(file_of(settings)) if own else sources.read_package(root / "packages")
        train = _held_out(records, settings.shares, folder)
        part = write_rows(train, encoder, settings.length, folder)
    return {"vocabulary": encoder.tokenizer.size, "parts": {PART: part}}


def _held_out(records: Iterable[Record], shares: Mapping[str, float], folder: Path) -> list[Record]:
    """Writes the records that are held out, and makes a folder for the rows of the others, which it returns."""
    splits: dict[str, list[Record]] = {"train": [], **{split: [] for split in shares}}
    for record in records:
        splits[sources.split_of(record, shares)].append(record)
    splits = without_copies(splits, sources.said)
    for split in shares:
        caches.write_examples(folder / f"{split}.jsonl", splits[split])
    (folder / "train").mkdir()
    return splits["train"]


def _build_pairs(settings: Preferences, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    known = reference_folder(settings, root)
    files.copy(known, folder)
    encoder = ChatEncoder(folder)
    with stage("rows", progress):
        scores = map(json.loads, (known / SCORES).read_text().splitlines())
        pairs = zip(pairs_of(settings, root), scores, strict=True)
        records = ({**record, "reference": score} for record, score in pairs if score is not None)
        part = write_pairs(_held_out(records, settings.shares, folder), encoder, settings, folder)
    return {"vocabulary": encoder.tokenizer.size, "parts": {PAIRS: part}}


def write_pairs(records: list[Record], encoder: ChatEncoder, settings: Preferences, folder: Path) -> dict[str, int]:
    """Writes the rows of preference pairs, each with its `reference`; returns their counts.

    Raises:
      DataError: no row has room for any of them.
    """
    random.Random(_SEED).shuffle(records)
    tally, counts = packing.Tally(), Counts()
    stored = PreferenceData(batch_size=1, length=settings.length, pairs=settings.pairs).stored()
    made = encoding.pairs(records, encoder, settings.length, counts)
    rows = encoding.rows_of_pairs(made, settings.length, settings.pairs, tally)
    packing.write_records(folder / "train" / f"{PAIRS}.array_record", (record_of(row, stored) for row in rows))
    if not tally.examples:
        raise DataError(f"none of {len(records)} preference pairs fits a row of {settings.length} tokens")
    return dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], **counts.numbers())


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
