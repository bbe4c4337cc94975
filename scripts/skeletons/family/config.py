"""The sizes of a model that adds numbers. No JAX here."""

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkeletonConfig:
    """A residual perceptron.

    Attributes:
      vocab: numbers are below it.
      model_dim, hidden_dim: widths of the residual stream, and of a layer within.
      layers: how many.
    """

    family: ClassVar[str] = "skeleton"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}  # the field that bounds the numbers in the data

    vocab: int = 16
    model_dim: int = 64
    hidden_dim: int = 256
    layers: int = 2

    def tiny(self) -> "SkeletonConfig":
        """Returns a model that is small enough for a test, and divisible by every mesh of eight devices."""
        return dataclasses.replace(self, model_dim=16, hidden_dim=32)


CONFIG = SkeletonConfig
