"""Fields of an experiment that prepared data decide: lengths of rows, channels, numbers of classes and of tokens.

A kind of data says which of its own fields a cache decides, and which sizes of a model (`data.task.Task.decided`, `sizes`). A
family says which field has each size: ClassVars `vocabularies` for those of vocabularies, and `sized_by_data` for all others.
"""

import functools
import sys
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.overrides import paths
from configs.registry import ConfigError
from data import kinds, untrusted
from data.kinds import task_of
from data.reading.caches import cache_folder, read_manifest
from data.task import DataError
from models.errors import UserError, shortened
from models.parts.nested import changed

_MULTIPLE = 128  # rows of a table of tokens, which are then cut over devices


def taken(e: Experiment, registered: Experiment, arguments: Sequence[str]) -> Experiment:
    """Returns an experiment with what its data decide, and says on standard error in one line what that is.

    Nothing is taken where the command line names no cache, or the one that the experiment has anyway, or one that is not
    prepared yet.

    Args:
      registered: the experiment before the command line's overrides.
      arguments: these overrides, whose fields stay as they are.

    Raises:
      DataError: a field of the command line contradicts the data; the line names its flag.
      ConfigError: there is no experiment with what the data decide.
    """
    given = paths(registered, arguments)
    cache = e.data.cache
    if "data.cache" not in given or cache in ("", registered.data.cache):
        return e
    if not (cache_folder(e.data) / "manifest.json").exists():
        return e
    fitted, fields = fit(e, given)
    if fields:
        print(
            f"from data {cache!r}: {', '.join(f'{path} {shortened(str(value), 99)}' for path, value in fields.items())}",
            file=sys.stderr,
        )
    return fitted


def fit(e: Experiment, given: Collection[str] = ()) -> tuple[Experiment, dict[str, Any]]:
    """Returns an experiment that fits its cache, and the fields that were changed, by path.

    Args:
      given: paths of fields that stay as they are.

    Raises:
      DataError: there is no such cache, it is of another kind, or a field that is given contradicts it.
      ConfigError: there is no experiment with what the data decide.
    """
    folder = cache_folder(e.data)
    manifest = read_manifest(folder)
    with untrusted.damage(folder / "manifest.json", DataError):
        kind = str(kinds.EARLIER.get(manifest["kind"], manifest["kind"]))
        if kind != e.data.kind:
            other = _fitting(e, kind)
            hint = f"; take {other}, which reads it" if other else ""
            raise DataError(
                f"data.cache={e.data.cache!r}: holds data of kind {kind!r}, the experiment reads {e.data.kind!r}{hint}"
            )
        own = {path: value for path, value in task_of(e.data).decided(manifest).items() if f"data.{path}" not in given}
        own = {path: value for path, value in own.items() if value != getattr(e.data, path)}
        e = replace(e, data=_with(e.data, own, "data"))
        task = task_of(e.data)
        sizes = _sizes(e, task.sizes(manifest))
        sizes = {path: value for path, value in sizes.items() if f"model.{path}" not in given}
        e = replace(e, model=_with(e.model, sizes, "model"))
        if _is_fresh(e):  # the model may be that of the weights: it is checked when these are opened
            task.check(manifest, e.model)
    return e, {f"data.{path}": value for path, value in own.items()} | {f"model.{path}": value for path, value in sizes.items()}


def _fitting(e: Experiment, kind: str) -> str:
    """Returns the name of a registered experiment that fits the cache of another, whose kind of data is this: the one of the
    smallest batch, of the same module if there is one there; "" if none does."""
    module = e.name.partition(".")[0]
    others = [other for other in map(registry.load, registry.names()) if other.data.kind == kind]
    for other in sorted(others, key=lambda other: (other.name.partition(".")[0] != module, other.data.batch_size, other.name)):
        try:
            # A model that starts from weights is not checked before they are opened.
            fit(replace(other.with_finetune(init_from=""), data=replace(other.data, cache=e.data.cache)))
        except UserError:
            continue
        return other.name
    return ""


def _with(config: Any, values: Mapping[str, Any], name: str) -> Any:
    try:
        return changed(config, values) if values else config
    except UserError:
        raise
    except ValueError as error:
        fields = ", ".join(f"{name}.{path}={value}" for path, value in values.items())
        raise ConfigError(f"the data decide {fields}: {error}") from None


def _sizes(e: Experiment, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a model, by path, that do not fit the sizes of the data, with values that do.

    A model that starts from weights keeps their vocabulary and positions: what is too small is refused later. Others have a
    vocabulary no larger than they need. A field that is 0 or missing is that of a model without such a part.
    """
    fresh = _is_fresh(e)
    vocabularies = getattr(e.model, "vocabularies", {})
    paths, needed, values = vocabularies | getattr(e.model, "sized_by_data", {}), dict[str, int](), dict[str, Any]()
    for name, size in sizes.items():
        if not (path := paths.get(name)) or not (now := _at(e.model, path)):
            continue
        if isinstance(size, list):  # of parts of a model, such as its tables
            size = registry.from_json(size, typing.get_type_hints(type(e.model))[path], f"model.{path}")
        if name in vocabularies:
            needed[path] = max(size, needed.get(path, 0))
            fits = not fresh or needed[path] <= now < needed[path] + _MULTIPLE
            size = -(-needed[path] // _MULTIPLE) * _MULTIPLE
        else:
            fits = now == size if name != "positions" else not fresh or now >= size
        if fits:
            values.pop(path, None)
        else:
            values[path] = size
    return values


def _is_fresh(e: Experiment) -> bool:
    """Returns whether a model starts from no weights, or from those of components alone."""
    return all("=" in part for part in e.train.finetune.init_from.split(";") if part)


def _at(config: Any, path: str) -> Any:
    """Returns the value at a dotted path; None where there is no such field."""
    return functools.reduce(lambda part, name: getattr(part, name, None), path.split("."), config)
