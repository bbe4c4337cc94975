"""Experiments by name, their shrunk versions for tests, and their text and JSON forms."""

import contextlib
import contextvars
import dataclasses
import importlib
import inspect
import json
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Any

import configs
from configs import files
from configs.experiment import Experiment
from configs.moved import modernized
from data.config import DataConfig, EvalConfig
from data.kinds import config_classes, eval_classes
from models import families
from models.errors import UserError, nearest, shortened, told


class ConfigError(UserError):
    """An experiment's name, field or value is not valid; the message is one line and names the nearest valid choice."""


MODULES: dict[str, str] = {}  # further modules with experiments, beside those of configs/: name -> module
# Modules of configs/ whose experiments are named otherwise, as another module's most often.
PARTS = {"gpt_classics": "gpt", "gpt_experts": "gpt", "gpt_released": "gpt", "mlperf_language": "mlperf"}


def names() -> list[str]:
    """Returns all experiments' names, as module.function: every function of a module of configs/ that returns Experiment."""
    return sorted(_functions())


def _functions() -> dict[str, typing.Callable[[], Experiment]]:
    """Returns the functions that return experiments, by name."""
    return {
        f"{short}.{name}": function
        for short, path in _modules()
        for name, function in vars(importlib.import_module(path)).items()
        if isinstance(function, types.FunctionType)
        and function.__module__ == path
        and function.__annotations__.get("return") is Experiment
        and not function.__code__.co_argcount + function.__code__.co_kwonlyargcount
    }


def _modules() -> list[tuple[str, str]]:
    """Returns the modules with experiments, each after the first part of its experiments' names."""
    own = (module.name for module in pkgutil.iter_modules(configs.__path__))
    return [*((PARTS.get(name, name), f"configs.{name}") for name in own), *MODULES.items()]


def lookup(name: str) -> typing.Callable[[], Experiment]:
    """Returns the function of this name; raises ConfigError with the nearest one."""
    functions = _functions()
    if name not in functions:
        raise ConfigError(f"no experiment {name!r}{nearest(name, functions)}")
    return functions[name]


_recorded: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("recorded", default=None)


@contextlib.contextmanager
def recording() -> Iterator[set[str]]:
    """Yields a set to which the name of every experiment that is loaded inside is added."""
    token = _recorded.set(names := set())
    try:
        yield names
    finally:
        _recorded.reset(token)


_OF_FILES: dict[str, str] = {}  # documentation of the experiments that this process has loaded from files, by name


def load(name: str) -> Experiment:
    """Returns an experiment.

    Args:
      name: MODULE.FUNCTION of configs/, FILE.py:FUNCTION of a file anywhere, or FILE.json, as `scripts.show --json` prints it.
        The experiment has this name, without folders.

    Raises:
      UserError: there is no such experiment (with the nearest one), the file raises an exception, or a field is not valid.
    """
    if (recorded := _recorded.get()) is not None:
        recorded.add(name)
    if not files.is_file(name):
        return dataclasses.replace(lookup(name)(), name=name)
    if name.endswith(".json"):
        values, short = files.read_json(name), name.rpartition("/")[2]
        return dataclasses.replace(from_json(values, path=f"{name}: experiment"), name=short)
    short, function = files.function_of(name)
    e = function()
    if not isinstance(e, Experiment):
        raise ConfigError(f"{name} returns a value of type {type(e).__name__}, and an Experiment is needed")
    _OF_FILES[short] = inspect.getdoc(function) or ""
    return dataclasses.replace(e, name=short)


def file_of(name: str) -> str:
    """Returns the file of an experiment as `load` names it, with its function: "configs/gpt.py:quickstart"."""
    if files.is_file(name):
        return name
    return f"{lookup(name).__module__.replace('.', '/')}.py:{name.rpartition('.')[2]}"


def page(name: str) -> str:
    """Returns the documentation of the experiment of this name; "" for one of a file that this process has not loaded."""
    if files.is_file(name):
        return _OF_FILES.get(name, "")
    return inspect.getdoc(lookup(name)) or ""


def tiny(e: Experiment, mesh: tuple[int, ...] | None = None) -> Experiment:
    """Returns an experiment shrunk to run on a CPU in seconds: the same layout and optimizer, random data.

    Args:
      mesh: sizes of the layout's mesh axes; all 1 by default.
    """
    sizes = mesh or (1,) * len(e.layout.mesh)
    return dataclasses.replace(
        e,
        model=e.model.tiny(),
        layout=dataclasses.replace(
            e.layout, mesh=tuple((name, size) for (name, _), size in zip(e.layout.mesh, sizes, strict=True))
        ),
        data=e.data.tiny(),
        train=dataclasses.replace(
            e.train, steps=3, log_every=1, checkpoint=dataclasses.replace(e.train.checkpoint, every=2), eval_every=0
        ),
    )


# --- text --------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Returns a dataclass as plain JSON values; members of unions carry their class name under "class"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__} | fields
    return [to_json(v) for v in value] if isinstance(value, tuple) else value


_OWN = "; one that a file of your own brings is known after scripts.show FILE.py:NAME"
# Protocols that a family or a kind of data implements, and functions that return the classes registered for each.
_OPEN = {families.ModelConfig: families.config_classes, DataConfig: config_classes, EvalConfig: eval_classes}


