"""The settings of prepared caches of gridded series, and the caches that have a name. No TensorFlow."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

from data.config import SourceCache

SUFFIXES = (".nc", ".nc4", ".cdf", ".h5", ".zarr")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The windows that are taken, of all that lie in a split.

    Attributes:
      event: the value of the target from which a point counts for the shares below.
      train_share: windows are trained on whose last frame has at least this share of such points.
      held_share: held-out windows are those whose last frame has at least this share, ...
      held_every: ... and of these every n-th.
    """

    event: float = 0.0
    train_share: float = 0.0
    held_share: float = 0.0
    held_every: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridCache(SourceCache):
    """Settings of a cache of a gridded series.

    Attributes:
      source: a key of `data.grids.sources.PACKAGES`; or "file:PATH", a netCDF file or a Zarr store, which xarray opens.
      variables: its variables that are taken, each [time, rows, columns].
      channels: their names; as in the file by default.
      factors: their factors; 1 by default.
      logarithmic: channels that models read as log(1 + x), as rain, which is mostly none and sometimes much.
      target: the channel that is forecast; the first by default.
      frames, every, leads: of the windows (data.grids.config.GridData): a window has its frames, and all the steps up to the
        longest lead time.
      validation, test: where in time these splits begin, as "2018-05-17"; by default after 70 % and 85 % of the series.
      selection: the windows that are taken.
      motion: whether the motion of the target channel is found at the end of each window, for `GridData.ahead`.
    """

    kind: ClassVar[str] = "grids"
    made_of: ClassVar[str] = "a netCDF file or Zarr store of variables [time, rows, columns] (--variables)"

    variables: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    factors: tuple[float, ...] = ()
    logarithmic: tuple[str, ...] = ()
    target: str = ""
    frames: int = 13
    every: int = 1
    leads: int = 24
    validation: str = ""
    test: str = ""
    selection: Selection = Selection()
    motion: bool = False

    def flat(self) -> dict[str, Any]:
        settings = vars(self) | vars(self.selection)
        del settings["selection"]
        return settings

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return self.channels or self.variables

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> "GridCache | None":
        """Returns the settings of a cache of a netCDF file or a Zarr store."""
        path = Path(source)
        return cls(source=f"file:{path.resolve()}") if path.suffix in SUFFIXES and path.exists() else None


CACHES = (GridCache,)
ENTRIES = {
    # Sums of 5 minutes in mm, as mm/h. The wettest day but two is the test.
    "radolan": GridCache(
        source="radolan",
        variables=("rainfall_amount",),
        channels=("rain",),
        factors=(12.0,),
        logarithmic=("rain",),
        validation="2018-05-17",
        test="2018-05-20",
        selection=Selection(event=0.2, train_share=0.01, held_share=0.05, held_every=6),
        motion=True,
    ),
    # Monthly means of eleven years, in m/s.
    "navy_winds": GridCache(
        source="navy_winds",
        variables=("UWND", "VWND"),
        channels=("u", "v"),
        frames=12,
        leads=3,
        validation="1989-01-01",
        test="1991-01-01",
    ),
}
