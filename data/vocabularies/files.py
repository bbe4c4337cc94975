"""The files that a vocabulary consists of, whichever kind it is."""

import shutil
from pathlib import Path

from models.errors import UserError

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"  # of the `tokenizers` library, and of `transformers`
PIECES, IDS = (
    "sentencepiece.bpe.model",
    "vocab.json",
)  # a translator's; `vocab.json` has the ids of the pieces, if others
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"  # tokens that `transformers` adds to the pieces
TEMPLATE = "chat_template.jinja"  # as `transformers` 5 writes it; before, it was a field of CONFIG
PATTERNS = ("*.model", TOKENIZER, CONFIG, IDS, SPECIAL, ADDED, TEMPLATE)


class VocabularyError(UserError):
    """A vocabulary that is missing or damaged, or that cannot write a text, a language or a task; the message is one line."""


def readable(folder: Path) -> bool:
    """Returns whether a Hugging Face folder holds a vocabulary that can be read here."""
    return any((folder / name).exists() for name in (TOKENIZER, PIECES))


def listed(folder: Path) -> list[Path]:
    """Returns a vocabulary's files, by name."""
    return sorted({file for pattern in PATTERNS for file in folder.glob(pattern)})


def copy(vocabulary: Path, to: Path) -> None:
    """Copies a vocabulary's files into another folder."""
    for file in listed(vocabulary):
        shutil.copyfile(file, to / file.name)
