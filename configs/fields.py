"""The fields of an experiment, each with its type, its value and its line of documentation, read from the classes themselves."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from configs.registry import union_members


class Field(NamedTuple):
    """A field that a command line can set.

    Attributes:
      path: by which it is set, `--PATH VALUE`.
      type: what a value may be: the choices, or a type, "..." behind it where there are several.
      value: the present one; of a union, the name of its class.
      about: its entry under "Attributes" in the documentation of its class.
    """

    path: str
    type: str
    value: Any
    about: str


def fields(settings: Any, prefix: str = "") -> Iterator[Field]:
    """Yields the fields of an experiment, or of another dataclass of settings, in their order, those of its parts included."""
    hints, entries = typing.get_type_hints(type(settings)), documented(type(settings))
    for field in dataclasses.fields(settings):
        path, value, members = prefix + field.name, getattr(settings, field.name), union_members(hints[field.name])
        part = dataclasses.is_dataclass(value)
        if members or not part:
            shown = type(value).__name__ if part else value
            choices = " | ".join(members) or described(hints[field.name])
            yield Field(path, choices, shown, entries.get(field.name, ""))
        if part:
            yield from fields(value, f"{path}.")


def documented(kind: type) -> dict[str, str]:
    """Returns the entries under "Attributes" of a class's documentation and of the classes that it inherits from, by field."""
    entries: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, section = (inspect.cleandoc(base.__doc__ or "")).partition("Attributes:\n")
        section = re.split(r"\n(?=\S)", section)[0]  # up to the next one
        for entry in re.split(r"\n(?=  \S)", f"\n{section}"):
            names, colon, text = entry.partition(":")
            if colon and re.fullmatch(r"\s*\w+(, \w+)*", names):
                entries |= dict.fromkeys(names.replace(",", " ").split(), " ".join(text.split()))
    return entries


def described(hint: Any) -> str:
    """Returns the values that a type allows, as they are written on a command line."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(str(argument) or '""' for argument in arguments)
    if typing.get_origin(hint) is tuple:
        return " ".join("..." if argument is Ellipsis else described(argument) for argument in arguments)
    if arguments:  # an optional value
        return " | ".join("None" if argument is type(None) else described(argument) for argument in arguments)
    return getattr(hint, "__name__", str(hint))
