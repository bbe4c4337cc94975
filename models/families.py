"""Which model a config belongs to. A family is a package models/<family>/ with the same files as every other:

config.py (a dataclass with a ClassVar `family`), model.py (whose `MODEL(config, key, where)` is a module with `loss`,
`weights`, `tokens` and `notes`; see models/gshard_m4/model.py), layouts.py (`LAYOUTS`), README.md, and huggingface.py
where released checkpoints exist.
"""

import importlib
import inspect
from typing import Any


def model_class(config: Any) -> Any:
    """The module class that a model config describes."""
    return importlib.import_module(f"models.{config.family}.model").MODEL


def mesh_axes(layout: Any) -> int:
    """How many mesh sizes a named layout's function takes: two, or three with pipeline stages before them."""
    return sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(layout).parameters.values())


def layouts(config: Any) -> dict[str, Any]:
    """The named layouts of a config's family: functions of their mesh sizes."""
    return importlib.import_module(f"models.{config.family}.layouts").LAYOUTS
