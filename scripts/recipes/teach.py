"""Prepares caches with a model's labels: a teacher is fine-tuned on the labelled examples and labels the others; both make the
cache.

The teacher may see more of an example than its student: that of debian_taught_5k reads the beginning of a package's
description, which is clearer than the summary (learning with privileged information, Vapnik and Vashist 2009; as distillation,
arXiv 1511.03643). The student then learns from many predicted labels instead of few known ones.

Training and labelling run as commands in child processes: this process may import TensorFlow, and they import JAX.
"""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from configs import registry
from data import paths, stages
from data import prepare as plain
from data.chat.settings import Preferences
from data.labelled import cache as maker
from data.labelled import taught
from data.labelled.settings import Labelled, with_seed
from data.packages import fetch, weights
from data.reading.caches import write_examples
from data.stages import Progress, stage
from models.errors import UserError
from scripts.recipes import reference

# The recipe of each kind of data whose settings may name a teacher: a module with `label(settings, root, progress)`.
RECIPES = {"labelled": "scripts.recipes.teach", "speech": "scripts.recipes.listen"}
_MANIFEST = "manifest.json"


def prepare(
    cache: str,
    settings: plain.Settings | None = None,
    *,
    data_dir: Path | None = None,
    vocabulary: Path | None = None,
    progress: Progress = print,
    beam: Sequence[str] | None = None,
) -> Path:
    """Makes a packed cache as `data.prepare.prepare` does; first a teacher's labels, by the recipe of the kind, if its settings
    name a teacher, or what its reference says of preference pairs.

    Raises:
      UserError: a command that trains the teacher or labels with it failed; its own output has the error.
    """
    settings = settings or plain.PREPARED[cache]
    root = data_dir or paths.data_dir()
    if getattr(settings, "teacher", ""):
        importlib.import_module(RECIPES[settings.kind]).label(settings, root, progress)
    if getattr(settings, "reference", ""):
        settings = reference.located(cast(Preferences, settings), root, progress)
        reference.score(settings, root, progress)
    return plain.prepare(cache, settings, data_dir=root, vocabulary=vocabulary, progress=progress, beam=beam)


def label(settings: Labelled, root: Path, progress: Progress) -> Path:
    """Writes the training examples of a cache, each with `settings.votes` labels, unless they are written.

    The examples that the teacher was trained on come first and keep their own labels; the others have the teacher's.

    Args:
      settings: the cache's settings; the experiment `settings.teacher` reads the same examples by another task.
      root: the data folder.
      progress: called with each line that the teacher's training prints.

    Returns:
      The folder, `data.labelled.taught.folder_of`.
    """
    folder = taught.folder_of(settings, root)
    teacher = registry.load(settings.teacher)
    name, known = cache_of_teacher(settings)
    packages = {package for part in (settings, known) for package in maker.packages_of(part)}
    pins = {package.file: package.sha256 for package in packages}
    inputs = paths.digest([maker.FORMAT, registry.to_json(teacher), dataclasses.asdict(known), pins])
    if _is_made_from(folder, inputs):
        return folder
    if teacher.train.finetune.init_from in weights.WEIGHTS:
        weights.fetch_weights(teacher.train.finetune.init_from, root, progress)
    prepare(name, known, data_dir=root, progress=progress)
    fetch.fetch(packages, root / "packages", progress)
    stages.quiet_tensorflow()
    examples = maker.training_examples(settings, root, progress)
    views = maker.training_examples(dataclasses.replace(settings, task=known.task), root, progress)
    if [view["text"] for view in views] != [example["text"] for example in examples]:
        raise ValueError(f"{known.task} and {settings.task} are no views of the same examples")

    with paths.new_folder(folder) as new, paths.scratch(folder) as temporary:
        file, run = temporary / "unlabelled.jsonl", temporary / "run"
        write_examples(file, views[known.limit :])
        seeds = ["--data.seed", str(settings.subset_seed), "--train.seed", str(settings.subset_seed)]
        with stage("teacher", progress):
            command(root, progress, "train", settings.teacher, "--workdir", run, "--data.cache", name, *seeds)
        lines: list[str] = []
        with stage("labels", progress):
            command(root, lines.append, "classify", "--checkpoint", run, "--file", file, "--votes", str(settings.votes))
        own = [[example["label"]] * settings.votes for example in examples[: known.limit]]
        labels = own + [json.loads(line)["votes"] for line in lines]
        write_examples(
            new / f"{taught.SPLIT}.jsonl", ({**example, "label": votes} for example, votes in zip(examples, labels, strict=True))
        )
        (new / _MANIFEST).write_text(json.dumps({"teacher": settings.teacher, "cache": name, "inputs": inputs}))
    return folder


def cache_of_teacher(settings: Labelled) -> tuple[str, Labelled]:
    """Returns the name and settings of the teacher's cache: its experiment's, with the same choice of examples."""
    return with_seed(registry.load(settings.teacher).data.cache, settings.subset_seed)


def _is_made_from(folder: Path, inputs: str) -> bool:
    try:
        return json.loads((folder / _MANIFEST).read_text())["inputs"] == inputs
    except FileNotFoundError:
        return False


def command(root: Path, say: Progress, name: str, *arguments: str | Path) -> None:
    """Runs one of scripts/ on the data in `root`; `say` is called with its lines."""
    command = [sys.executable, "-m", f"scripts.{name}", *map(str, arguments)]
    environment = os.environ | {"SHARDZOO_DATA": str(root.absolute())}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, cwd=paths.ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))
    if process.returncode:
        raise UserError(f"scripts.{name}, which labels examples, ended with exit code {process.returncode}")
