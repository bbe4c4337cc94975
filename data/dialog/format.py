"""Conversations as text: a turn a line, the speakers A and B by turns, as in the conversations of data/text/sources.py."""

from collections.abc import Sequence

SPEAKERS = "AB"


def context(turns: Sequence[str]) -> str:
    """Returns a conversation, which A begins; line breaks within a turn become blanks."""
    return "".join(f"{SPEAKERS[i % 2]}: {' '.join(turn.split())}\n" for i, turn in enumerate(turns))


def prompt(turns: Sequence[str]) -> str:
    """Returns a conversation up to the point where the next speaker begins."""
    return f"{context(turns)}{SPEAKERS[len(turns) % 2]}:"
