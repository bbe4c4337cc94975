"""Conversations of which the assistant's turns are learned, and pairs of answers of which one is preferred. Plain data."""

import dataclasses
from typing import ClassVar

from data.features import Feature, Features
from data.text.config import WeightedTextData


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatData(WeightedTextData):
    """Packed rows of conversations in a checkpoint's chat template, for causal language models."""

    kind: ClassVar[str] = "chat"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreferenceData(ChatData):
    """Packed rows of preference pairs, for direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290).

    A pair lies in one row: its chosen answer, with the prompt, is segment 2 i + 1, the rejected one segment 2 i + 2.

    Attributes:
      pairs: the most pairs of a row; must be the cache's.
      beta: weight of the implicit reward, log-probability above that of the reference.
    """

    pairs: int = 4
    beta: float = 0.1

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta={self.beta}: must be above 0; the paper's is 0.1")

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them; `reference` is the log-probability of the chosen and of the
        rejected answer under the weights that a run starts from."""
        return super().stored() | {"reference": Feature((self.pairs, 2), (None, None), dtype="float32")}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it; `betas` is 0 where there is no pair."""
        return self.stored() | {"betas": Feature((self.pairs,), (None,), dtype="float32")}

    def tiny(self) -> "PreferenceData":
        return dataclasses.replace(self, cache="", batch_size=16, length=16, pairs=2)


CONFIGS = (ChatData, PreferenceData)
EVALS = ()
