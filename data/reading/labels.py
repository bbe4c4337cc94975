"""Labels as the rows of a user's tables have them: one rule for all kinds of data and all forms of tables. No TensorFlow."""

import re
from collections.abc import Collection
from typing import Any

NONE = "-1"
"""The label that `datasets` writes where there is none."""

_WHOLE = re.compile(r"-?\d+\.0")


def label_of(value: Any) -> str:
    """Returns a label as a text: "3" of 3, of 3.0 and of "3.0", as a column of numbers that lacks some is written, and "true" of
    True and of "True"; "" where there is none, as of a blank and of NaN.

    Raises:
      ValueError: it is a list or an object.
    """
    if isinstance(value, list | dict | bytes):
        raise ValueError("its label is no word and no number")
    text = "" if value is None or value != value else str(value).strip()
    if text in ("True", "False"):
        return text.lower()
    return text.removesuffix(".0") if _WHOLE.fullmatch(text) else text


def has_none(names: Collection[str]) -> bool:
    """Returns whether -1 among labels stands for none: the others, two or more, are whole numbers from 0 on."""
    others = {*names} - {NONE, ""}
    return NONE in names and len(others) > 1 and all(name.isdecimal() for name in others)
