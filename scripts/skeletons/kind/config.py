"""Colours with their names, for a model that reads pictures. Neither JAX nor TensorFlow here."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Feature, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkeletonData(DataConfig):
    """A picture of one colour in each row.

    Attributes:
      side: height and width of the picture.
    """

    kind: ClassVar[str] = "skeleton"

    batch_size: int = 16
    side: int = 8

    def stored(self) -> Features:
        return {
            "images": Feature((self.side, self.side, 3), ("height", "width", None), dtype="float32"),
            "labels": Feature((2,), (None,)),  # two, as pictures may be mixed in pairs
            "label_weights": Feature((2,), (None,), dtype="float32"),
        }

    def tiny(self) -> "SkeletonData":
        return dataclasses.replace(self, cache="")


CONFIGS = (SkeletonData,)
EVALS = ()  # evaluated by the model's own loss and metrics
