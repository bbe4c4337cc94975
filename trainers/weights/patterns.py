"""Regular expressions out of strangers' files, matched in a bounded number of steps.

Python's `re` tries the ways through an expression one after the other, and of nested repeats there are more than any machine
tries. Here the structure of an expression, which is groups, alternatives and repeats, is followed for all places of the text at
once; `re` itself matches single characters and borders.
"""

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable

from models.errors import shortened

_Places = frozenset[int]  # of a text, where a match may go on
_Part = Callable[[str, _Places], _Places]  # of an expression: from the places before it to those behind it

_TOKENS = re.compile(
    r"\((?:\?:|\?P<\w+>)?|[|)]|(?:[*+?]|\{(?:\d+(?:,\d*)?|,\d*)\})\??|\[\^?\]?(?:\\.|[^]\\])*\]|\\.|.", re.DOTALL
)
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COMPILING = 20  # steps that a character of an expression counts, which is compiled once


class PatternError(ValueError):
    """An expression that cannot be matched here."""


class Patterns:
    """The expressions of one file.

    Args:
      steps: how many steps all of their matches together may take, of which a processor takes about a million in a second.
    """

    def __init__(self, steps: int = 5_000_000):
        self._left = steps
        self._parsed: dict[str, _Part] = {}

    def matches(self, pattern: str, text: str, starts: Iterable[int] = (0,)) -> bool:
        """Returns whether a text matches an expression from one of some places on to its end.

        Raises:
          PatternError: it is no regular expression, has lookarounds, flags, references or possessive repeats, or takes too many
            steps.
        """
        try:
            if pattern not in self._parsed:
                self._spend(_COMPILING * len(pattern))
                re.compile(pattern)  # whose errors are those of Python, and say more
                self._parsed[pattern] = self._alternatives(deque(_TOKENS.findall(pattern)))
            return len(text) in self._parsed[pattern](text, frozenset(starts))
        except (re.error, PatternError, RecursionError, OverflowError) as problem:
            raise PatternError(f"the pattern '{shortened(pattern)}' cannot be matched: {shortened(str(problem))}") from None

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise PatternError("it takes too many steps")

    def _alternatives(self, tokens: deque[str]) -> _Part:
        """Takes alternatives from the head of the tokens, up to where their group ends."""
        branches = [self._sequence(tokens)]
        while tokens and tokens[0] == "|":
            tokens.popleft()
            branches.append(self._sequence(tokens))

        def part(text: str, places: _Places) -> _Places:
            self._spend(len(branches))
            return frozenset().union(*(branch(text, places) for branch in branches))

        return part

    def _sequence(self, tokens: deque[str]) -> _Part:
        parts: list[_Part] = []
        while tokens and tokens[0] not in ("|", ")"):
            token = tokens.popleft()
            if token.startswith("("):
                part = self._alternatives(tokens)
                tokens.popleft()  # the group's end
            else:
                part = self._single(token)
            if tokens and (limits := _limits(tokens[0])):
                tokens.popleft()
                part = functools.partial(_repeated, part, *limits)
            parts.append(part)
        return lambda text, places: functools.reduce(lambda at, part: part(text, at), parts, places)

    def _single(self, token: str) -> _Part:
        """Returns the part that is one character or border, of which all others consist."""
        if _limits(token) or re.match(r"\\\d", token):
            raise PatternError(f"{token} is not supported there")
        matched = re.compile(token).match

        def part(text: str, places: _Places) -> _Places:
            self._spend(len(places) + 1)
            return frozenset(match.end() for at in places if (match := matched(text, at)))

        return part


def _limits(token: str) -> tuple[int, int | None] | None:
    """Returns how often a token repeats the part before it, at least and at most; None of other tokens."""
    token = token.removesuffix("?") or token  # whether it repeats greedily makes no difference to whether it matches
    if token in _REPEATS:
        return _REPEATS[token]
    if not (token.startswith("{") and token.endswith("}")):
        return None
    least, comma, most = token[1:-1].partition(",")
    return int(least or 0), int(most) if most else None if comma else int(least)


def _repeated(part: _Part, least: int, most: int | None, text: str, places: _Places) -> _Places:
    for _ in range(least):
        before, places = places, part(text, places)
        if places == before:  # and so after any number of them
            break
    reached = new = places
    for _ in range(len(text) if most is None else most - least):  # each leads on to a place where none was, or is the last
        if not (new := part(text, new) - reached):
            break
        reached |= new
    return reached
