"""Small vocabularies in the form of released families': post-processors, special tokens and settings, of a few letters.

What `transformers` makes of each is in tests/fixtures/parity/texts (tests/parity/live.py).
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from data.vocabularies import files
from tests.parity.vocabularies import FIRST, LEARNED, LETTERS, TEXTS, Vocabulary

SIZE = 101  # ids, as many as the models of tests/parity/cases have


def write(vocabulary: Vocabulary, folder: Path, models_in: Path) -> Path:
    """Writes a tokenizer.json and the files beside it that say what a text begins and ends with.

    Args:
      models_in: the folder of the models' folders, whose config.json it gets.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_level(vocabulary) if vocabulary.form == "bytes" else _pieces(vocabulary)
    tokenizer.save(str(folder / files.TOKENIZER))
    added = tokenizer.get_added_tokens_decoder()
    ids = {token.content: id_ for id_, token in added.items()}

    def ids_of(pieces: str | tuple[str, ...]) -> int | list[int]:
        return [ids[piece] for piece in pieces] if isinstance(pieces, tuple) else ids[pieces]

    for name, content in vocabulary.files.items():
        _write(folder / name, content)
    if vocabulary.generation:
        _write(folder / files.GENERATION, {"eos_token_id": ids_of(vocabulary.generation)})
    model = json.loads((models_in / vocabulary.model / files.MODEL).read_text())
    _write(folder / files.MODEL, model | {"eos_token_id": ids_of(vocabulary.model_ends)})
    return folder


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Returns byte-level BPE, whose special tokens have the last ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted({piece for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(LETTERS) for piece in word})
    trainer = trainers.BpeTrainer(vocab_size=SIZE - len(vocabulary.special), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, LEARNED], trainer)
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in vocabulary.special])
    return _finished(tokenizer, vocabulary)


def _pieces(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Returns SentencePiece's pieces, of whose special tokens some have the first ids."""
    first = [piece for piece in vocabulary.special if piece in FIRST]
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(vocabulary.special), initial_alphabet=sorted(LETTERS.replace(" ", "▁")), show_progress=False
    )
    learner.train_from_iterator([*TEXTS, LEARNED], trainer)
    model = json.loads(learner.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    known = {piece: id_ for id_, piece in enumerate([*first, *pieces])}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(known, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    blanks = normalizers.Replace(" ", "▁")
    prefix = "<bos>" not in vocabulary.special  # Gemma's texts begin with no blank
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if prefix else blanks
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in vocabulary.special])
    return _finished(tokenizer, vocabulary)


def _finished(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    assert tokenizer.get_vocab_size() == SIZE, tokenizer.get_vocab_size()
    known = [(piece, tokenizer.token_to_id(piece)) for piece in vocabulary.special]
    levels = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    match vocabulary.around:
        case None:
            pass
        case "":
            tokenizer.post_processor = levels
        case around:
            used = [(piece, id_) for piece, id_ in known if piece in around.split()]
            template = processors.TemplateProcessing(single=around, pair=f"{around} $B:1", special_tokens=used)
            both = vocabulary.form == "bytes"
            tokenizer.post_processor = processors.Sequence([levels, template]) if both else template
    return tokenizer
