"""Regular expressions of bounded steps: they match as Python's own do, and those that Python would not finish end."""

import random
import re

import pytest

from trainers.weights.patterns import PatternError, Patterns


def expression(rng: random.Random, depth: int) -> str:
    """Returns a random expression, sometimes a wrong one."""
    parts = []
    for _ in range(rng.randint(0, 4)):
        if depth and rng.random() < 0.4:
            inner = "|".join(expression(rng, depth - 1) for _ in range(rng.randint(1, 3)))
            part = f"{rng.choice(['(', '(?:', '(?P<n>'])}{inner})"
        else:
            part = rng.choice(
                ["a", "b", ".", r"\.", r"\w", r"\d", "[ab]", "[^a]", "[]a]", "^", "$", r"\b", r"\B", "{", "}", "{,x", "a{1,b"]
            )
        if rng.random() < 0.4:
            part += rng.choice(["*", "+", "?", "*?", "??", "+?", "{2}", "{1,2}", "{,2}", "{2,}", "{1,}?"])
        parts.append(part)
    return "".join(parts)


def test_matches_are_those_of_python():
    """For random expressions and texts, from the beginning or from behind a dot, the answer is that of `re`, and so is whether
    an expression is one."""
    rng, seen = random.Random(0), {True: 0, False: 0, None: 0}
    for _ in range(3000):
        pattern, text = expression(rng, 2), "".join(rng.choice("aab.x1") for _ in range(rng.randint(0, 6)))
        try:
            want = bool(re.match(rf"(.*\.)?({pattern})$", text))
        except re.error:
            want = None
        try:
            got = Patterns().matches(pattern, text, [0, *(i + 1 for i, c in enumerate(text) if c == ".")])
        except PatternError:
            got = None
        assert got == want, (pattern, text)
        seen[want] += 1
    assert min(seen.values()) > 200


@pytest.mark.parametrize(
    "pattern, want",
    [
        ("(a+)+x", False),
        ("(a|a)*x", False),
        ("((((a*)*)*)*)*x", False),
        ("(.|.)" * 60 + "x", False),
        ("(a?){60}a{60}", True),
        ("(a{0,60000}){0,60000}x", False),
    ],
)
def test_nested_repeats_end(pattern, want):
    """Expressions with more ways through them than any machine tries have an answer."""
    assert Patterns().matches(pattern, "a" * 60) is want


@pytest.mark.parametrize(
    "pattern, part",
    [
        ("(?=a)b", "\\? is not supported there"),
        (r"(a)\1", "is not supported there"),
        (r"\056", "is not supported there"),
        (r"\x2e", "incomplete escape"),
        ("a*+", "\\+ is not supported there"),
        ("(?i)a", "is not supported there"),
        ("(", "missing \\)"),
        ("(" * 5000 + ")" * 5000, "recursion"),
        ("a{99999999999}", "repetition number"),
        ("a" * 10**6, "too many steps"),
        ("(a|b|ab|(a|b)*)*" * 50 + "x", "too many steps"),
    ],
)
def test_what_is_not_matched_is_one_line(pattern, part):
    """A text that is no expression, or takes too many steps, or has what these do not have, is an error that quotes it."""
    patterns = Patterns()
    with pytest.raises(PatternError, match=part) as error:
        for _ in range(1000):
            patterns.matches(pattern, "a" * 60)
    assert len(str(error.value)) < 250 and "\n" not in str(error.value)
