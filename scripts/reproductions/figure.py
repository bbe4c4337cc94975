"""The figures of papers: the number that a printed text says, in the unit of its last digit."""

import dataclasses
import re
from decimal import Decimal
from typing import Any

# Where the figure beside ours comes from. Only printed figures count as reproduced.
CLASSES = {
    "printed": "stands in the source, which was read: paper and table, code or README",
    "chart": "read off a chart of the source, to some 3 %",
    "derived": "our arithmetic from what the source prints",
    "memory": "remembered, or taken from others' notes: the source was not at hand",
}
CLOSE = 0.05  # the relative difference of a figure that is near, one for all reproductions
SCALES = {"": 0, "%": -2, "K": 3, "M": 6, "B": 9, "T": 12}
TEXT = re.compile(r"(?P<below><\s*)?(?P<number>-?\d[\d,]*(\.\d+)?)\s*(?P<unit>[%KMBT]?)")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number as it is printed.

    Attributes:
      value: the number; a unit of thousands, millions or per cent is taken into it.
      digit: what its last printed digit counts; 0 of a number that is not printed, but computed.
      unit: "%", "K", "M", "B", "T" or "".
      below: whether the text is of a bound, "< 1 %".
    """

    value: Decimal
    digit: Decimal
    unit: str = ""
    below: bool = False

    def is_figure(self, ours: float) -> bool:
        """Returns whether a number is the figure in the digits that are printed, or below it where it is a bound."""
        if self.below:
            return ours < self.value
        return 2 * abs(Decimal(ours) - self.value) <= self.digit

    def deviation(self, ours: float) -> float | None:
        """Returns ours over the figure, less 1; None of a bound, or of zero."""
        return None if self.below or not self.value else ours / float(self.value) - 1

    def shown(self, ours: float) -> str:
        """Returns a number in the figure's unit: 1.33e10 is "13.3B" beside "12.5B"."""
        value = show(ours / 10.0 ** SCALES[self.unit])
        return f"{value} %" if self.unit == "%" else f"{value}{self.unit}"


def figure(paper: Any) -> Figure | None:
    """Returns the figure that a text, or a number of our own arithmetic, says; None of other texts and of nothing."""
    if isinstance(paper, int | float):
        return Figure(Decimal(paper), Decimal(0))
    match = TEXT.fullmatch(paper) if isinstance(paper, str) else None
    if match is None:
        return None
    number, unit = Decimal(match["number"].replace(",", "")), match["unit"]
    digit = Decimal(1).scaleb(SCALES[unit] + int(number.as_tuple().exponent))
    return Figure(number.scaleb(SCALES[unit]), digit, unit, match["below"] is not None)


def show(value: Any) -> str:
    """Returns a number or text as a page has it."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return value
