"""The kinds of data: each is plain configuration plus behaviour that is found by its name. No JAX, no TensorFlow.

A kind is a folder with config.py (`CONFIGS`, subclasses of DataConfig with a ClassVar `kind`; `EVALS`, ways to evaluate that it
brings along), task.py (`task`, which makes the behaviour of a configuration: data.task.Task), caches.py (`CACHES`, subclasses of
CacheConfig, and `ENTRIES`, the prepared caches by name) and maker.py (`MAKERS`, the data.cache_maker.CacheMaker of each of these
classes). Registering one is a line in `KINDS`.
"""

import functools
import importlib
from typing import TYPE_CHECKING, Any

from data.config import CacheConfig, DataConfig, Decode, HeldOut
from models.errors import UserError, nearest

if TYPE_CHECKING:  # it needs NumPy, for which a command's --help must not wait
    from data.task import Task

# Name -> package. A user's own source is of the first kind that it fits: text is behind those whose tables have texts too.
KINDS: dict[str, str] = {
    "chat": "data.chat",
    "grids": "data.grids",
    "images": "data.images",
    "clicks": "data.clicks",
    "sequences": "data.sequences",
    "labelled": "data.labelled",
    "lamda": "data.lamda",
    "multimodal": "data.multimodal",
    "speech": "data.speech",
    "text_to_text": "data.text_to_text",
    "text": "data.text",
    "translation": "data.translation",
}
EARLIER = {"dialog": "lamda"}
"""Names of kinds in the manifests of caches that were prepared before."""
EARLIER_CLASSES = {"DialogData": "LamdaData"}
"""Names of configuration classes in experiments that were stored before."""


def task_of(data: DataConfig) -> "Task[Any]":
    """Returns the behaviour of a configuration's kind; raises UserError with the nearest name."""
    return module(data.kind, "task").task(data)


def config_classes() -> dict[str, type]:
    """Returns the configuration classes of all kinds, by class name, present or earlier."""
    classes = {cls.__name__: cls for name in KINDS for cls in module(name, "config").CONFIGS}
    return classes | {earlier: classes[name] for earlier, name in EARLIER_CLASSES.items() if name in classes}


def cache_classes() -> list[type[CacheConfig]]:
    """Returns the classes of settings of the caches of all kinds."""
    return [cls for name in KINDS for cls in module(name, "caches").CACHES]


@functools.cache
def prepared() -> dict[str, CacheConfig]:
    """Returns the settings of the prepared caches of all kinds, by name."""
    return {name: entry for kind in KINDS for name, entry in module(kind, "caches").ENTRIES.items()}


def eval_classes() -> dict[str, type]:
    """Returns the classes that say how to evaluate, by class name."""
    return {cls.__name__: cls for cls in (HeldOut, Decode, *(c for name in KINDS for c in module(name, "config").EVALS))}


def module(name: str, file: str) -> Any:
    """Returns a module of a kind's folder, by its present or an earlier name; raises UserError with the nearest name."""
    name = EARLIER.get(name, name)
    if name not in KINDS:
        raise UserError(f"no kind of data {name!r}{nearest(name, KINDS)}")
    return importlib.import_module(f"{KINDS[name]}.{file}")
