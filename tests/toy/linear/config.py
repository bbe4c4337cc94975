"""Sizes of the linear classifier."""

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyLinearConfig:
    """Logits that are linear in a picture's pixels.

    Attributes:
      height, width, channels: of the pictures.
      labels: classes.
    """

    family: ClassVar[str] = "toy_linear"

    height: int = 8
    width: int = 8
    channels: int = 3
    labels: int = 3

    @property
    def picture(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    def tiny(self) -> "ToyLinearConfig":
        return self


CONFIG = ToyLinearConfig
