"""The files that a vocabulary consists of, whichever kind it is."""

import json
import shutil
from pathlib import Path
from typing import Any

from data import untrusted
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
    return any((folder / name).exists() for name in (TOKENIZER, PIECES))


def listed(folder: Path) -> list[Path]:
    """Returns a vocabulary's files, by name."""
    return sorted({file for pattern in PATTERNS for file in folder.glob(pattern)})


def copy(vocabulary: Path, to: Path) -> None:
    """Copies a vocabulary's files into another folder, and what its folder says of the ids that end a text."""
    for file in listed(vocabulary):
        if file.name != GENERATION:
            shutil.copyfile(file, to / file.name)
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
