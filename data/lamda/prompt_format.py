"""Conversations as text, in the forms of LaMDA (arXiv 2201.08239, section 6.1), which one model learns:

    generative       <context>RESPONSE <response>                         the response is learned
    discriminative   <context>RESPONSE <response><ATTRIBUTE> <rating>     the rating, 1 or 0, is learned

A context is a turn a line, the speakers by turns: the response is B's, and the last turn before it A's. It is a line too.
"""

from collections.abc import Sequence

SENTINEL = "RESPONSE"
ATTRIBUTES = ("witty", "upbeat", "interesting")
"""What conversations of the package are rated for. They stand for the paper's sensibleness, specificity and interestingness."""


def line(turn: str) -> str:
    """Returns a turn in one line: line breaks become blanks."""
    return " ".join(turn.split())


def context(turns: Sequence[str]) -> str:
    """Returns the turns before a response."""
    return "".join(f"{'BA'[(len(turns) - i) % 2]}: {line(turn)}\n" for i, turn in enumerate(turns))


def prompt(turns: Sequence[str]) -> str:
    """Returns a conversation up to the point where the response begins."""
    return f"{context(turns)}{SENTINEL}"


def response(turn: str) -> str:
    """Returns a turn as it stands behind `prompt`."""
    return f" {line(turn)}\n"


def rated(attribute: str, rating: bool) -> str:
    """Returns a rating of what stands before it, a response."""
    return f"{attribute.upper()} {int(rating)}"
