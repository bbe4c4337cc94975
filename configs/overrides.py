"""Changes fields of an experiment, or of other settings, from text: `--train.steps 100 --optimizer.schedule.warmup=7`.

Values are typed and checked.
"""

import dataclasses
import difflib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from configs.experiment import Experiment
from configs.moved import MOVED
from configs.registry import ConfigError, differences, from_json, required_fields, union_members
from models.errors import UserError, nearest, shortened

Settings = TypeVar("Settings")


def override(e: Settings, arguments: Sequence[str], options: Iterable[str] = ()) -> Settings:
    """Returns the experiment, or another dataclass of settings, with fields changed.

    Args:
      arguments: `--field.path VALUE` or `--field.path=VALUE`; a tuple takes several values, and those of pairs one after the
        other. Dashes stand for underscores. A union takes the name of one of its classes, or null: `--optimizer Lamb`,
        `--model.moe null`. Fields of the class that are not given have their defaults; those without a default keep their
        values. A part may also be a JSON object, as `scripts.show --json` prints it, whose missing fields have their defaults.
        A schedule that ends with the run follows `--train.steps`, unless its own steps are given.
      options: the command's other options, for hints.

    Raises:
      ConfigError: an unknown field (with the nearest one), a value of the wrong type, or one that its config refuses.
    """
    given = list(_given(e, arguments))
    fields, changes = _fields(type(e), e, dict(given)), {}
    for path, texts in given:
        if path not in fields:
            hint = _classes_with(path, fields) or _fields_of(path, fields) or _hint(path, [*fields, *options])
            raise ConfigError(f"no field or option --{path}{hint}")
        changes[path] = _parse(fields[path], texts, f"--{path}")
    before: Any = e
    if isinstance(e, Experiment) and _SCHEDULE_STEPS not in changes:
        steps = changes.get("train.steps", e.train.steps)
        if _SCHEDULE_STEPS not in fields or hasattr(e.optimizer.schedule, "steps"):
            before = e.with_steps(steps)
        else:  # a schedule of another class
            changes[_SCHEDULE_STEPS] = steps
    return _changed(type(e), before, changes)


def paths(e: Any, arguments: Sequence[str]) -> set[str]:
    """Returns the paths of the fields that arguments of `override` give."""
    return {path for path, _ in _given(e, arguments)}


_SCHEDULE_STEPS = "optimizer.schedule.steps"


def schedule_notes(before: Experiment, after: Experiment, arguments: Sequence[str]) -> list[str]:
    """Returns what became of the schedule, in lines for the user, where arguments of `override` change the number of steps."""
    given, steps = paths(before, arguments), after.train.steps
    if "train.steps" not in given:
        return []
    old, new = before.optimizer.schedule, after.optimizer.schedule
    length, warmup = getattr(new, "steps", steps), getattr(new, "warmup", 0)
    notes = []
    if _SCHEDULE_STEPS not in given and type(old) is type(new) and (changes := differences(old, new)):
        notes.append(f"the schedule follows --train.steps: {', '.join(changes)}")
    elif _SCHEDULE_STEPS not in given and length != steps:
        notes.append(f"the schedule keeps its own steps={length}; --{_SCHEDULE_STEPS} changes them")
    if warmup >= steps:
        notes.append(f"the warm-up of {warmup} steps is not shorter than the run of {steps}")
    return notes


def _classes_with(path: str, fields: dict[str, Any]) -> str:
    """Returns a hint at the classes that have a field which the present class of a union does not have; "" where none has."""
    for union, kind in fields.items():
        if path.startswith(f"{union}.") and typing.get_origin(kind):  # not of the classes that are registered
            members = {name: member for name, member in union_members(kind).items() if dataclasses.is_dataclass(member)}
            names = [name for name, member in members.items() if path in _fields(member, None, {}, f"{union}.")]
            if names:
                return f"; {' and '.join(names)} {'have' if names[1:] else 'has'} it: --{union} {names[0]}"
    return ""


def _fields_of(path: str, fields: dict[str, Any]) -> str:
    """Returns a hint at the fields of a part that is no union, so that nothing can be chosen for it; "" for another path."""
    names = sorted({field.removeprefix(f"{path}.").partition(".")[0] for field in fields if field.startswith(f"{path}.")})
    return f"; it has the fields {', '.join(names)}: --{path}.{names[0]}" if names else ""


def _hint(name: str, known: Sequence[str]) -> str:
    """Returns the nearest field, also where it has moved or other programs call it `learning_rate` or `lr`."""
    for old, new in MOVED.items():
        moved = new if old.endswith(f".{name}") else name.replace(old, new, 1)
        if moved != name and moved in known:
            return nearest(moved, known)
    if name in ("learning_rate", "lr"):
        rates = [path for path in known if path.endswith((".schedule.peak", ".schedule.value"))]
        return nearest(rates[0], rates) if rates else nearest(name, known)
    moved = {old: new for old, new in MOVED.items() if new in known}
    for near in difflib.get_close_matches(name[:100], [*known, *moved], n=1):
        if near in moved:
            return nearest(moved[near], known)
    new = MOVED.get(name, "")
    part = ".".join(new.split(".")[:2])  # whose class has no such field now
    is_here = any(path == part or path.startswith(f"{part}.") for path in known)
    return f"; it is now '{new}'" if new and is_here else nearest(name, known)


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


