"""Toy caches in the real formats: of translations, whose rows tell where they come from, and of text; real vocabularies."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data.reading import packing
from data.text import encoding
from data.vocabularies import sentencepiece, tokenizers
from data.vocabularies.tokenizers import Tokenizer

_WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "sees",
    "hears",
    "finds",
    "old",
    "red",
    "small",
    "big",
    "house",
    "tree",
    "road",
    "and",
]


def write_cache(caches: Path, languages: dict[str, int], source_length: int, target_length: int) -> Path:
    """Writes caches/toy: so many one-example rows per language; a row's first source token is 100 (second language:
    1100, ...) plus its number."""
    folder = caches / "toy"
    (folder / "train").mkdir(parents=True)
    for at, (name, rows) in enumerate(languages.items()):
        packed = [_row(1000 * at + 100 + i, source_length, target_length) for i in range(rows)]
        packing.write_rows(folder / "train" / f"{name}.array_record", packed)
    manifest = {
        "cache": "toy",
        "kind": "translation",
        "catalogue": "toy",
        "source_length": source_length,
        "target_length": target_length,
        "source_vocabulary": 64,
        "target_vocabulary": 64,
        "fingerprint": "f" * 64,
        "languages": {name: {"pairs": rows, "rows": rows} for name, rows in languages.items()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _row(first: int, source_length: int, target_length: int) -> np.ndarray:
    parts = []
    for length in (source_length, target_length):
        n = length - 1
        parts += [np.pad(np.arange(first, first + n), (0, 1)), np.pad(np.ones(n), (0, 1)), np.pad(np.arange(n), (0, 1))]
    return np.concatenate(parts).astype(np.int32)


def write_vocabularies(folder: Path, languages: list[str], size: int = 512) -> None:
    """Real SentencePiece models of made-up words: `source.model` with tags, `target.model`."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bcdfghklmnprstvz" for b in "aeiouäö"]
    words = ["".join(rng.choice(syllables, rng.integers(2, 5))) for _ in range(1500)]
    words += ["datei", "archivo", "save", "the", "file", "abrir", "öffnen", "0", "1", "2", "3"]
    lines = [" ".join(rng.choice(words, 8)) for _ in range(1000)]
    sentencepiece.train(lines, folder / "source.model", size=size, tags=languages)
    sentencepiece.train(lines, folder / "target.model", size=size)


def write_translation_cache(caches: Path, languages: dict[str, int]) -> None:
    """Writes caches/toy with rows of 16 (see `write_cache`), vocabularies of 512 and four held-out sentences a language."""
    folder = write_cache(caches, languages, source_length=16, target_length=16)
    write_vocabularies(folder, list(languages))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"source_vocabulary": 512, "target_vocabulary": 512}))
    lines = [
        {"lang": lang, "source": f"{'datei' if lang == 'de' else 'archivo'} save {i}", "target": f"save the file {i}"}
        for lang in languages
        for i in range(4)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def texts(n: int, seed: int) -> list[str]:
    """Made-up sentences of 4 to 29 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_WORDS, rng.integers(4, 30))) for _ in range(n)]


def write_text_cache(folder: Path, train: Callable[[list[str], Path, int], object], size: int, length: int) -> None:
    """Sixty training texts packed into rows of `length` tokens, twenty held out ("test"), and their tokenizer.

    Args:
      train: makes a vocabulary of `size`: `data.vocabularies.tokenizers.train_bpe`, or `train_wordpiece` of tests/helpers.
    """
    (folder / "train").mkdir(parents=True)
    train(texts(200, 0), folder / tokenizers.FILE, size)
    tokenizer = Tokenizer(folder)
    rows, _ = encoding.rows_of(texts(60, 1), tokenizer, length)
    packing.write_rows(folder / "train" / "toy.array_record", rows)
    held_out = [{"id": str(i), "origin": "toy", "text": text} for i, text in enumerate(texts(20, 2))]
    finish(folder, held_out, tokenizer, length, kind="text", corpus="toy", rows=len(rows))


def finish(
    folder: Path, held_out: list[dict], tokenizer: Tokenizer, length: int, *, rows: int, part: str = "toy", **more
) -> None:
    """Writes the manifest of a cache with one part, and its held-out examples."""
    manifest = {
        "cache": folder.name,
        "length": length,
        "vocabulary": tokenizer.size,
        "fingerprint": "f" * 64,
        "parts": {part: {"examples": rows, "rows": rows, "tokens": rows * length, "dropped": 0}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest | more))
    (folder / "test.jsonl").write_text("".join(json.dumps(e) + "\n" for e in held_out))
