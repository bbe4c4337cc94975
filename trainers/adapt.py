"""Partial training of a model: the parameters that a run trains, and low-rank updates (LoRA) in place of whole matrices.

Models contain neither. Adapters are stored beside the parameters, under "lora.", and are added to the matrices they
change before the model sees them.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from configs.experiment import Experiment, Lora, Train
from configs.registry import ConfigError
from models.errors import nearest
from models.sharding.params import ParamInfo, flatten, nest, normal

Infos = dict[str, ParamInfo]  # by dotted name
PREFIX = "lora."


def adapters(infos: Infos, lora: Lora) -> Infos:
    """Returns the parameters A [.., in, rank] and B [.., rank, out] of every matrix that is adapted.

    Raises:
      ConfigError: a target names no matrix.
    """
    if not lora.rank:
        return {}
    matrices = {name: info for name, info in infos.items() if info.is_matrix}
    known = {name.rpartition(".")[2] for name in matrices}
    for target in lora.targets:
        if target not in known:
            raise ConfigError(f"train.lora.targets: no matrix is called {target!r}{nearest(target, known)}")
    adapted: Infos = {}
    for name, info in matrices.items():
        if name.rpartition(".")[2] in lora.targets:
            for side in "ab":
                adapted[f"{PREFIX}{name}.{side}"] = _piece(info, f"{PREFIX}{name}.{side}", lora.rank)
    return adapted


def _piece(info: ParamInfo, name: str, rank: int) -> ParamInfo:
    """Returns A, for a name that ends in ".a", or B: A has the matrix's stacked and input dimensions and the rank, B the stacked
    dimensions, the rank and the outputs."""
    at = info.stacked + info.inputs

    def dims(values: tuple, extra: Any) -> tuple:
        if name.endswith(".a"):
            return (*values[:at], extra)
        return (*values[: info.stacked], extra, *values[at:])

    return dataclasses.replace(info, name=name, shape=dims(info.shape, rank), axes=dims(info.axes, "rank"))


def create(infos: Infos, key: jax.Array) -> dict[str, jax.Array]:
    """Returns fresh adapters: A is Gaussian and B zero, so that the model starts unchanged (LoRA, section 4.1)."""
    created = {}
    for i, (name, info) in enumerate(sorted(infos.items())):
        inputs = math.prod(info.shape[info.stacked : -1])
        init = normal(inputs**-0.5)(jax.random.fold_in(key, i), info.shape, info.dtype)
        created[name] = init if name.endswith(".a") else jnp.zeros(info.shape, info.dtype)
    return created


def merged(params: dict[str, Any], lora: Lora) -> dict[str, Any]:
    """Returns the parameters with their adapters added in. The arrays may be JAX's or NumPy's."""
    if not lora.rank:
        return params
    flat = flatten(params)
    names = [name.removesuffix(".a") for name in flat if name.startswith(PREFIX) and name.endswith(".a")]
    for name in names:
        a, b, w = flat.pop(f"{name}.a"), flat.pop(f"{name}.b"), flat[name.removeprefix(PREFIX)]
        # A and W share the stacked and the input dimensions, B and W the stacked and the output ones.
        outputs = w.ndim - (a.ndim - 1)
        lead = w.shape[: b.ndim - 1 - outputs]
        update = a.reshape(*lead, -1, lora.rank) @ b.reshape(*lead, lora.rank, -1)
        flat[name.removeprefix(PREFIX)] = w + (lora.alpha / lora.rank * update).reshape(w.shape).astype(w.dtype)
    return nest(flat)


def plain(e: Experiment, params: dict[str, Any]) -> tuple[Experiment, dict[str, Any]]:
    """Returns a trained model's experiment and parameters with adapters merged, as if whole matrices had been trained."""
    return dataclasses.replace(e, train=dataclasses.replace(e.train, lora=Lora())), merged(params, e.train.lora)


def trained(infos: Infos, train: Train) -> frozenset[str]:
    """Returns the names of the parameters that a run changes.

    Raises:
      ConfigError: a prefix of `train.freeze` fits no parameter, or nothing is left to train.
    """
    names = set(infos)
    if train.lora.rank:  # only adapters and fresh components are trained
        heads = tuple(f"{component}." for component in train.fresh)
        names = {name for name in names if name.startswith((PREFIX, *heads))}
    for prefix in train.freeze:
        frozen = {name for name in infos if f"{name}.".startswith(f"{prefix}.")}
        if not frozen:
            prefixes = {name.rsplit(".", i)[0] for name in infos for i in range(name.count(".") + 1)}
            raise ConfigError(f"train.freeze: no parameter begins with {prefix!r}{nearest(prefix, prefixes)}")
        names -= frozen
    if not names:
        raise ConfigError(f"train.freeze={train.freeze}: every parameter is frozen")
    return frozenset(names)
