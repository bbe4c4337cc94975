"""The contract of held-out examples that a model tells apart by likelihood: several candidates behind each prompt. No JAX."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

Ids = list[int]


@dataclasses.dataclass(frozen=True)
class CandidateSet:
    """Prompts with as many candidates each.

    Attributes:
      prompts: ids [N][length].
      candidates: ids [N][K][length].
      scores: returns scores by name from the log-probabilities of every candidate's tokens, arrays [length] as in `candidates`.
    """

    prompts: Sequence[Ids]
    candidates: Sequence[Sequence[Ids]]
    scores: Callable[[Sequence[Sequence[np.ndarray]]], dict[str, float]]


@runtime_checkable
class HasCandidates(Protocol):
    """A task whose held-out examples are scored so, beside the model's own loss."""

    def candidate_sets(self, cache: Path, vocabulary: Path, config: Any) -> list[CandidateSet]:
        """Returns the sets of a held-out split, the same every time.

        Args:
          cache: the prepared cache with the examples.
          vocabulary: the folder whose vocabulary encodes them.
          config: how to evaluate, with a split.
        """
        ...
