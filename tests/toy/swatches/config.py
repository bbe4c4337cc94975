"""Colours with their names, for a model that reads pictures."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Feature, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwatchData(DataConfig):
    """A picture of one colour in a row."""

    kind: ClassVar[str] = "toy_swatches"

    batch_size: int = 16

    def stored(self) -> Features:
        images = Feature((8, 8, 3), ("height", "width", None), dtype="float32")
        return {"images": images, "labels": Feature((2,), (None,)), "label_weights": Feature((2,), (None,), dtype="float32")}

    def tiny(self) -> "SwatchData":
        return dataclasses.replace(self, cache="")


CONFIGS = (SwatchData,)
EVALS = ()
