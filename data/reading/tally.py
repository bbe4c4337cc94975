"""Counts of the examples of a cache."""

import dataclasses
from collections import Counter

_REASONS = 10  # that a manifest names


@dataclasses.dataclass
class Tally:
    """Counts of a part of a cache, or of a held-out split.

    Attributes:
      examples: examples that are stored.
      rows: rows that store them.
      tokens: tokens of these examples, by side.
      left_out: examples that are not stored.
      cut: examples that lost their end.
      reasons: for the first that are left out, "NAME: why".
      others: counts of a kind's own, by name.
    """

    examples: int = 0
    rows: int = 0
    tokens: tuple[int, ...] = ()
    left_out: int = 0
    cut: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)

    def leave_out(self, name: str, why: object) -> None:
        """Counts an example that is left out."""
        self.left_out += 1
        if len(self.reasons) < _REASONS:
            self.reasons.append(f"{name}: {why}")
