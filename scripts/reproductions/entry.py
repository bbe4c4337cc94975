"""A reproduction: rows of *paper | ours | what differs*, with its source, its kind and the time that it takes."""

import dataclasses
import functools
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from models.errors import UserError, nearest
from scripts.reproductions.figure import CLASSES, CLOSE, Figure, figure

# How a figure of ours comes about. "computed": from shapes, schedules and arithmetic, exact. "modelled": priced by a model of
# cost, or simulated. "trained": measured on a model that was trained for it. "consistency": arithmetic against arithmetic, ours
# or the paper's on both sides: it can show a slip, and reproduces nothing.
KINDS = ("computed", "modelled", "trained", "consistency")
SURE = 0.975  # of one side: two standard errors where there are many seeds
Value = float | int | str | None


class ReproductionError(UserError):
    """A reproduction cannot be made; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
      label: what the figure is of.
      paper: the published figure as it is printed, "12.5B", or a number that is derived; None where the paper gives none.
      ours: the figure computed here.
      differs: what differs, or the reason; empty where nothing does.
      stated: one of CLASSES; empty of a row without a figure of the paper.
      error: standard error of ours, over seeds where nothing else is said; None where there is none.
      freedom: its degrees of freedom, one less than the number of seeds; infinite of a large sample.
      sign: +1 or -1 of a difference that comes out if it is surely on that side of zero; 0 of a figure that is compared.
      compared: whether the figure is compared at all; a figure of a small model stands beside the paper's for its direction.
      reproduces: whether the figure is something of ours: arithmetic against arithmetic is compared, and never the same.
      series, at: the curve of the picture that the figure is a point of, and where.
    """

    label: str
    paper: Value
    ours: Value
    differs: str = ""
    stated: str = ""
    error: float | None = None
    freedom: float = math.inf
    sign: int = 0
    compared: bool = True
    reproduces: bool = True
    series: str = ""
    at: float | None = None

    @property
    def figure(self) -> Figure | None:
        """Returns the paper's figure where it is a number that ours is compared with."""
        return figure(self.paper) if self.compared and not self.sign and isinstance(self.ours, int | float) else None

    @property
    def deviation(self) -> float | None:
        """Returns ours over the paper's figure, less 1, where both are numbers that are compared."""
        return self.figure and self.figure.deviation(self.ours)  # pyright: ignore[reportArgumentType]

    @property
    def same(self) -> bool | None:
        """Returns whether ours is what the paper prints, to its last digit; None where the figure is not a printed one."""
        if self.stated != "printed" or self.sign or not (self.compared and self.reproduces) or self.ours is None:
            return None
        return self.figure.is_figure(self.ours) if self.figure else self.paper == self.ours  # pyright: ignore[reportArgumentType]

    @property
    def near(self) -> bool | None:
        """Returns whether ours is within CLOSE of the paper's figure, of whatever class; None where there is none."""
        return None if self.deviation is None else abs(self.deviation) <= CLOSE

    @property
    def surely(self) -> float | None:
        """Returns how far from zero a difference must be by its error: by Student's t, 12.7 standard errors of two seeds, 4.3 of
        three, 1.96 of many."""
        return None if self.error is None else student(self.freedom) * self.error

    @property
    def comes_out(self) -> bool | None:
        """Returns whether a difference is surely on the paper's side of zero; None of other rows, and without an error."""
        if not self.sign or self.surely is None:
            return None
        assert isinstance(self.ours, float)
        return self.sign * self.ours > self.surely


@functools.cache
def student(freedom: float) -> float:
    """Returns the quantile of Student's t that bounds a difference on one side."""
    from scipy.stats import t

    return float(t.ppf(SURE, freedom))


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry: a table or a figure of a paper that can be reproduced.

    Attributes:
      name: "gshard.table_1".
      source: paper, and table or section.
      kind: one of KINDS.
      stated: the classes of the paper's figures, the first of those that do not say their own.
      minutes: on two cores, about.
      unit: of the numbers.
      make: yields the rows one by one; it gets the folder of what it compiles or trains, and resumes what it finds there.
      claim: what the paper says by this table, in a sentence.
      function: what `make` calls.
      stores: whether it leaves something in the folder: what does not is made again in seconds.
    """

    name: str
    source: str
    kind: str
    stated: tuple[str, ...]
    minutes: float
    unit: str
    make: Callable[[Path], Iterator[Row]]
    claim: str
    function: Callable[..., Iterable[Row]]
    stores: bool = False


def reproduction(
    source: str, *stated: str, unit: str, kind: str = "computed", minutes: float = 0.5
) -> Callable[[Callable[..., Iterable[Row]]], Callable[..., Iterable[Row]]]:
    """Marks a function as a reproduction. Its docstring is the claim; it takes the folder of its runs if it leaves any.

    Args:
      stated: the classes of the paper's figures; "printed" where nothing is said.
    """

    def mark(function: Callable[..., Iterable[Row]]) -> Callable[..., Iterable[Row]]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        claim = " ".join((function.__doc__ or "").split())
        function.__reproduction__ = entry(  # pyright: ignore[reportFunctionMemberAccess]
            name, function, source, stated, claim=claim, unit=unit, kind=kind, minutes=minutes
        )
        return function

    return mark


def entry(
    name: str,
    function: Callable[..., Iterable[Row]],
    source: str,
    stated: Sequence[str],
    *,
    claim: str,
    unit: str,
    kind: str = "computed",
    minutes: float = 0.5,
) -> Entry:
    """Returns the entry whose rows a function yields; arguments as of `reproduction`."""
    stated = tuple(stated) or ("printed",)
    assert kind in KINDS and set(stated) <= set(CLASSES)
    stores = bool(inspect.signature(function).parameters)

    def make(folder: Path) -> Iterator[Row]:
        for row in function(folder) if stores else function():
            # What a source prints stands here as a text: a number has been computed from it.
            computed = stated[0] == "printed" and not isinstance(row.paper, str)
            of_row = row.stated or ("" if row.paper is None else "derived" if computed else stated[0])
            yield dataclasses.replace(row, stated=of_row, reproduces=kind != "consistency")

    return Entry(name, source, kind, stated, minutes, unit, make, claim, function, stores)


@functools.cache
def entries() -> dict[str, Entry]:
    """Returns all reproductions by name, by lines of papers: first printed counts of parameters, then functions."""
    import scripts.reproductions as package
    from scripts.reproductions.sizes import PRINTED_SIZES

    modules = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    members = [m for name in modules for m in vars(importlib.import_module(f"{package.__name__}.{name}")).values()]
    known = [*PRINTED_SIZES, *(m.__reproduction__ for m in members if hasattr(m, "__reproduction__"))]
    return {each.name: each for each in sorted(known, key=lambda each: each.name.partition(".")[0])}


def lookup(name: str) -> Entry:
    """Returns the reproduction of this name; raises ReproductionError."""
    if name not in entries():
        raise ReproductionError(f"{name!r}: no such reproduction{nearest(name, entries())}")
    return entries()[name]
