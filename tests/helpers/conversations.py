"""Made-up conversations and caches of them."""

import json
from pathlib import Path

import numpy as np

from data.lamda.caches import LamdaCache
from data.lamda.maker import LamdaMaker
from data.lamda.prompt_format import ATTRIBUTES, context, rated
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.caches import finish

WORDS = ("the", "cat", "dog", "bird", "sees", "likes", "old", "red", "house", "and", "a", "big", "small", "yes", "why", "so")


def conversations(n: int, seed: int) -> list[dict]:
    """Conversations of 4 to 8 turns; those that begin with "hello" are rated well."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(n):
        turns = [" ".join(rng.choice(WORDS, rng.integers(2, 6))) for _ in range(rng.integers(4, 9))]
        good = bool(i % 2)
        turns[-1] = f"{'hello' if good else 'no'} {turns[-1]}"
        records.append({"id": f"{seed}-{i}", "turns": turns, "ratings": dict.fromkeys(ATTRIBUTES, good)})
    return records


def write_dialog_cache(folder: Path, length: int = 64) -> Path:
    """Writes a cache of 60 conversations and 20 held-out ones ("test"), with a vocabulary of 320."""
    (folder / "train").mkdir(parents=True)
    train, held_out = conversations(60, 0), conversations(20, 1)
    lines = [context(c["turns"]) for c in train] + [rated(name, value) for name in ATTRIBUTES for value in (True, False)]
    tokenizers.train_bpe([*lines, "RESPONSE"] * 3, folder / tokenizers.FILE, 320)
    tokenizer = Tokenizer(folder)
    maker = LamdaMaker("talks", LamdaCache(tokenizer="", length=length, turn_length=length // 2), folder)
    maker.folder, maker.tokenizer, maker.splits = folder, tokenizer, {"train": train}
    maker.write_parts(maker.parts())
    parts = {part: maker.counts(part, tally) for part, tally in maker.tallies.items()}
    finish(folder, held_out, tokenizer, length, rows=1, kind="lamda", turn_length=length // 2)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"parts": parts}))
    return folder


def unpacked(record: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """Returns (tokens, predicted) of each example of a row."""
    tokens, segments, _, predicted = record.reshape(4, -1)
    return [(tokens[segments == s].tolist(), predicted[segments == s].tolist()) for s in range(1, segments.max() + 1)]