def from_json(data: Any, kind: Any = Experiment, path: str = "experiment") -> Any:
    """Returns the inverse of `to_json`; an unknown, missing or mistyped field raises a ConfigError that names it.

    A missing field takes its default, if it has one, so that releases and runs from before the field existed can still be
    read; fields that have moved since are found in their old places (`MOVED`).
    """
    if kind is Experiment and isinstance(data, dict):
        try:
            data = modernized(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # an earlier form with values that none had
            raise ConfigError(f"{path}: neither today's form nor an earlier one ({told(error)})") from error
    if kind in _OPEN:
        _bring(data, kind, path)
    if members := union_members(kind):
        return _union_from_json(data, members, path, _OWN if kind in _OPEN else "")
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(data, kind, path)
    if typing.get_origin(kind) is tuple:
        return _tuple_from_json(data, typing.get_args(kind), path)
    if typing.get_origin(kind) is typing.Literal:
        return _literal_from_json(data, typing.get_args(kind), path)
    return _number_or_text_from_json(data, kind, path)


def union_members(kind: Any) -> dict[str, Any]:
    """Returns the classes of a union, or those registered for a protocol, by name, and None as "None"; {} for other types."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = typing.get_args(kind)
        return {"None" if member is types.NoneType else member.__name__: member for member in members}
    return _OPEN[kind]() if kind in _OPEN else {}


def _union_from_json(data: Any, members: dict[str, Any], path: str, hint: str) -> Any:
    if data is None and "None" in members:
        return None
    classes = {name: member for name, member in members.items() if member is not types.NoneType}
    name = str(data.get("class")) if isinstance(data, dict) else "None"
    if name not in classes:
        raise ConfigError(f"{path}: class {shortened(name)!r} unknown{nearest(name, classes)}{hint}")
    return from_json(data, classes[name], path)


def _bring(data: Any, kind: Any, path: str) -> None:
    """Loads the user's file that registers the class of a stored model, data or evaluation, if one does."""
    name = data.get("class") if isinstance(data, dict) else None
    if isinstance(name, str) and name not in _OPEN[kind]():
        try:
            files.bring(name)
        except files.FileError as error:
            raise ConfigError(f"{path}: {error}") from error


def _dataclass_from_json(data: Any, kind: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected an object, got {json.dumps(data)[:60]}")
    if own := getattr(kind, "modernized", None):
        data = own(data)
    hints = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]
    for key in data:
        if key != "class" and key not in known:
            raise ConfigError(f"{path}: unknown field {shortened(key)!r}{nearest(key, known)}")
    for key in required_fields(kind):
        if key not in data:
            raise ConfigError(f"{path}: field {key!r} is missing")
    fields = {key: from_json(data[key], hints[key], f"{path}.{key}") for key in known if key in data}
    try:
        return kind(**fields)
    except UserError:
        raise
    except Exception as error:  # a config's own check, or one that no such values were expected in
        raise ConfigError(f"{path}: {told(error)}") from error


def required_fields(kind: Any) -> list[str]:
    """Returns the names of a dataclass's fields that have no default."""
    return [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]


def _tuple_from_json(data: Any, args: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ConfigError(f"{path}: expected a list, got {json.dumps(data)[:60]}")
    inner = [args[0]] * len(data) if args[-1] is Ellipsis else args
    if len(inner) != len(data):
        raise ConfigError(f"{path}: expected {len(inner)} values, got {len(data)}")
    return tuple(from_json(v, k, f"{path}[{i}]") for i, (v, k) in enumerate(zip(data, inner, strict=True)))


def _literal_from_json(data: Any, values: tuple[Any, ...], path: str) -> Any:
    if data not in values:
        raise ConfigError(f"{path}: {shortened(repr(data))} is not one of {', '.join(map(repr, values))}")
    return data


def _number_or_text_from_json(data: Any, kind: Any, path: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 2**1023:
        return float(data)
    if type(data) is not kind or (isinstance(data, int) and abs(data) >= 2**63):
        raise ConfigError(f"{path}: expected {getattr(kind, '__name__', kind)}, got {json.dumps(data)[:60]}")
    return data


def lines(value: Any, path: str = "") -> Iterator[str]:
    """Yields sorted `path: value` lines, one for each field: the form of the golden dumps and of diffs."""
    data = to_json(value) if dataclasses.is_dataclass(value) else value
    if isinstance(data, dict):
        for key in sorted(data):
            yield from lines(data[key], f"{path}.{key}" if path else key)
    elif isinstance(data, list) and data and isinstance(data[0], list):
        for item in data:
            yield from lines(item[1], f"{path}.{item[0]}")
    else:
        yield f"{path}: {json.dumps(data)}"


def differences(a: Any, b: Any) -> list[str]:
    """Returns the fields in which two dataclasses differ, as `path: value of a -> value of b`."""
    left, right = (dict(line.split(": ", 1) for line in lines(v)) for v in (a, b))
    keys = sorted(left.keys() | right.keys())
    return [f"{k}: {left.get(k, '-')} -> {right.get(k, '-')}" for k in keys if left.get(k) != right.get(k)]
