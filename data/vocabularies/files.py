"""The files that a vocabulary consists of, whichever kind it is."""

import json
import shutil
from pathlib import Path
from typing import Any

from data import untrusted
from data.vocabularies import bytes_json
from models.errors import UserError, shortened

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"  # of the `tokenizers` library, and of `transformers`
PIECES, IDS = ("sentencepiece.bpe.model", "vocab.json")  # a translator's; `vocab.json` has the ids of the pieces, if others
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"  # tokens that `transformers` adds to the pieces
TEMPLATE = "chat_template.jinja"  # as `transformers` 5 writes it; before, it was a field of CONFIG
GENERATION = "generation_config.json"  # how `transformers` continues a text: ids that end it, that are never written
MODEL = "config.json"  # of a model; no file of the vocabulary, but released ones say here what ends a text
PATTERNS = ("*.model", TOKENIZER, CONFIG, IDS, SPECIAL, ADDED, TEMPLATE, GENERATION)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_NO_ID = (None, -1, [])


class VocabularyError(UserError):
    """A vocabulary that is missing or damaged, or that cannot write a text, a language or a task; the message is one line."""


def readable(folder: Path) -> bool:
    """Returns whether a Hugging Face folder holds a vocabulary that can be read here."""
    return has_tokenizer(folder) or (folder / PIECES).exists()


def has_tokenizer(folder: Path) -> bool:
    """Returns whether a folder has a tokenizer.json, or a vocabulary of bytes, which needs no file."""
    return (folder / TOKENIZER).exists() or _of_bytes(folder)


def tokenizer_text(file: Path) -> str:
    """Returns the content of a tokenizer.json, or that of bytes where its folder has such a vocabulary.

    Raises:
      VocabularyError: it is missing or no text, or the number of marks of a vocabulary of bytes (`extra_ids`) is none.
    """
    if file.exists() or not _of_bytes(file.parent):
        return untrusted.read_text(file, VocabularyError)
    marks = read_object(file.parent / CONFIG).get("extra_ids", bytes_json.MARKS)
    if type(marks) is not int or not 0 <= marks <= untrusted.MARKS:
        marks = shortened(repr(marks))
        raise VocabularyError(
            f"{file.parent / CONFIG}: extra_ids={marks}: expected a number of marks, as released {bytes_json.MARKS}"
        )
    return json.dumps(bytes_json.tokenizer_json(marks))


def _of_bytes(folder: Path) -> bool:
    return any(read_object(folder / name).get("tokenizer_class") == bytes_json.CLASS for name in (CONFIG, MODEL))


def listed(folder: Path) -> list[Path]:
    """Returns a vocabulary's files, by name."""
    return sorted({file for pattern in PATTERNS for file in folder.glob(pattern)})


def copy(vocabulary: Path, to: Path) -> None:
    """Copies a vocabulary's files, of bytes those that it does without, and what its folder says of the ids that end a text."""
    for file in listed(vocabulary):
        if file.name != GENERATION:
            shutil.copyfile(file, to / file.name)
    if not (vocabulary / TOKENIZER).exists() and _of_bytes(vocabulary):
        (to / TOKENIZER).write_text(tokenizer_text(vocabulary / TOKENIZER))
        named = bytes_json.NAMED | read_object(vocabulary / CONFIG) | {"tokenizer_class": bytes_json.CLASS}
        (to / CONFIG).write_text(json.dumps(named, indent=2) + "\n")
    if settings := read_object(vocabulary / GENERATION) | token_ids(vocabulary):
        (to / GENERATION).write_text(json.dumps(settings, indent=2) + "\n")


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, empty where there is none; raises VocabularyError if the file is damaged."""
    return untrusted.read_json(path, VocabularyError) if path.exists() else {}


def token_ids(folder: Path) -> dict[str, Any]:
    """Returns `eos_token_id`, an id or several, and the ids of other tokens from a model's files; empty where they name no end.

    Raises:
      VocabularyError: a file is damaged.
    """
    for name in (GENERATION, MODEL):
        ids = {key: value for key, value in read_object(folder / name).items() if key in _TOKENS and value not in _NO_ID}
        for key, value in ids.items():
            each = value if isinstance(value, list) and key == "eos_token_id" else [value]
            if any(type(id_) is not int for id_ in each):
                raise VocabularyError(f"{folder / name}: {key} is {shortened(repr(value))}, which is no token's id")
        if "eos_token_id" in ids:
            return ids
    return {}
