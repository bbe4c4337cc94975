"""The families of models: each is plain configuration plus behaviour that is found by its name. No JAX here.

A family is a folder with config.py (`CONFIG`, a frozen dataclass with a ClassVar `family`), model.py, layouts.py, README.md,
huggingface.py and the like where released checkpoints exist, and family.py, whose `FAMILY` (a models.family.Family) ties them
together.
Registering one is a line in `FAMILIES`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from models.errors import UserError, nearest

if TYPE_CHECKING:
    from models.family import Family
    from models.interchange import ArrayFiles, GgufFiles, Interchange


FAMILIES: dict[str, str] = {  # name -> package
    "bert": "models.bert",
    "clip": "models.clip",
    "conformer": "models.conformer",
    "dlrm": "models.dlrm",
    "gpt": "models.gpt",
    "gshard_m4": "models.gshard_m4",
    "hstu": "models.hstu",
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


def interchange_of(name: str) -> Interchange[Any] | None:
    """Returns how a family's models are read from, and written to, folders of Hugging Face's; None where they are not."""
    return _interchange(name, "huggingface")


def gguf_of(name: str) -> GgufFiles[Any] | None:
    """Returns how a family's models are read from GGUF files; None where they are not."""
    return _interchange(name, "gguf")


def array_files_of(name: str, form: str) -> ArrayFiles[Any] | None:
    """Returns how a family's models are read from arrays of a form (npz.py, openai.py, ...); None where they are not."""
    return _interchange(name, form)


def _interchange(name: str, form: str) -> Any:
    module = f"{_package(name)}.{form}"
    return importlib.import_module(module).INTERCHANGE if importlib.util.find_spec(module) else None


def config_classes() -> dict[str, type]:
    """Returns the configuration class of every family, by the class's name."""
    classes = [importlib.import_module(f"{package}.config").CONFIG for package in FAMILIES.values()]
    return {made.__name__: made for made in classes}


def _package(name: str) -> str:
    if name not in FAMILIES:
        raise UserError(f"no family {name!r}{nearest(name, FAMILIES)}")
    return FAMILIES[name]
