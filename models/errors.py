"""What a user of a command can mend, and hints at what was meant. Plain Python, no JAX."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """What the user of a command can mend: its message is one line, and the commands print nothing else."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint `; did you mean 'x'?`, or the choices where none is near."""
    choices = sorted(choices)
    if near := difflib.get_close_matches(name, choices, n=1, cutoff=0.5):
        return f"; did you mean {near[0]!r}?"
    return f"; choose from {', '.join(choices)}" if choices else ""


def multiples(n: int, of: int) -> str:
    """The multiples of `of` on both sides of n, for an error about what is not one: "16 or 24"."""
    below = n // of * of
    return f"{below} or {below + of}" if below else f"{of}"
