"""Prepared caches: their folders, manifests and raw examples. No TensorFlow."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from data import kinds, untrusted
from data.config import DataConfig
from data.paths import data_dir, sha256
from data.task import DataError
from models.errors import nearest, shortened
from models.families import ModelConfig

_HASHED = 1 << 30  # bytes of a file of rows that are compared with the manifest's SHA-256


def read_manifest(folder: Path) -> dict:
    """Returns a cache's manifest; raises DataError if there is none, with the command to run or the nearest name."""
    path = folder / "manifest.json"
    if not path.exists():
        known = kinds.prepared()
        name, there = folder.name, (other.parent.name for other in folder.parent.glob("*/manifest.json"))
        hint = nearest(name, {*known, *there} - {name})
        if name in known or "did you mean" not in hint:
            more = ", or scripts.train with --prepare" if name in known else " --from SOURCE"
            hint = f"; run: python -m scripts.prepare_data {name}{more}"
        raise DataError(f"no prepared data at {folder}{hint}")
    return untrusted.read_json(path, DataError)


def check_fields(data: DataConfig, manifest: Mapping[str, Any], *fields: str) -> None:
    """Raises DataError for data whose lengths are not those that the cache was packed with."""
    for field in fields:
        value, packed = getattr(data, field), manifest.get(field, 0)
        if value != packed:
            raise DataError(f"data.{field}={value}: cache {data.cache!r} was packed with {shortened(str(packed))}")


def vocabulary_fields(model: ModelConfig) -> dict[str, str]:
    """Returns the model's fields for the sizes of its vocabularies, by the manifest's key for each.

    Raises:
      DataError: the model reads no tokens.
    """
    fields = getattr(model, "vocabularies", None)
    if not fields:
        raise DataError(f"a model of family {model.family!r} reads no tokens, which this data is made of")
    return fields


def field_of(model: ModelConfig, size: str, default: str = "") -> str:
    """Returns the path of the model's field for a size that the data decide, such as "labels"; the size's own name by default."""
    return getattr(model, "sized_by_data", {}).get(size, default or size)


def smallest_vocabulary(model: ModelConfig) -> int:
    """Returns the size of the model's smallest vocabulary."""
    return min(getattr(model, field) for field in vocabulary_fields(model).values())


def check_vocabularies(model: ModelConfig, manifest: Mapping[str, Any]) -> None:
    """Raises DataError for a model whose vocabularies are smaller than the cache's, or of other sides than it has."""
    # A model of one vocabulary reads data of one as well as of two.
    fields = {key: field for key, field in vocabulary_fields(model).items() if key in manifest}
    if not fields:
        cache = shortened(repr(manifest["cache"]))
        raise DataError(f"a model of family {model.family!r} reads none of the vocabularies of cache {cache}")
    for key, field in fields.items():
        size, needed = getattr(model, field), manifest[key]
        if size < needed:
            cache, least = (shortened(repr(value)) for value in (manifest["cache"], needed))
            raise DataError(f"model.{field_of(model, key, field)}={size} is too small for cache {cache}: at least {least}")


@runtime_checkable
class HasLabels(Protocol):
    """The configuration of a model with a head of classes."""

    @property
    def labels(self) -> int:
        """Returns the number of classes; 0 where the head has none of its own."""
        ...


def labels_of(model: ModelConfig) -> int:
    """Returns the number of a model's classes; 0 where it has none of its own."""
    return model.labels if isinstance(model, HasLabels) else 0


def check_labels(model: ModelConfig, manifest: Mapping[str, Any]) -> None:
    """Raises DataError for a model that has a head of more or fewer classes than the cache."""
    labels, expected = labels_of(model), len(manifest.get("labels", ()))
    if labels and labels != expected:
        flag = f"model.{field_of(model, 'labels')}"
        raise DataError(
            f"{flag}={labels}: cache {manifest['cache']!r} has {expected} labels"
            f"{f'; take --{flag} {expected}' if expected else ''}"
        )


def class_names(folder: Path) -> list[str]:
    """Returns the names of the classes from the manifest of a cache or a release, or from a Hugging Face folder's config.json.

    Raises:
      DataError: nothing there names them.
    """
    manifest, config = folder / "manifest.json", folder / "config.json"
    named = None
    if manifest.exists():
        named = read_manifest(folder).get("labels")
    elif config.exists():
        with untrusted.damage(config, DataError):
            named = untrusted.read_json(config, DataError).get("id2label") or {}
            named = [named[key] for key in sorted(named, key=int)]
    if not named:
        raise DataError("nothing beside the weights names the classes: take a run or a release")
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise DataError(f"{folder}: the names of the classes are damaged: expected a list of words")
    return named


def examples(cache: Path, split: str, limit: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the raw examples of a cache's split, at most `limit` of them; raises DataError for an unknown split."""
    path = cache / f"{split}.jsonl"
    if not path.exists():
        read_manifest(cache)
        splits = sorted(file.stem for file in cache.glob("*.jsonl"))
        raise DataError(f"cache {cache.name!r} has no split {split!r}{nearest(split, splits)}")
    for _, value in itertools.islice(untrusted.json_lines(path, DataError), limit or None):
        yield value


def write_examples(path: Path, examples: Iterable[dict[str, Any]]) -> None:
    """Writes raw examples as `examples` reads them, one a line."""
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(example, ensure_ascii=False) + "\n")


def cache_folder(data: DataConfig) -> Path:
    """Returns the folder of this data's prepared cache, which may not exist yet; raises DataError for random data."""
    if not data.cache:
        raise DataError("the experiment's data is random tokens: there is no prepared cache and nothing held out")
    if Path(data.cache).name != data.cache:  # experiments come from others' releases
        raise DataError(f"data.cache={shortened(data.cache)!r} is no name of a cache: it leaves the folder of caches")
    return data_dir() / "caches" / data.cache


def check_rows(folder: Path, manifest: Mapping[str, Any], name: str) -> Path:
    """Returns a file of training rows; raises DataError unless it is the one that the manifest was written with.

    Files of more than 1 GiB are not read whole for that. Each record has a checksum of its own.
    """
    file = f"train/{name}.array_record"
    path = untrusted.member(folder, file, DataError)
    listed = manifest.get("files")
    want = listed.get(file) if isinstance(listed, dict) else None
    if want and path.stat().st_size <= _HASHED and sha256(path) != want:
        raise DataError(
            f"{path} is damaged or another cache's: its SHA-256 is not the manifest's; remove {folder} and prepare it anew"
        )
    return path