class _Read(NamedTuple):
    """A value out of JSON, whose type has been checked."""

    value: Any


_Given = list[str] | _Read  # what stands after an option


def _given(e: Any, arguments: Sequence[str]) -> Iterator[tuple[str, _Given]]:
    """Yields each option's path and what stands after it; of a JSON object the paths and values of all fields."""
    for path, texts in _split(arguments):
        kind = _kind_of(e, path) if len(texts) == 1 and texts[0].lstrip().startswith("{") else None
        if kind is None:
            yield path, texts
            continue
        try:
            data = json.loads(texts[0])
        except ValueError as error:
            raise ConfigError(f"--{path} {shortened(texts[0])!r}: not JSON: {error}") from None
        yield from _unfolded(from_json(data, kind, f"--{path}"), kind, path)


def _kind_of(e: Any, path: str) -> Any:
    """Returns the type of the part of this path; None if there is none, or if it is a single value."""
    kind: Any = type(e)
    for name in path.split("."):
        kind, e = typing.get_type_hints(type(e)).get(name) if dataclasses.is_dataclass(e) else None, getattr(e, name, None)
    return kind if dataclasses.is_dataclass(kind) or union_members(kind) else None


def _unfolded(value: Any, kind: Any, path: str) -> Iterator[tuple[str, _Given]]:
    """Yields the options that give a part of this type all of its fields."""
    if union_members(kind):
        yield path, [type(value).__name__ if value is not None else "null"]
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            yield from _unfolded(getattr(value, field.name), hints[field.name], f"{path}.{field.name}")
    elif not union_members(kind):
        yield path, _Read(value)


def _values(kind: Any, present: Any) -> dict[str, Any]:
    """Returns a dataclass's values by field: those of `present`, or defaults where that is of another class.

    A field without a default then keeps the value of `present`, if it has such a field; else it is left out.
    """
    if type(present) is kind:
        return {field.name: getattr(present, field.name) for field in dataclasses.fields(kind)}
    types_before, types_now, required = typing.get_type_hints(type(present)), typing.get_type_hints(kind), required_fields(kind)
    kept = {name: getattr(present, name) for name in required if types_before.get(name) == types_now[name]}
    others = [field for field in dataclasses.fields(kind) if field.name not in required]
    return kept | {f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory() for f in others}


def _fields(kind: Any, present: Any, texts: Mapping[str, _Given], prefix: str = "") -> dict[str, Any]:
    """Returns the types of a dataclass's fields by dotted path; for a union, its own and those of its class."""
    hints, values, fields = typing.get_type_hints(kind), _values(kind, present), {}
    for field in dataclasses.fields(kind):
        path, hint = prefix + field.name, hints[field.name]
        inner = values.get(field.name)
        chosen = type(inner) if field.name in values else hint
        if union_members(hint):
            fields[path] = hint
            chosen = _parse(hint, texts[path], f"--{path}") if path in texts else type(inner)
        if dataclasses.is_dataclass(chosen):
            fields |= _fields(chosen, inner, texts, f"{path}.")
        else:
            fields[path] = hint
    return fields


def _changed(kind: Any, present: Any, changes: dict[str, Any], prefix: str = "") -> Any:
    """Returns a dataclass with fields changed, all at once, so that its own checks see only the result."""
    hints, values = typing.get_type_hints(kind), _values(kind, present)
    for field in dataclasses.fields(kind):
        path = prefix + field.name
        inner = values.get(field.name)
        chosen = changes.get(path, type(inner) if field.name in values else hints[field.name])
        if dataclasses.is_dataclass(chosen) and any(changed == path or changed.startswith(f"{path}.") for changed in changes):
            values[field.name] = _changed(chosen, inner, changes, f"{path}.")
        elif path in changes:
            values[field.name] = chosen
    if missing := [name for name in required_fields(kind) if name not in values]:
        raise ConfigError(f"--{prefix}{missing[0]} is missing: {kind.__name__} has no default for it")
    try:
        return kind(**values)
    except UserError:
        raise
    except ValueError as error:  # a config's own check
        where = f"{prefix[:-1]}: " if prefix else ""
        raise ConfigError(f"{where}{error}") from None


_NULL = ("null", "None", "none")


def _parse(kind: Any, texts: _Given, name: str) -> Any:
    """Returns the value of a field's type that the texts denote."""
    if isinstance(texts, _Read):
        return texts.value
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
    if members := union_members(kind):
        if text in _NULL and "None" in members:
            return None
        choices = ["null" if choice == "None" else choice for choice in members]
        if text not in choices:
            near = nearest(text, choices)
            listed = "" if near.startswith("; choose") else f" Choose from {', '.join(choices)}"
            raise ConfigError(f"{name} {text!r}: no such class{near}{listed}")
        return members[text]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} {text!r}: expected true or false")
        return text.lower() == "true"
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
