"""Windows of gridded series: frames, and what comes after a lead time. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Feature, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class Area:
    """The part of the grid that a model sees, and the inner part that it forecasts.

    A position of the input is a square of `scale` x `scale` points of the grid; the target is the inner part of the grid, at
    every point. The grid's centre is taken where it is larger than that; where it is smaller, missing points surround it.

    Attributes:
      height, width: positions of the input.
      scale: points of the grid in each direction that a position has.
      stacked: the points of a position are its channels, row by row; else they are averaged.
      target_height, target_width: positions of the target, the inner ones of the input.
    """

    height: int
    width: int
    scale: int = 4
    stacked: bool = False
    target_height: int
    target_width: int

    def __post_init__(self) -> None:
        if self.scale < 1:
            raise ValueError(f"scale={self.scale}: must be at least 1")
        for inner, outer in (("target_height", "height"), ("target_width", "width")):
            size, whole = getattr(self, inner), getattr(self, outer)
            if size > whole or (whole - size) % 2:
                nearest = whole if size > whole else size + 1
                raise ValueError(f"{inner}={size}: is not the centre of {outer}={whole}; the nearest is {nearest}")

    @property
    def positions(self) -> tuple[int, int]:
        """Rows and columns of the input."""
        return self.height, self.width

    @property
    def points(self) -> tuple[int, int]:
        """Rows and columns of the target."""
        return self.target_height * self.scale, self.target_width * self.scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridData(DataConfig):
    """Some frames of a gridded series, and one frame after a lead time, a window in a row.

    Attributes:
      batch_size: windows of a global batch.
      channels: the series' variables that a frame has, in this order.
      target: the one that is forecast.
      frames: of the input.
      every: steps of the series from one frame to the next.
      leads: the longest lead time, in steps of the series; in training every one from 1 on is as likely.
      area: what of the grid is seen, and what is forecast.
      ahead: whether the model also reads the last frame carried on along its motion to the time of the target
        (data/grids/motion.py), as a forecast that it may trust or not.
      flip: whether training windows are mirrored in either direction, at random. Not for vectors, such as winds.
      thresholds: of the target, at which forecasts are scored; the model's.
      scored: lead times at which they are.
    """

    kind: ClassVar[str] = "grids"

    channels: tuple[str, ...]
    target: str
    frames: int = 13
    every: int = 1
    leads: int
    area: Area
    ahead: bool = False
    flip: bool = False
    thresholds: tuple[float, ...]
    scored: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("frames", "every", "leads"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)}: must be at least 1")
        if self.target not in self.channels:
            raise ValueError(f"data.target={self.target!r}: must be one of the channels {', '.join(self.channels)}")
        if wrong := [lead for lead in self.scored if not 1 <= lead <= self.leads]:
            raise ValueError(f"data.scored: lead time {wrong[0]} is not from 1 to data.leads={self.leads}")

    @property
    def values(self) -> int:
        """Channels of an input position in one frame."""
        return len(self.channels) * (self.area.scale**2 if self.area.stacked else 1)

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them: the number of the window's last frame."""
        return {"at": Feature((), ())}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it.

        inputs: standardised; 0 where nothing was seen.
        seen: the share of each channel's points that was seen, 0 to 1, at each position.
        lead_time: in steps of the series, from 1 on.
        targets: in the variable's unit; 0 where nothing was seen.
        weights: 1 where the target was seen, else 0.
        ahead: with `ahead`, a frame as in the inputs, then the shares that were seen.
        """
        frame = ("height", "width", None)
        positions, points = self.area.positions, self.area.points
        shape = (self.frames, *positions)
        ahead = Feature((*positions, self.values + len(self.channels)), frame, dtype="float32", component="ahead")
        return {
            "inputs": Feature((*shape, self.values), (None, *frame), dtype="float32", component="frames"),
            "seen": Feature((*shape, len(self.channels)), (None, *frame), dtype="float32", component="frames"),
            "lead_time": Feature((), (), fill=1),
            "targets": Feature(points, frame[:2], dtype="float32", component="head"),
            "weights": Feature(points, frame[:2], dtype="float32", component="head"),
            **({"ahead": ahead} if self.ahead else {}),
        }

    def tiny(self) -> "GridData":
        """Returns a configuration of random data whose batches run in seconds."""
        return dataclasses.replace(
            self,
            cache="",
            batch_size=8,
            channels=("a", "b", "c", "d"),
            target="a",
            frames=2,
            every=1,
            leads=6,
            area=Area(height=32, width=32, scale=2, target_height=16, target_width=16),
            scored=(1, 6),
            flip=False,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecasts:
    """The model's loss and the scores of its forecasts on held-out windows (data/grids/metrics.py).

    Attributes:
      split: which held-out windows of the cache: "validation" or "test".
      decided_on: the split on which the probability is chosen from which on an event counts as forecast.
      limit: at most so many windows, at all of the lead times that are scored; 0 takes all.
      batch_size: windows read together.
    """

    form: ClassVar[str] = "thresholded"

    split: str = "validation"
    decided_on: str = "validation"
    limit: int = 0
    batch_size: int = 16


CONFIGS = (GridData,)
EVALS = (Forecasts,)
