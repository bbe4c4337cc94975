"""Changes fields of nested configurations. No JAX here."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Config = TypeVar("Config")


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Returns the configuration with other values at these dotted paths, all at once: its checks see only the result."""
    own: dict[str, Any] = {path: value for path, value in values.items() if "." not in path}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, _, inner = path.partition(".")
        if inner:
            parts.setdefault(name, {})[inner] = value
    own |= {name: changed(own.get(name, getattr(config, name)), inner) for name, inner in parts.items()}
    return dataclasses.replace(config, **own)  # pyright: ignore[reportArgumentType]
