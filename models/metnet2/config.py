"""Sizes of MetNet-2."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.errors import UserError

RAIN = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Thresholds of rain in mm/h at which forecasts are scored."""


def _check_counts(config: Any, *names: str) -> None:
    for name in names:
        if (value := getattr(config, name)) < 1:
            raise UserError(f"{name}={value}: must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """Dilated residual blocks on the positions of the whole input.

    Attributes:
      stacks: each with a block for each of `dilations`.
      dilations: of the convolutions, in positions.
      dim: channels of the blocks.
    """

    stacks: int = 3
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    dim: int = 384

    def __post_init__(self) -> None:
        _check_counts(self, "stacks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetailConfig:
    """From inner positions to the points of the target.

    Attributes:
      upsample: points of the target in each direction that a position has.
      upsampling: "nearest" repeats positions; "subpixel" gives each point channels of its own, and the values that it has in the
        frame that comes ahead, if a position's channels are those of its points.
      blocks: residual blocks on the points of the target.
      dim: their channels.
      hidden_dim: channels between them and the classes; 0 leaves that layer out.
    """

    upsample: int = 4
    upsampling: Literal["nearest", "subpixel"] = "nearest"
    blocks: int = 8
    dim: int = 512
    hidden_dim: int = 4096

    def __post_init__(self) -> None:
        _check_counts(self, "upsample")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EqualBins:
    """Classes of the target of one width: the first begins at 0, the last has no end.

    Attributes:
      count: the number of classes.
      width: of each, in the unit of the target.
    """

    count: int = 512
    width: float = 0.2

    def __post_init__(self) -> None:
        _check_counts(self, "count")

    @property
    def lower_edges(self) -> tuple[float, ...]:
        """Where the classes after the first begin."""
        return tuple(round(self.width * i, 6) for i in range(1, self.count))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edges:
    """Classes of the target of any width: the first begins at 0, each of the others at an edge.

    Attributes:
      lower_edges: in the unit of the target, increasing.
    """

    lower_edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if sorted(set(self.lower_edges)) != list(self.lower_edges):
            raise UserError(f"lower_edges: {len(self.lower_edges)} values, where each must be above the one before")

    @property
    def count(self) -> int:
        """The number of classes."""
        return len(self.lower_edges) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetNet2Config:
    """MetNet-2: a distribution of the rain that falls on each point after a lead time, from a series of grids.

    Attributes:
      channels: of an input position in one frame.
      masks: further channels of a position, which say how much of each of the data's channels was seen.
      ahead: whether a frame for the target's own time comes with each example, a forecast that the context may use.
      leads: lead times that the model knows, counted from 1.
      lead_dim: size of a lead time's embedding.
      frame_dim: channels of the convolutional LSTM that reads the frames.
      crop: rows and columns of the inner positions that are forecast.
      bins: classes of the target.
      thresholds: edges of bins at which forecasts are scored.
    """

    family: ClassVar[str] = "metnet2"
    sized_by_data: ClassVar[dict[str, str]] = {"values": "channels", "masks": "masks", "leads": "leads", "ahead": "ahead"}

    channels: int
    masks: int
    ahead: bool = False
    leads: int = 360
    lead_dim: int = 2048
    frame_dim: int = 128
    context: ContextConfig = ContextConfig()
    crop: tuple[int, int] = (128, 128)
    detail: DetailConfig = DetailConfig()
    bins: EqualBins | Edges = EqualBins()
    thresholds: tuple[float, ...] = RAIN

    def __post_init__(self) -> None:
        _check_counts(self, "channels", "leads")
        for value in self.thresholds:
            closest = min(self.bins.lower_edges, key=lambda edge: abs(edge - value), default=0.0)
            if abs(closest - value) > 1e-6 * abs(value):
                raise UserError(f"model.thresholds: {value:g} is no edge of a class; the nearest is {closest:g}")

    @property
    def fine(self) -> int:
        """Channels of each point in the frame that comes ahead; 0 where a position's channels are not those of its points."""
        points, subpixel = self.detail.upsample**2, self.detail.upsampling == "subpixel"
        return self.channels // points if self.ahead and subpixel and self.channels % points == 0 else 0

    @property
    def grid(self) -> tuple[int, int]:
        """Points of the target: rows and columns."""
        return self.crop[0] * self.detail.upsample, self.crop[1] * self.detail.upsample

    def tiny(self) -> "MetNet2Config":
        """Returns a small model with the same parts: it reads 32 x 32 positions and forecasts the inner 16 x 16."""
        edges = (*self.thresholds, 2 * self.thresholds[-1], 4 * self.thresholds[-1])
        hidden = min(self.detail.hidden_dim, 16)
        return dataclasses.replace(
            self,
            channels=4,
            masks=4,
            leads=6,
            lead_dim=16,
            frame_dim=8,
            context=ContextConfig(stacks=1, dilations=(1, 8), dim=8),
            crop=(16, 16),
            detail=dataclasses.replace(self.detail, upsample=2, blocks=2, dim=8, hidden_dim=hidden),
            bins=Edges(lower_edges=edges),
        )


CONFIG = MetNet2Config
