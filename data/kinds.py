"""The kinds of data: each is plain configuration plus behaviour that is found by its name. No JAX, no TensorFlow.

A kind is a folder with config.py (`CONFIGS`, frozen dataclasses with a ClassVar `kind`; `EVALS`, ways to evaluate that it brings
along), task.py (`task`, which makes the behaviour of a configuration: data.task.Task), settings.py (`ENTRIES`, its prepared
caches by name) and cache.py, which makes them. Registering one is a line in `KINDS`.
"""

import importlib
from typing import Any

from data.config import DataConfig, Decode, HeldOut
from data.task import Task
from models.errors import UserError, nearest

KINDS: dict[str, str] = {  # name -> package
    "chat": "data.chat",
    "dialog": "data.dialog",
    "grids": "data.grids",
    "images": "data.images",
    "labelled": "data.labelled",
    "multimodal": "data.multimodal",
    "speech": "data.speech",
    "text": "data.text",
    "text_to_text": "data.text_to_text",
    "translation": "data.translation",
}


def task_of(data: DataConfig) -> Task[Any]:
    """Returns the behaviour of a configuration's kind; raises UserError with the nearest name."""
    return module(data.kind, "task").task(data)


def config_classes() -> dict[str, type]:
    """Returns the configuration classes of all kinds, by class name."""
    return {cls.__name__: cls for name in KINDS for cls in module(name, "config").CONFIGS}


def eval_classes() -> dict[str, type]:
    """Returns the classes that say how to evaluate, by class name."""
    return {cls.__name__: cls for cls in (HeldOut, Decode, *(c for name in KINDS for c in module(name, "config").EVALS))}


def module(name: str, file: str) -> Any:
    """Returns a module of a kind's folder; raises UserError with the nearest name."""
    if name not in KINDS:
        raise UserError(f"no kind of data {name!r}{nearest(name, KINDS)}")
    return importlib.import_module(f"{KINDS[name]}.{file}")
