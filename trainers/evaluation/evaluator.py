"""Evaluators: scores of a model's parameters on held-out data, found by what an experiment's `eval` describes."""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from configs.experiment import Experiment
from data.features import lengths
from models.protocol import ChecksRows, Model
from models.sharding.params import Params


class Evaluator(Protocol):
    """Scores of a model's parameters on the held-out split that it was made for.

    Attributes:
      names: the scalars that a call returns, those of single parts (languages) left out.
      samples: the number of held-out examples that a call scores.
    """

    names: list[str]
    samples: int

    def __call__(self, params: Params) -> dict[str, float]:
        """Returns `eval/...` scalars."""
        ...

    def report(self, params: Params, *, details: bool = False) -> tuple[dict[str, Any], str]:
        """Returns the full scores as a dictionary, under "all" and other keys, and as a printable table.

        Args:
          details: lists parts (languages) in the text as well.
        """
        ...


def legend(scores: Mapping[str, Any], meanings: Mapping[str, str]) -> list[str]:
    """Returns a line for each of a report's scores and baselines that its task explains (data.task.Task.meanings)."""

    def names(of_part: Mapping[str, Any]) -> Iterator[str]:
        for name, value in of_part.items():
            yield name.rpartition("/")[2]
            yield from names(value) if isinstance(value, Mapping) else ()

    known = {*names(scores)}
    width = max(map(len, meanings), default=0)
    explained = (name for name in meanings if any(k == name or k.startswith(f"{name}_") for k in known))
    return [f"{name:{width}}  {meanings[name]}" for name in explained]


def open_evaluator(model: Model, e: Experiment, cache: Path, vocabulary: Path) -> Evaluator:
    """Returns the evaluator that an experiment's `eval` describes: the `EVALUATOR` of the module that it names.

    Args:
      model: with shapes for parameters, on its mesh.
      cache: the prepared cache whose held-out examples are read.
      vocabulary: the folder whose vocabulary encodes them: the cache, or a release.

    Raises:
      LayoutError: the model's layout would have it compute something else than one device does.
    """
    if isinstance(model, ChecksRows):  # the layout need not be the one that it was trained with
        model.check_rows(lengths(e.data.features()), 1, rows=None)
    return importlib.import_module(f"trainers.evaluation.{e.eval.form}").EVALUATOR(model, e, cache, vocabulary)
