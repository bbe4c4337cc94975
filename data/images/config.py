"""Pictures with the class that each shows, and how they are augmented. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar, Literal

from data.config import DataConfig
from data.features import Feature, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of training pictures each time they are read; by default none: they are cut as for evaluation.

    Attributes:
      crop: "centre" is the cut of evaluation; "resized" a random part of the picture, brought to size (Szegedy et al. 2015,
        arXiv 1409.4842, section 6); "padded" shifts the centre cut by up to `pad` pixels each way, what is beyond its edge
        being 0 (He et al. 2015, arXiv 1512.03385, section 4.2).
      area: least and greatest share of the picture's area that a resized crop has.
      ratio: least and greatest width over height of a resized crop; drawn evenly on a logarithmic scale.
      pad: pixels of "padded".
      flip: whether half of the pictures are mirrored, left to right.
      layers: how many operations of RandAugment a picture goes through (arXiv 1909.13719; data/images/randaugment.py).
      magnitude: how strong they are, 0 to 10.
      mixup: alpha of the Beta distribution of a picture's share in a blend of two (arXiv 1710.09412); 0 blends none.
      cutmix: alpha of the Beta distribution of the share of a picture that is left when a box of another is pasted into it
        (arXiv 1905.04899); 0 pastes none. With both, either is chosen for half of the pairs.
    """

    crop: Literal["centre", "resized", "padded"] = "centre"
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 4
    flip: bool = False
    layers: int = 0
    magnitude: float = 10.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area={self.area}: must be two shares of a picture, rising, above 0 and at most 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio={self.ratio}: must be two positive ratios of width to height, rising")
        if not 0 <= self.magnitude <= 10:
            raise ValueError(f"magnitude={self.magnitude:g}: must be from 0 to 10")
        for name in ("pad", "layers", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name):g}: must be 0 or more")

    @property
    def mixes(self) -> bool:
        """True if two pictures are mixed."""
        return self.mixup > 0 or self.cutmix > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageData(DataConfig):
    """Pictures and their classes, a picture in a row.

    Attributes:
      batch_size: pictures of a global batch; even where they are mixed in pairs.
      height, width: pixels of a picture as the model gets it.
      channels: 3, or 1 for grey. Grey pictures are read as three equal channels; coloured ones are never read as grey.
      mean, std: subtracted from, and then divides, the pixels of each channel, which are 0 to 1 before; one value is for all.
      eval_crop: share of the picture that the centred cut of evaluation has in its tighter direction; 0 is the whole picture,
        squeezed into shape.
      augmentation: how training pictures are changed.
    """

    kind: ClassVar[str] = "images"

    height: int = 224
    width: int = 224
    channels: int = 3
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    eval_crop: float = 0.875
    augmentation: Augmentation = Augmentation()

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"channels={self.channels}: must be 1 (grey) or 3 (colour)")
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise ValueError(f"{name}={getattr(self, name)}: must be one value, or {self.channels}, one a channel")
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std}: must be positive")
        if not 0 <= self.eval_crop <= 1:
            raise ValueError(f"eval_crop={self.eval_crop:g}: must be from 0 to 1")
        if self.augmentation.crop == "padded" and self.augmentation.pad >= min(self.height, self.width):
            raise ValueError(f"augmentation.pad={self.augmentation.pad}: must be less than a picture's height and width")
        if self.augmentation.mixes and self.batch_size % 2:
            raise ValueError(f"batch_size={self.batch_size}: must be even, for pictures are mixed in pairs")

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them: the class, and the picture's file."""
        return {"label": Feature((), ()), "picture": Feature((-1,), (None,), dtype="uint8")}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it: two classes with weights that add up to 1, 0 in padding."""
        picture = (self.height, self.width, self.channels)
        return {
            "images": Feature(picture, ("height", "width", None), dtype="float32"),
            "labels": Feature((2,), (None,)),
            "label_weights": Feature((2,), (None,), dtype="float32"),
        }

    def tiny(self) -> "ImageData":
        """Returns a configuration of random pixels whose batches run in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, height=16, width=16)


CONFIGS = (ImageData,)
EVALS = ()
