"""The families of models: each is plain configuration plus behaviour that is found by its name. No JAX here.

A family is a folder with config.py (`CONFIG`, a frozen dataclass with a ClassVar `family`), model.py, layouts.py, README.md,
huggingface.py and the like where released checkpoints exist, and family.py, whose `FAMILY` (a models.family.Family) ties them
together.
Registering one is a line in `FAMILIES`.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from models.errors import UserError, nearest

if TYPE_CHECKING:
    from models.family import Family

FAMILIES: dict[str, str] = {  # name -> package
    "bert": "models.bert",
    "conformer": "models.conformer",
    "gpt": "models.gpt",
    "gshard_m4": "models.gshard_m4",
    "m2m100": "models.m2m100",
    "metnet2": "models.metnet2",
    "multimodal": "models.multimodal",
    "t5": "models.t5",
    "vit": "models.vit",
    "whisper": "models.whisper",
}


class ModelConfig(Protocol):
    """The sizes and choices of a model: a frozen dataclass of plain values."""

    family: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def tiny(self) -> ModelConfig:
        """Returns the same kind of model, small enough for a test and divisible by every mesh of eight devices."""
        ...


def family_of(config: ModelConfig) -> Family:
    """Returns the behaviour of a configuration's family; raises UserError with the nearest name."""
    return importlib.import_module(f"{_package(config.family)}.family").FAMILY


def interchange_of(name: str, form: str = "huggingface") -> ModuleType | None:
    """Returns a family's module for released checkpoints of a form (huggingface.py, npz.py, ...); None where it has none."""
    module = f"{_package(name)}.{form}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


def config_classes() -> dict[str, type]:
    """Returns the configuration class of every family, by the class's name."""
    classes = [importlib.import_module(f"{package}.config").CONFIG for package in FAMILIES.values()]
    return {made.__name__: made for made in classes}


def _package(name: str) -> str:
    if name not in FAMILIES:
        raise UserError(f"no family {name!r}{nearest(name, FAMILIES)}")
    return FAMILIES[name]
