"""Settings of rotary positions in a config.json, as `transformers` 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write
them. No JAX."""

import math
from collections.abc import Mapping
from typing import Any

from models.errors import nearest, shortened
from models.interchange import InterchangeError
from models.interchange.settings import setting
from models.parts.attention.config import Rotary
from models.parts.numbers import check_base

TYPES = {name: name for name in ("default", "linear", "llama3", "yarn", "longrope")}  # theirs -> ours, but for "default"
Turning = tuple[float, Rotary | None]  # the base of the rates, and how they are stretched


def read(
    theirs: Mapping[str, Any],
    head_dim: int,
    *,
    theta: float,
    longest: int,
    partial: bool = False,
    types: Mapping[str, str] = TYPES,
    original: int | None = None,
) -> Turning:
    """Returns how positions turn queries and keys; where both forms are in a config.json, the older one counts.

    Args:
      theta: the base where none is named.
      longest: the model's max_position_embeddings.
      partial: whether "default" turns the part of a head that partial_rotary_factor names; elsewhere only 1 is read.
      types: ours, by their names; those that are not in it are refused.
      original: what is taken for original_max_position_embeddings, whatever is said of it with the type.

    Raises:
      InterchangeError: a setting that our models do not support.
    """
    rope = setting(theirs, "rope_scaling", dict, {}) or setting(theirs, "rope_parameters", dict, {})
    if any(isinstance(value, dict) for value in rope.values()):
        raise InterchangeError("config.json: rope_parameters of each type of layer are not supported for this model")
    outer = {key: theirs[key] for key in ("rope_theta", "partial_rotary_factor") if key in theirs}
    return turning(
        outer | rope,
        head_dim,
        theta=theta,
        longest=longest,
        partial=partial,
        types=types,
        original=theirs.get("original_max_position_embeddings") if original is None else original,
    )


def turning(
    rope: Mapping[str, Any],
    head_dim: int,
    *,
    theta: float,
    longest: int,
    partial: bool = False,
    types: Mapping[str, str] = TYPES,
    original: int | None = None,
) -> Turning:
    """Returns what one dictionary of settings says; as `read`."""
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
    turned: dict[str, Any] = {} if dims == head_dim else dict(dims=dims)
    if kind == "default":
        return base, Rotary(**turned) if turned else None
    turned["scaling"] = kind
    if kind != "linear":
        known = setting(rope, "original_max_position_embeddings", int, longest) if original is None else original
        turned["original"] = known
    if kind in ("linear", "llama3"):
        turned["factor"] = setting(rope, "factor", float)
    if kind == "llama3":
        turned |= dict(low=setting(rope, "low_freq_factor", float), high=setting(rope, "high_freq_factor", float))
    if kind == "yarn":
        factor = setting(rope, "factor", float, longest / turned["original"])
        turned |= dict(
            factor=factor,
            beta_fast=setting(rope, "beta_fast", float, 0.0) or 32.0,
            beta_slow=setting(rope, "beta_slow", float, 0.0) or 1.0,
            whole=setting(rope, "truncate", bool, True),
            amplitude=setting(rope, "attention_factor", float, _yarn_amplitude(rope, factor)),
        )
    if kind == "longrope":
        factor = setting(rope, "factor", float, longest / turned["original"])
        grown = math.sqrt(1 + math.log(factor) / math.log(turned["original"])) if factor > 1 else 1.0
        turned |= dict(
            short=_factors(rope, "short_factor"),
            long=_factors(rope, "long_factor"),
            amplitude=setting(rope, "attention_factor", float, grown),
        )
    return base, Rotary(**turned)


def magnitude(factor: float, scale: float = 1.0) -> float:
    """Returns YaRN's factor of cosines and sines for texts that are so many times as long."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1


def _yarn_amplitude(rope: Mapping[str, Any], factor: float) -> float:
    scale, of_all = (setting(rope, key, float, 0.0) for key in ("mscale", "mscale_all_dim"))
    return magnitude(factor, scale) / magnitude(factor, of_all) if scale and of_all else magnitude(factor)


def _number(rope: Mapping[str, Any], key: str, default: float) -> float:
    return setting(rope, key, float) if key in rope else default


def _factors(rope: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = setting(rope, key, list)
    if not all(type(value) in (int, float) for value in values):
        raise InterchangeError(f"config.json: {key} must be numbers, one for each rate")
    return tuple(map(float, values))


def write(base: float, rotary: Rotary | None, head_dim: int) -> dict[str, Any]:
    """Returns the settings by which `transformers` turns as our model does, in the form that versions 4 and 5 read."""
    if rotary is None:
        return {"rope_theta": base, "rope_scaling": None}
    settings: dict[str, Any] = {"rope_theta": base, "rope_scaling": None}
    if rotary.dims:
        settings["partial_rotary_factor"] = rotary.dims / head_dim
    if rotary.scaling == "none":
        return settings
    rope: dict[str, Any] = {"rope_type": rotary.scaling}
    if rotary.scaling != "linear":
        rope["original_max_position_embeddings"] = rotary.original
    if rotary.scaling != "longrope":
        rope["factor"] = rotary.factor
    match rotary.scaling:
        case "llama3":
            rope |= {"low_freq_factor": rotary.low, "high_freq_factor": rotary.high}
        case "yarn":
            rope |= {"beta_fast": rotary.beta_fast, "beta_slow": rotary.beta_slow, "truncate": rotary.whole}
            rope["attention_factor"] = rotary.amplitude
        case "longrope":
            rope |= {"short_factor": list(rotary.short), "long_factor": list(rotary.long)}
            rope["attention_factor"] = rotary.amplitude
        case _:
            pass
    return settings | {"rope_scaling": rope}
