"""Folders of Hugging Face's made of fixtures."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from data.paths import ROOT
from models.errors import UserError
from models.interchange import InterchangeError
from trainers.weights.huggingface import HuggingFace

PARITY = ROOT / "tests" / "fixtures" / "parity"
Tensors = dict[str, Any]


def copy(
    name: str, to: Path, change: Callable[[Tensors], Tensors] | None = None, drop: Iterable[str] = (), **settings: Any
) -> Path:
    """A fixture with its tensors changed, and with other settings in its config.json; those that are dropped are left out."""
    shutil.copytree(PARITY / name, to)
    if change:
        save_file(change(load_file(to / "model.safetensors")), to / "model.safetensors")
    config = json.loads((to / "config.json").read_text()) | settings
    (to / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in drop}))
    return to


def assert_refused(folder: Path, error: str, kind: type[UserError] = InterchangeError) -> None:
    """The folder is refused in one line, which has this part."""
    with pytest.raises(kind) as caught:
        HuggingFace(folder)
    (line,) = str(caught.value).splitlines()
    assert error in line, line
