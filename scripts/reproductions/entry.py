"""A reproduction: rows of *paper | ours | what differs*, with its source, its kind and the time that it takes."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

from models.errors import UserError, nearest

# How a figure of ours comes about. "computed": from shapes, schedules and arithmetic, exact. "modelled": from the step that the
# TPU compiler makes, priced by trainers/pods. "trained": measured on a model that was trained for it.
KINDS = ("computed", "modelled", "trained")
Value = float | int | str | None


class ReproductionError(UserError):
    """A reproduction cannot be made; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
      label: what the figure is of.
      paper: the published figure, a number or text; None where the paper gives none.
      ours: the figure computed here.
      differs: what differs, or the reason; empty where nothing does.
      within: relative difference up to which a number counts as reproduced: that of the paper's printed digits.
      error: standard error of ours over seeds; None where there is none.
      sign: +1 or -1 of a difference that counts as reproduced if it is on that side of zero by two standard errors; 0 of a
        figure that is compared with the paper's.
      compared: whether the figure is compared at all; a figure of a small model stands beside the paper's for its direction.
      series, at: the curve of the picture that the figure is a point of, and where.
    """

    label: str
    paper: Value
    ours: Value
    differs: str = ""
    within: float = 0.01
    error: float | None = None
    sign: int = 0
    compared: bool = True
    series: str = ""
    at: float | None = None

    @property
    def ratio(self) -> float | None:
        """Returns ours / paper where both are numbers that are compared."""
        if self.sign or not self.compared:
            return None
        if isinstance(self.paper, str | None) or isinstance(self.ours, str | None) or not self.paper:
            return None
        return self.ours / self.paper

    @property
    def agrees(self) -> bool | None:
        """Returns whether the figure is the paper's, or None where there is nothing to compare."""
        if self.paper is None or self.ours is None or not self.compared:
            return None
        if self.sign:
            assert isinstance(self.ours, float)
            return None if self.error is None else self.sign * self.ours > 2 * self.error
        ratio = self.ratio
        return self.paper == self.ours if ratio is None else abs(ratio - 1) <= self.within


@dataclasses.dataclass(frozen=True)
class Entry:
    """What can be reproduced.

    Attributes:
      name: "gshard.table_1".
      source: paper, and table or section.
      kind: one of KINDS.
      minutes: on two cores, about.
      unit: of the numbers.
      make: returns the rows; it gets the folder of what it compiles or trains, and resumes what it finds there.
      claim: what the paper says by this table, in a sentence.
    """

    name: str
    source: str
    kind: str
    minutes: float
    unit: str
    make: Callable[[Path], Sequence[Row]]
    claim: str


def reproduction(
    source: str, *, unit: str, kind: str = "computed", minutes: float = 0.5
) -> Callable[[Callable[..., Sequence[Row]]], Callable[..., Sequence[Row]]]:
    """Marks a function as a reproduction. Its docstring is the claim; it takes the folder of its runs unless it is computed."""
    assert kind in KINDS

    def mark(function: Callable[..., Sequence[Row]]) -> Callable[..., Sequence[Row]]:
        module = function.__module__.rpartition(".")[2]
        claim = " ".join((function.__doc__ or "").split())
        make = (lambda _: function()) if kind == "computed" else function
        entry = Entry(f"{module}.{function.__name__}", source, kind, minutes, unit, make, claim)
        function.__reproduction__ = entry  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return mark


@functools.cache
def entries() -> dict[str, Entry]:
    """Returns all reproductions by name, in the order of modules and of functions in them."""
    import scripts.reproductions as package

    found: dict[str, Entry] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        for member in vars(importlib.import_module(f"{package.__name__}.{module}")).values():
            entry = getattr(member, "__reproduction__", None)
            if isinstance(entry, Entry):
                found[entry.name] = entry
    return found


def lookup(name: str) -> Entry:
    """Returns the reproduction of this name; raises ReproductionError."""
    if name not in entries():
        raise ReproductionError(f"{name!r}: no such reproduction{nearest(name, entries())}")
    return entries()[name]
