"""Settings of rotary positions in a config.json, as `transformers` 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write
them. No JAX."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from models.errors import nearest, shortened
from models.interchange import InterchangeError
from models.interchange.rows import Row, Setting
from models.interchange.settings import Fields, Settings, setting
from models.parts.attention.config import Interpolation, Llama3, LongRope, Rotary, Yarn
from models.parts.numbers import check_base

_ORIGINAL = "original_max_position_embeddings"
TYPES = {name: name for name in ("default", "linear", "llama3", "yarn", "longrope")}  # theirs -> ours, but for "default"


def read(theirs: Settings, head_dim: int, *, original: int | None = None, **options: Any) -> Rotary:
    """Returns how positions turn queries and keys; where both forms are in a config.json, the older one counts.

    Args:
      original, options: as of `turning`.

    Raises:
      InterchangeError: a setting that our models do not support.
    """
    rope = setting(theirs, "rope_scaling", dict, {}) or setting(theirs, "rope_parameters", dict, {})
    if any(isinstance(value, dict) for value in rope.values()):
        raise InterchangeError("config.json: rope_parameters of each type of layer are not supported for this model")
    outer = {key: theirs[key] for key in ("rope_theta", "partial_rotary_factor") if key in theirs}
    return turning(outer | rope, head_dim, original=theirs.get(_ORIGINAL) if original is None else original, **options)


def turning(
    rope: Settings,
    head_dim: int,
    *,
    theta: float,
    longest: int,
    partial: bool = False,
    types: Mapping[str, str] = TYPES,
    original: int | None = None,
) -> Rotary:
    """Returns how one dictionary of settings turns queries and keys.

    Args:
      theta: the base where none is named.
      longest: the model's max_position_embeddings.
      partial: whether "default" turns the part of a head that partial_rotary_factor names; elsewhere only 1 is read.
      types: ours, by their names; those that are not in it are refused.
      original: what is taken for original_max_position_embeddings, whatever is said of it with the type.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in types:
        raise InterchangeError(
            f"config.json: no rotary positions of type {shortened(str(kind))!r} here{nearest(str(kind), types)}"
        )
    kind = types[kind]
    base = _number(rope, "rope_theta", theta)
    check_base(base, "rope_theta")
    share = _number(rope, "partial_rotary_factor", 1.0)
    dims = int(head_dim * share)
    if dims != head_dim and not partial:
        raise InterchangeError(f"config.json: partial_rotary_factor={share:g} is not supported here, only 1")
    plain = Rotary(base=base, dims=0 if dims == head_dim else dims)
    if kind == "default":
        return plain
    given = {_ORIGINAL: longest} | {key: value for key, value in rope.items() if value is not None}
    if original is not None:
        given[_ORIGINAL] = original
    if kind in _AMPLITUDES:
        factor = setting(given, "factor", float, longest / setting(given, _ORIGINAL, int))
        given = {"attention_factor": _AMPLITUDES[kind](given, factor)} | given | {"factor": factor}
    fields = {path: value for row in _ROWS[kind] for path, value in row.read(given).items()}
    return dataclasses.replace(plain, scaling=_CLASSES[kind](**fields))


def magnitude(factor: float, scale: float = 1.0) -> float:
    """Returns YaRN's factor of cosines and sines for texts that are so many times as long."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1


def _yarn_amplitude(rope: Settings, factor: float) -> float:
    scale, of_all = (setting(rope, key, float, 0.0) for key in ("mscale", "mscale_all_dim"))
    return magnitude(factor, scale) / magnitude(factor, of_all) if scale and of_all else magnitude(factor)


def _longrope_amplitude(rope: Settings, factor: float) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(rope[_ORIGINAL])) if factor > 1 else 1.0


_AMPLITUDES = {"yarn": _yarn_amplitude, "longrope": _longrope_amplitude}  # where attention_factor is absent


def _number(rope: Settings, key: str, default: float) -> float:
    return setting(rope, key, float) if key in rope else default


def _factors(key: str, path: str) -> Row:
    """Returns the row of a number for each rate."""

    def read(theirs: Settings) -> Fields:
        values = setting(theirs, key, list)
        if not all(type(value) in (int, float) for value in values):
            raise InterchangeError(f"config.json: {key} must be numbers, one for each rate")
        return {path: tuple(map(float, values))}

    return Row(read, lambda rotary: {key: list(getattr(rotary, path))})


_STRETCHED = Setting(_ORIGINAL, "original", int), Setting("factor", "factor", float)
_AMPLITUDE = Setting("attention_factor", "amplitude", float)
_ROWS: dict[str, tuple[Row, ...]] = {
    "linear": _STRETCHED[1:],
    "llama3": (*_STRETCHED, Setting("low_freq_factor", "low", float), Setting("high_freq_factor", "high", float)),
    "yarn": (
        *_STRETCHED,
        Setting("beta_fast", "beta_fast", float, 0.0, decode=lambda rotations: rotations or 32.0),
        Setting("beta_slow", "beta_slow", float, 0.0, decode=lambda rotations: rotations or 1.0),
        Setting("truncate", "whole", bool, True),
        _AMPLITUDE,
    ),
    "longrope": (_STRETCHED[0], _factors("short_factor", "short"), _factors("long_factor", "long"), _AMPLITUDE),
}


_CLASSES = {"linear": Interpolation, "llama3": Llama3, "yarn": Yarn, "longrope": LongRope}


def share_of(dims: int, head_dim: int) -> float:
    """Returns the share of a head's dimensions that are turned, of which `transformers` takes the whole number below."""
    share = dims / head_dim
    return share if int(head_dim * share) == dims else math.nextafter(share, 2.0)


def type_of(rotary: Rotary) -> str:
    """Returns their name of the type of rotary positions."""
    return next((name for name, kind in _CLASSES.items() if type(rotary.scaling) is kind), "default")


def write(rotary: Rotary, head_dim: int) -> dict[str, Any]:
    """Returns the settings by which `transformers` turns as our model does, in the form that versions 4 and 5 read."""
    settings: dict[str, Any] = {"rope_theta": rotary.base, "rope_scaling": None}
    if rotary.dims:
        settings["partial_rotary_factor"] = share_of(rotary.dims, head_dim)
    if rotary.scaling is None:
        return settings
    kind = type_of(rotary)
    stretched = {key: value for row in _ROWS[kind] for key, value in row.write(rotary.scaling).items()}
    return settings | {"rope_scaling": {"rope_type": kind} | stretched}
