"""The tokens that texts begin and end with, as the folder of a vocabulary says.

    before and behind every text       the post-processor of tokenizer.json; where it adds nothing, `add_bos_token` and
                                       `add_eos_token` of tokenizer_config.json
    the beginning, the end, padding    `bos_token`, `eos_token` and `pad_token` of tokenizer_config.json, or of
                                       special_tokens_map.json
    the longest text                   `model_max_length` of tokenizer_config.json, `max_position_embeddings` of config.json
    what ends a continuation           `eos_token_id`, one or several, of generation_config.json, or of config.json; else the end

That is what `transformers` does, with two differences. It ends nothing where neither of the model's files names an end. And its
version 4 reads `add_bos_token` for LLaMA's and Gemma's classes alone, but then whatever the post-processor adds; version 5 does
not read it beside a tokenizer.json, so that DeepSeek's texts, to which the post-processor adds nothing, lack their beginning.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data.vocabularies import files
from data.vocabularies.files import VocabularyError
from models.errors import shortened

Ids = tuple[int, ...]
_LONGEST = {files.CONFIG: "model_max_length", files.MODEL: "max_position_embeddings"}
_ENDLESS = 10**9  # `transformers` writes a huge number where it does not know
Lookup = Callable[[str], int | None]  # the id of a piece


def named(folder: Path, name: str, id_of: Lookup) -> int | None:
    """Returns the id of a token that a folder names, such as `eos_token`; None if it names none, or one that is not there.

    Raises:
      VocabularyError: a file is damaged.
    """
    for file in (files.CONFIG, files.SPECIAL):
        piece = files.read_object(folder / file).get(name)
        piece = piece.get("content") if isinstance(piece, Mapping) else piece  # some files hold a piece's settings
        if isinstance(piece, str):
            return id_of(piece)
        if piece is not None:
            raise VocabularyError(f"{folder / file}: {name} is {shortened(repr(piece))}, which is no token")
    return None


def ends(folder: Path, id_of: Lookup) -> Ids:
    """Returns the ids that end a continuation, none where the folder does not say."""
    stated = files.token_ids(folder).get("eos_token_id")
    if stated is not None:
        return tuple(stated) if isinstance(stated, list) else (stated,)
    end = named(folder, "eos_token", id_of)
    return () if end is None else (end,)


def longest(folder: Path) -> int | None:
    """Returns the most tokens that a folder says its model reads; None where it does not say.

    Raises:
      VocabularyError: a file is damaged.
    """
    stated = (files.read_object(folder / file).get(name) for file, name in _LONGEST.items())
    return min((n for n in stated if type(n) is int and 0 < n < _ENDLESS), default=None)


def around(folder: Path, processor: Any, id_of: Lookup) -> tuple[Ids, Ids]:
    """Returns the ids that stand before every text, and those behind it.

    Args:
      processor: the `post_processor` of a tokenizer.json that the `tokenizers` library has read.
    """
    before, behind = _added(processor)
    if before or behind:
        return before, behind
    settings = files.read_object(folder / files.CONFIG)
    sides = [
        named(folder, f"{name}_token", id_of) if settings.get(f"add_{name}_token") is True else None for name in ("bos", "eos")
    ]
    before, behind = (() if id_ is None else (id_,) for id_ in sides)
    return before, behind


def _added(processor: Any) -> tuple[Ids, Ids]:
    """Returns the ids that a post-processor puts before and behind a text."""
    match processor:
        case {"type": "Sequence", "processors": list(processors)}:
            sides = (added for added in map(_added, processors) if any(added))
            return next(sides, ((), ()))  # of two templates, the library takes the first
        case {"type": "TemplateProcessing", "single": list(parts), "special_tokens": dict(known)}:
            sides, side = ([], []), 0
            for part in parts:
                if "Sequence" in part:
                    side = 1
                else:
                    sides[side].extend(known[part["SpecialToken"]["id"]]["ids"])
            return tuple(sides[0]), tuple(sides[1])
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, before], "sep": [_, behind]}:
            return (before,), (behind,)
    return (), ()
