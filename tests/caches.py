"""A toy cache in the real format: rows that tell where they come from, and real vocabularies."""

import json
from pathlib import Path

import numpy as np

from data import packing, vocabularies


def write_cache(caches: Path, languages: dict[str, int], source_length: int, target_length: int) -> Path:
    """Writes caches/toy: so many one-example rows per language; a row's first source token is 100 (second language:
    1100, ...) plus its number."""
    folder = caches / "toy"
    (folder / "train").mkdir(parents=True)
    for at, (name, rows) in enumerate(languages.items()):
        packed = [_row(1000 * at + 100 + i, source_length, target_length) for i in range(rows)]
        packing.write_rows(folder / "train" / f"{name}.array_record", packed)
    manifest = {
        "cache": "toy", "kind": "translation", "catalogue": "toy", "source_length": source_length, "target_length": target_length,
        "source_vocabulary": 64, "target_vocabulary": 64, "fingerprint": "f" * 64,
        "languages": {name: {"pairs": rows, "rows": rows} for name, rows in languages.items()},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _row(first: int, source_length: int, target_length: int) -> np.ndarray:
    parts = []
    for length in (source_length, target_length):
        n = length - 1
        parts += [
            np.pad(np.arange(first, first + n), (0, 1)),
            np.pad(np.ones(n), (0, 1)),
            np.pad(np.arange(n), (0, 1)),
        ]
    return np.concatenate(parts).astype(np.int32)


def write_vocabularies(folder: Path, languages: list[str], size: int = 512) -> None:
    """Real SentencePiece models of made-up words: `source.model` with tags, `target.model`."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bcdfghklmnprstvz" for b in "aeiouäö"]
    words = ["".join(rng.choice(syllables, rng.integers(2, 5))) for _ in range(1500)]
    words += ["datei", "archivo", "save", "the", "file", "abrir", "öffnen", "0", "1", "2", "3"]
    lines = [" ".join(rng.choice(words, 8)) for _ in range(1000)]
    vocabularies.train(lines, folder / "source.model", size=size, tags=languages)
    vocabularies.train(lines, folder / "target.model", size=size)
