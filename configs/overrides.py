"""Changes fields of an experiment, or of other settings, from text: `--train.steps 100 --optimizer.schedule.warmup=7`.

Values are typed and checked.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from configs.registry import ConfigError
from configs.sign_step import MOVED
from models.errors import UserError, nearest

Settings = TypeVar("Settings")


def override(e: Settings, arguments: Sequence[str], options: Iterable[str] = ()) -> Settings:
    """Returns the experiment, or another dataclass of settings, with fields changed.

    Args:
      arguments: `--field.path VALUE` or `--field.path=VALUE`; a tuple takes several values, and those of pairs one after the
        other. Dashes stand for underscores.
      options: the command's other options, for hints.

    Raises:
      ConfigError: an unknown field (with the nearest one), a value of the wrong type, or one that its config refuses.
    """
    fields = _fields(e)
    changes: dict[str, Any] = {}
    for path, texts in _split(arguments):
        if path not in fields:
            raise ConfigError(f"no field or option --{path}{_hint(path, [*fields, *options])}")
        changes[path] = _parse(fields[path], texts, f"--{path}")
    return _replace(e, changes, "")


def _hint(name: str, known: Sequence[str]) -> str:
    """Returns the nearest field, also of one that has moved, or that other programs call `learning_rate` or `lr`."""
    if name in ("learning_rate", "lr"):
        rates = [path for path in known if path.endswith((".schedule.peak", ".schedule.value"))]
        return nearest(rates[0], rates) if rates else nearest(name, known)
    return f"; it is now '{MOVED[name]}'" if name in MOVED else nearest(name, known)


def _split(arguments: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
    """Yields each option's path and the values after it."""
    at = 0
    while at < len(arguments):
        if not arguments[at].startswith("--"):
            raise ConfigError(f"{arguments[at]!r}: expected --field.path before it")
        name, equals, value = arguments[at][2:].partition("=")
        at += 1
        texts = [value] if equals else []
        while at < len(arguments) and not arguments[at].startswith("--"):
            texts.append(arguments[at])
            at += 1
        yield name.replace("-", "_"), texts


def _fields(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the types of a dataclass's fields by dotted path; for a union, those of the member that it holds."""
    hints, fields = typing.get_type_hints(type(value)), {}
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            fields |= _fields(inner, f"{prefix}{field.name}.")
        else:
            fields[prefix + field.name] = hints[field.name]
    return fields


def _replace(value: Any, changes: dict[str, Any], prefix: str) -> Any:
    """Returns a dataclass with fields changed, all at once, so that its own checks see only the result."""
    new: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        path = prefix + field.name
        if path in changes:
            new[field.name] = changes[path]
        elif any(changed.startswith(f"{path}.") for changed in changes):
            new[field.name] = _replace(getattr(value, field.name), changes, f"{path}.")
    try:
        return dataclasses.replace(value, **new)
    except UserError:
        raise
    except ValueError as error:  # a config's own check
        where = f"{prefix[:-1]}: " if prefix else ""
        raise ConfigError(f"{where}{error}") from None


def _parse(kind: Any, texts: list[str], name: str) -> Any:
    """Returns the value of a field's type that the texts denote."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _tuple(arguments, texts, name)
    if len(texts) != 1:
        raise ConfigError(f"{name}: expected one value, got {' '.join(texts) or 'none'}")
    (text,) = texts
    if origin is typing.Literal:
        if text not in map(str, arguments):
            raise ConfigError(f"{name} {text!r}: no such value{nearest(text, map(str, arguments))}")
        return next(value for value in arguments if str(value) == text)
    if origin in (typing.Union, types.UnionType):
        raise ConfigError(f"{name}: a value of this kind is not set as a whole; set its fields")
    if kind is bool:
        if text not in ("True", "False"):
            raise ConfigError(f"{name} {text!r}: expected True or False")
        return text == "True"
    if kind in (int, float, str):
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{name} {text!r}: expected {expected}") from None
    raise ConfigError(f"{name}: a value of this kind cannot be given on the command line")


def _tuple(arguments: tuple[Any, ...], texts: list[str], name: str) -> tuple[Any, ...]:
    if arguments[-1] is Ellipsis:
        inner = typing.get_args(arguments[0]) if typing.get_origin(arguments[0]) is tuple else ()
        size = len(inner) or 1
        if inner and (inner[-1] is Ellipsis or len(texts) % size):
            raise ConfigError(f"{name}: expected values in groups of {size}, got {len(texts)}")
        groups = [texts[at : at + size] for at in range(0, len(texts), size)]
        return tuple(_parse(arguments[0], group, name) for group in groups)
    if len(texts) != len(arguments):
        raise ConfigError(f"{name}: expected {len(arguments)} values, got {len(texts)}")
    return tuple(_parse(kind, [text], name) for kind, text in zip(arguments, texts, strict=True))
