"""Sizes of the toy model."""

import dataclasses
from typing import ClassVar, Literal


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
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"

    def tiny(self) -> "ToyConvConfig":
        return dataclasses.replace(self, hidden=4)


CONFIG = ToyConvConfig
