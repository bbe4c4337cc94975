"""Labels examples with a teacher: it is fine-tuned on the labelled examples and labels the others; both make the cache.

The teacher may see more of an example than its student: that of debian_taught_5k reads the beginning of a package's
description, which is clearer than the summary (learning with privileged information, Vapnik and Vashist 2009; as distillation,
arXiv 1511.03643). The student then learns from many predicted labels instead of few known ones.

Training and labelling run as commands in child processes: this process may import TensorFlow, and they import JAX.
"""

import dataclasses
import json
from pathlib import Path

from configs import registry
from data import paths, stages
from data.cache_maker import maker_of
from data.labelled.caches import LabelledCache, with_seed
from data.labelled.maker import training_examples
from data.labelled.pseudo_labels import FILE, labels_of
from data.packages import fetch, weights
from data.reading.caches import write_examples
from data.stages import Progress, stage
from scripts.recipes import prepare as recipes


def derive(settings: LabelledCache, root: Path, progress: Progress) -> LabelledCache:
    """Writes the training examples of a cache, each with `settings.votes` labels, unless they are written.

    The examples that the teacher was trained on come first and keep their own labels; the others have the teacher's.

    Args:
      settings: the cache's settings; the experiment `settings.teacher` reads the same examples by another task.
      root: the data folder.
      progress: called with each line that the teacher's training prints.

    Returns:
      The settings.
    """
    labels, teacher = labels_of(settings, root), registry.load(settings.teacher)
    name, known = cache_of_teacher(settings)
    makers = [maker_of(name, part, root, progress) for part in (settings, known)]
    packages = {package for maker in makers for package in maker.packages()}
    pins = {package.file: package.sha256 for package in packages}
    inputs = paths.digest([makers[0].FORMAT, registry.to_json(teacher), dataclasses.asdict(known), pins])
    if labels.is_complete(inputs):
        return settings
    if teacher.train.finetune.init_from in weights.WEIGHTS:
        weights.fetch_weights(teacher.train.finetune.init_from, root, progress)
    recipes.prepare(name, known, data_dir=root, progress=progress)
    fetch.fetch(packages, root / "packages", progress)
    stages.quiet_tensorflow()
    examples = training_examples(settings, root, progress)
    views = training_examples(dataclasses.replace(settings, task=known.task), root, progress)
    if [view["text"] for view in views] != [example["text"] for example in examples]:
        raise ValueError(f"{known.task} and {settings.task} are no views of the same examples")

    with paths.scratch(labels.folder) as temporary:
        file, run = temporary / "unlabelled.jsonl", temporary / "run"
        write_examples(file, views[known.limit :])
        seeds = ["--data.seed", str(settings.subset_seed), "--train.seed", str(settings.subset_seed)]
        with stage("teacher", progress):
            recipes.command(root, progress, "train", settings.teacher, "--workdir", run, "--data.cache", name, *seeds)
        lines: list[str] = []
        with stage("labels", progress):
            arguments = ["--checkpoint", run, "--file", file, "--votes", str(settings.votes)]
            recipes.command(root, lines.append, "classify", *arguments)
    own = [[example["label"]] * settings.votes for example in examples[: known.limit]]
    votes = own + [json.loads(line)["votes"] for line in lines]
    labels.write(FILE, [{**example, "label": labels} for example, labels in zip(examples, votes, strict=True)])
    labels.finish(teacher=settings.teacher, cache=name, inputs=inputs)
    return settings


def cache_of_teacher(settings: LabelledCache) -> tuple[str, LabelledCache]:
    """Returns the name and settings of the teacher's cache: its experiment's, with the same choice of examples."""
    return with_seed(registry.load(settings.teacher).data.cache, settings.subset_seed)
