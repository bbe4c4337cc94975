"""Packed rows of labelled examples as text in, text out. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Features, sides


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextToTextData(DataConfig):
    """Packed rows of labelled examples as inputs and targets of an encoder-decoder (T5, arXiv 1910.10683, section 2.4).

    Attributes:
      batch_size: rows of a global batch; a row holds several examples, which do not see each other.
      inputs_length, targets_length: tokens of a row; must be those of the cache.
    """

    kind: ClassVar[str] = "text_to_text"

    inputs_length: int = 256
    targets_length: int = 64

    @property
    def lengths(self) -> dict[str, int]:
        """The positions of a row of inputs and of targets."""
        return {"inputs": self.inputs_length, "targets": self.targets_length}

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them, in that order."""
        return sides(**self.lengths)

    def tiny(self) -> "TextToTextData":
        """Returns a configuration of random tokens whose batches run in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, inputs_length=16, targets_length=16)


CONFIGS = (TextToTextData,)
EVALS = ()  # data.config.Decode decodes and scores, data.config.HeldOut gives the loss of the targets
