"""Prepared caches as training and evaluation find them: where they lie, and what their manifests say. No TensorFlow."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from configs.experiment import Data
from data.paths import data_dir
from models.errors import UserError, nearest


class DataError(UserError):
    """Data that is missing or does not fit the experiment; the message is one line that says what to do."""


def read_manifest(folder: Path) -> dict:
    """A cache's manifest; raises DataError where there is none, saying how to make one."""
    path = folder / "manifest.json"
    if not path.exists():
        raise DataError(f"no prepared data at {folder}; run: python -m scripts.prepare_data {folder.name}")
    return json.loads(path.read_text())


def check_model(model: Any, manifest: dict) -> None:
    """Refuses a model whose vocabularies are smaller than the cache's, or whose classes are not as many."""
    for key, field in model.vocabularies.items():
        have, want = getattr(model, field), manifest[key]
        if have < want:
            raise DataError(f"model.{field}={have} is too small for cache {manifest['cache']!r}: at least {want}")
    have, want = getattr(model, "labels", 0), len(manifest.get("labels", ()))
    if have and have != want:
        raise DataError(f"model.head.labels={have}: cache {manifest['cache']!r} has {want} labels")


def parts(manifest: dict) -> dict[str, dict[str, int]]:
    """The counts of each part of a cache (a language, an origin of text), which is a file of its own."""
    return manifest["languages" if manifest["kind"] == "translation" else "parts"]


def examples(cache: Path, split: str, limit: int = 0) -> Iterator[dict[str, Any]]:
    """The raw examples of a cache's split, at most `limit` of them; raises DataError for an unknown split."""
    path = cache / f"{split}.jsonl"
    if not path.exists():
        read_manifest(cache)
        splits = sorted(p.stem for p in cache.glob("*.jsonl"))
        raise DataError(f"cache {cache.name!r} has no split {split!r}{nearest(split, splits)}")
    with path.open(encoding="utf-8") as file:  # not splitlines(), which also cuts at U+2028 inside a string
        for line in itertools.islice(file, limit or None):
            yield json.loads(line)


def write_examples(path: Path, examples: Iterable[dict[str, Any]]) -> None:
    """Writes raw examples as `examples` reads them, one a line."""
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(example, ensure_ascii=False) + "\n")


def cache_folder(data: Data) -> Path:
    """Where the prepared cache of this data is, or will be; raises DataError for random data."""
    if not data.cache:
        raise DataError("the experiment's data is random tokens: there is no prepared cache and nothing held out")
    return data_dir() / "caches" / data.cache
