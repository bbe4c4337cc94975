"""Errors that a user of a command can mend, and hints at what was meant. Plain Python, no JAX."""

import difflib
import errno
from collections.abc import Iterable

UNSAVED = 74
"""Exit code of a command that cannot write any more."""

_LONGEST = 4000  # characters of an error: the names of all experiments fit


class UserError(ValueError):
    """An error that the user of a command can mend: its message is one line, and the commands print nothing else.

    Line breaks of what is quoted become blanks, and the middle of a text that is longer than any list of choices is left out.

    Attributes:
      exit_code: of the command.
    """

    exit_code = 2

    def __init__(self, message: object = ""):
        text = " ".join(str(message).splitlines())
        half = _LONGEST // 2
        super().__init__(text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}")


def exit_code(problem: BaseException, otherwise: int) -> int:
    """Returns the exit code of a command that ends by an exception: its own, UNSAVED of a full disk, else `otherwise`."""
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return UNSAVED
    return getattr(problem, "exit_code", otherwise)


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint `; did you mean 'x'?`, or the choices where none is near. A dotted choice is meant by its last part too."""
    choices = sorted({*map(shortened, choices)})  # they may be out of somebody's file, as a mesh's axes are
    ends = [choice for choice in choices if choice.endswith(f".{name}")]
    if len(ends) > 1:
        return f"; choose from {', '.join(ends)}"
    if near := ends or difflib.get_close_matches(name[:100], choices, n=1, cutoff=0.5):
        return f"; did you mean '{near[0]}'?"
    return f"; choose from {', '.join(choices)}" if choices else ""


def multiples(n: int, of: int) -> str:
    """The multiples of `of` on both sides of n, for an error about what is not one: "16 or 24"."""
    below = n // of * of
    return f"{below} or {below + of}" if below else f"{of}"


def shortened(text: str, most: int = 80) -> str:
    """A name out of somebody's file, fit for an error line: at most so many characters, control characters escaped."""
    plain = repr(text)[1:-1]
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."


def told(problem: BaseException, named: bool = False) -> str:
    """An exception in one line of at most 200 characters, with its class where `named` or where that tells more than its text."""
    text = " ".join(str(problem).split())
    named = named or isinstance(problem, (LookupError, TypeError, AttributeError))
    kind = type(problem).__name__
    return shortened((f"{kind}: {text}" if named else text) if text else kind, 200)
