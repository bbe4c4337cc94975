"""Sizes of MetNet-2."""

import dataclasses
from typing import ClassVar, Literal

from models.errors import UserError

RAIN = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Thresholds of rain in mm/h at which forecasts are scored."""


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
      stacks: context stacks, each with a block for each of `dilations`.
      dilations: of the context's residual blocks.
      context_dim: their channels.
      crop: rows and columns of the inner positions that are forecast.
      upsample: points of the target in each direction that a position has.
      upsampling: "nearest" repeats positions; "subpixel" gives each point channels of its own, and the values that it has in the
        frame that comes ahead, if a position's channels are those of its points.
      detail_blocks: residual blocks on the points of the target.
      detail_dim: their channels.
      hidden_dim: channels between them and the classes; 0 leaves that layer out.
      bins: classes of the target.
      bin_width: of the classes; the first begins at 0, the last has no end.
      edges: where the classes after the first begin, if they are not of one width.
      thresholds: edges at which forecasts are scored.
    """

    family: ClassVar[str] = "metnet2"

    channels: int
    masks: int
    ahead: bool = False
    leads: int = 360
    lead_dim: int = 2048
    frame_dim: int = 128
    stacks: int = 3
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    context_dim: int = 384
    crop: tuple[int, int] = (128, 128)
    upsample: int = 4
    upsampling: Literal["nearest", "subpixel"] = "nearest"
    detail_blocks: int = 8
    detail_dim: int = 512
    hidden_dim: int = 4096
    bins: int = 512
    bin_width: float = 0.2
    edges: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = RAIN

    def __post_init__(self) -> None:
        for name in ("channels", "leads", "stacks", "upsample", "bins"):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name}={getattr(self, name)}: must be at least 1")
        if self.edges and (len(self.edges) != self.bins - 1 or sorted(set(self.edges)) != list(self.edges)):
            raise UserError(
                f"model.edges: {len(self.edges)} values, where {self.bins} bins have {self.bins - 1}, each above the one before"
            )
        for value in self.thresholds:
            closest = min(self.lower_edges, key=lambda edge: abs(edge - value), default=0.0)
            if abs(closest - value) > 1e-6 * abs(value):
                raise UserError(f"model.thresholds: {value:g} is no edge of a class; the nearest is {closest:g}")

    @property
    def lower_edges(self) -> tuple[float, ...]:
        """Where the classes after the first begin."""
        return self.edges or tuple(round(self.bin_width * i, 6) for i in range(1, self.bins))

    @property
    def fine(self) -> int:
        """Channels of each point in the frame that comes ahead; 0 where a position's channels are not those of its points."""
        points = self.upsample**2
        return self.channels // points if self.ahead and self.upsampling == "subpixel" and self.channels % points == 0 else 0

    @property
    def grid(self) -> tuple[int, int]:
        """Points of the target: rows and columns."""
        return self.crop[0] * self.upsample, self.crop[1] * self.upsample

    def tiny(self) -> "MetNet2Config":
        """Returns a small model with the same parts: it reads 32 x 32 positions and forecasts the inner 16 x 16."""
        edges = (*self.thresholds, 2 * self.thresholds[-1], 4 * self.thresholds[-1])
        return dataclasses.replace(
            self,
            channels=4,
            masks=4,
            leads=6,
            lead_dim=16,
            frame_dim=8,
            stacks=1,
            dilations=(1, 8),
            context_dim=8,
            crop=(16, 16),
            upsample=2,
            detail_blocks=2,
            detail_dim=8,
            hidden_dim=min(self.hidden_dim, 16),
            bins=len(edges) + 1,
            edges=edges,
        )


CONFIG = MetNet2Config
