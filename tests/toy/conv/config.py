"""Sizes of the toy model."""

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConvConfig:
    """Two convolutions that predict the next grid.

    Attributes:
      channels: of the input grid.
      hidden: channels between the convolutions.
    """

    family: ClassVar[str] = "toy_conv"

    channels: int = 3
    hidden: int = 8

    def tiny(self) -> "ToyConvConfig":
        return dataclasses.replace(self, hidden=4)


CONFIG = ToyConvConfig
