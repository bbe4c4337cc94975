"""Tests of what is said of an error."""

import pytest

from configs import registry
from data.reading.caches import check_vocabularies
from models.errors import UserError, nearest, told
from models.sharding.remat import check


@pytest.mark.parametrize(
    ("problem", "named", "line"),
    [
        (ValueError("no\n  such   thing"), False, "no such thing"),
        (KeyError("x"), False, "KeyError: 'x'"),
        (ValueError(""), False, "ValueError"),
        (ValueError("no such thing"), True, "ValueError: no such thing"),
        (OSError(28, "No space left on device"), False, "[Errno 28] No space left on device"),
        (ValueError("x" * 999), False, "x" * 197 + "..."),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_exception_is_one_short_line(problem, named, line):
    """Its class stands where the text alone would not say what happened."""
    assert told(problem, named) == line


def test_choices_out_of_a_file_are_short():
    """Choices that are near are named, and all where none is: at most 80 characters each, control characters escaped."""
    assert nearest("data", ["d" * 4000, "x\ny"]) == f"; choose from {'d' * 77}..., x\\ny"
    assert nearest("x\\ny", ["x\ny"]) == r"; did you mean 'x\ny'?"
    assert nearest("dat", ["data", "model"]) == "; did you mean 'data'?"


def test_values_out_of_a_file_do_not_make_a_line_long():
    """A stored experiment's policy, and a manifest's sizes, are shortened where an error repeats them."""
    with pytest.raises(UserError) as remat:
        check("x" * 5000, ("gate", "up"))
    with pytest.raises(UserError) as cache:
        check_vocabularies(registry.tiny(registry.load("gpt.quickstart")).model, {"cache": "c", "vocabulary": 10**3000})
    assert len(str(remat.value)) < 300 and len(str(cache.value)) < 300
