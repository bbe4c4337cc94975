"""Labels that a model gives: a teacher is fine-tuned on the examples whose labels are known and names those of the others.

The teacher may see more of an example than its student will: that of debian_taught_5k reads the beginning of a package's
description, which says plainly what the summary leaves to be guessed (learning with privileged information, Vapnik and
Vashist 2009; as distillation, arXiv 1511.03643). The student then learns from many guessed labels instead of few known ones.

Training and labelling are commands of their own, in processes of their own: nothing here imports JAX.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from data import paths
from data.labelled import splits
from data.labelled.settings import Labelled, cache_of_teacher
from data.reading.caches import DataError, write_examples
from data.stages import Progress, stage


def label(settings: Labelled, examples: list[splits.Example], root: Path, progress: Progress) -> list[splits.Example]:
    """The same examples, each with `settings.votes` labels: the first ones' are all their own, the others' the teacher's.

    Args:
      settings: of the cache to be made; `settings.teacher` reads another task's view of the same examples.
      examples: of the training split, in the order of `splits.subset`.
      root: the data folder.
      progress: is told what the teacher's training prints.

    Raises:
      DataError: a command failed; it has said why.
    """
    from data import prepare
    from data.labelled import tasks

    cache, known = cache_of_teacher(settings)
    prepare.prepare(cache, known, data_dir=root, progress=progress)
    views = splits.subset(tasks.raw_examples(known.task, "train", root / "tfds"), settings.limit, settings.subset_seed)
    if [view["text"] for view in views] != [example["text"] for example in examples]:
        raise ValueError(f"{known.task} and {settings.task} are no views of the same examples")
    with paths.scratch(root / "teachers" / cache) as folder:
        file, run = folder / "examples.jsonl", folder / "run"
        write_examples(file, views[known.limit :])
        seeds = ["--data.seed", str(settings.subset_seed), "--train.seed", str(settings.subset_seed)]
        with stage("teacher", progress):
            _command(root, progress, "train", settings.teacher, "--workdir", run, "--data.cache", cache, *seeds)
        found: list[str] = []
        with stage("labels", progress):
            _command(
                root, found.append, "classify", "--checkpoint", run, "--file", file, "--votes", str(settings.votes)
            )
    own = [[example["label"]] * settings.votes for example in examples[: known.limit]]
    labels = own + [json.loads(line)["votes"] for line in found]
    return [{**example, "label": votes} for example, votes in zip(examples, labels, strict=True)]


def _command(root: Path, say: Progress, name: str, *arguments: str | Path) -> None:
    """Runs one of scripts/ on the data in `root`; `say` is told its lines."""
    command = [sys.executable, "-m", f"scripts.{name}", *map(str, arguments)]
    environment = os.environ | {"SHARDZOO_DATA": str(root.absolute())}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, cwd=paths.ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))
    if process.returncode:
        raise DataError(f"scripts.{name}, which labels examples, ended with exit code {process.returncode}")
