"""Prepares caches, and before them what other models derive from their examples: labels, transcripts, log-probabilities."""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from data import paths
from data import prepare as plain
from data.config import CacheConfig
from data.stages import Progress
from models.errors import UserError

# The recipe of each kind of data whose settings may name a model (`derived_by`): a module with
# `derive(settings, root, progress)`, which returns the settings, with the model's location.
RECIPES = {
    "chat": "scripts.recipes.reference_logprobs",
    "labelled": "scripts.recipes.distil",
    "speech": "scripts.recipes.transcribe_unlabelled",
}


def prepare(
    cache: str,
    settings: CacheConfig | None = None,
    *,
    data_dir: Path | None = None,
    vocabulary: Path | None = None,
    progress: Progress = print,
    beam: Sequence[str] | None = None,
) -> Path:
    """Makes a packed cache as `data.prepare.prepare` does; first, by the recipe of its kind, what a model derives for it.

    Raises:
      UserError: a command that trains a teacher or labels with it failed; its own output has the error.
    """
    settings = settings or plain.PREPARED[cache]
    root = data_dir or paths.data_dir()
    if settings.derived_by:
        settings = importlib.import_module(RECIPES[settings.kind]).derive(settings, root, progress)
    return plain.prepare(cache, settings, data_dir=root, vocabulary=vocabulary, progress=progress, beam=beam)


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
