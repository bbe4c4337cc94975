"""Grids with the grid that comes next."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Feature, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyGrids(DataConfig):
    """Float grids; some pixels of the next one are not seen."""

    kind: ClassVar[str] = "toy_grids"

    batch_size: int = 16
    height: int = 16
    width: int = 8
    channels: int = 3
    flip: bool = False

    def features(self) -> Features:
        axes = ("height", "width", None)

        def grid(channels: int) -> Feature:
            return Feature((self.height, self.width, channels), axes, dtype="float32", component="first")

        return {"grid": grid(self.channels), "next": grid(1), "seen": grid(1)}

    def stored(self) -> Features:
        return self.features()

    def tiny(self) -> "ToyGrids":
        return dataclasses.replace(self, cache="")


CONFIGS = (ToyGrids,)
EVALS = ()
