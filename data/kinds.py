"""The kinds of data: each is plain configuration plus behaviour that is found by its name. No JAX, no TensorFlow.

A kind is a folder with config.py (`CONFIGS`, frozen dataclasses with a ClassVar `kind`; `EVALS`, ways to evaluate that it brings
along), task.py (`task`, which makes the behaviour of a configuration: data.task.Task), settings.py (`ENTRIES`, its prepared
caches by name) and cache.py (how they are made). Registering one is a line in `KINDS`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from data.features import Features
from models.errors import UserError, nearest

if TYPE_CHECKING:
    from data.task import Task

KINDS: dict[str, str] = {  # name -> package
    "labelled": "data.labelled",
    "text": "data.text",
    "translation": "data.translation",
}


class DataConfig(Protocol):
    """Which examples a model reads, and how many at a time: a frozen dataclass of plain values.

    Attributes:
      kind: a key of KINDS.
      benchmark: by which runs are measured (trainers/measure/mlperf_rules.py).
      cache: name of the prepared cache; "" is random data in full rows, for throughput and tests: no files, no TensorFlow.
      batch_size: rows of a global batch.
      seed: of the order in which rows come, and of how they are augmented.
    """

    kind: ClassVar[str]
    benchmark: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cache(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def seed(self) -> int: ...

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it."""
        ...

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores it, in that order."""
        ...

    def tiny(self) -> DataConfig:
        """Returns random data in a batch that runs in seconds."""
        ...


class EvalConfig(Protocol):
    """How a model is evaluated: a frozen dataclass of plain values.

    Attributes:
      form: the evaluator's module in trainers/evaluation/.
      split: which held-out examples of the cache: "validation" or "test" (some caches have more).
      batch_size: examples read together.
    """

    form: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def split(self) -> str: ...

    @property
    def batch_size(self) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The model's own loss and metrics on held-out examples, encoded with the vocabulary that lies beside the weights.

    Attributes:
      split: which held-out examples of the cache: "validation" or "test".
      limit: at most so many examples; 0 takes all.
      batch_size: packed rows read together.
    """

    form: ClassVar[str] = "held_out"

    split: str = "validation"
    limit: int = 0
    batch_size: int = 16


def task_of(data: DataConfig) -> Task[Any]:
    """Returns the behaviour of a configuration's kind; raises UserError with the nearest name."""
    return importlib.import_module(f"{package(data.kind)}.task").task(data)


def config_classes() -> dict[str, type]:
    """Returns the configuration classes of all kinds, by class name."""
    return {made.__name__: made for name in KINDS for made in _module(name, "config").CONFIGS}


def eval_classes() -> dict[str, type]:
    """Returns the classes that say how to evaluate, by class name."""
    return {made.__name__: made for made in (HeldOut, *(c for name in KINDS for c in _module(name, "config").EVALS))}


def package(name: str) -> str:
    """Returns the package of a kind; raises UserError with the nearest name."""
    if name not in KINDS:
        raise UserError(f"no kind of data {name!r}{nearest(name, KINDS)}")
    return KINDS[name]


def _module(name: str, file: str) -> Any:
    return importlib.import_module(f"{package(name)}.{file}")
