"""What is said of an error."""

import pytest

from models.errors import nearest, told


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
    """Those that are near, and all where none is: at most 80 characters each, control characters escaped."""
    assert nearest("data", ["d" * 4000, "x\ny"]) == f"; choose from {'d' * 77}..., x\\ny"
    assert nearest("x\\ny", ["x\ny"]) == r"; did you mean 'x\ny'?"
    assert nearest("dat", ["data", "model"]) == "; did you mean 'data'?"
