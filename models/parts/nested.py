"""Makes nested configurations from values by dotted paths. No JAX here."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any


def changed(target: Any, values: Mapping[str, Any]) -> Any:
    """Returns a configuration with these values, all at once: its checks see only the result.

    Args:
      target: a class, or a configuration that has the fields which are left out.
      values: by dotted path. What lies below another path replaces fields of its value, which may be a class; without one it is
        made of the default, or of the first class that the field is declared with.
    """
    own = {path: value for path, value in values.items() if "." not in path}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        head, dot, path_inside = path.partition(".")
        if dot:
            inner.setdefault(head, {})[path_inside] = value
    for head, parts in inner.items():
        own[head] = changed(own[head] if head in own else _initial(target, head), parts)
    return target(**own) if isinstance(target, type) else dataclasses.replace(target, **own)


def _initial(target: Any, name: str) -> Any:
    """Returns a field's value in `target`, or, if that is a class, its default or first declared class."""
    if not isinstance(target, type):
        return getattr(target, name)
    field = target.__dataclass_fields__[name]
    if field.default is not dataclasses.MISSING:
        return field.default
    declared = typing.get_type_hints(target)[name]
    return next(iter(typing.get_args(declared)), declared)
