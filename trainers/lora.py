"""Partial training of a model: the parameters that a run trains, and low-rank updates (LoRA) in place of whole matrices.

Models contain neither. Adapters are stored beside the parameters, under "lora.", and a layer computes with them beside the
matrix that they change, which may be quantised (models/parts/low_rank.py). Whatever reads a run gets them merged.
"""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.experiment import Experiment, Finetuning, Lora
from configs.registry import ConfigError
from models.errors import nearest
from models.families import ModelConfig, interchange_of
from models.parts import low_rank
from models.parts.low_rank import LowRank, Quantized
from models.sharding.params import ParamInfo, normal

Infos = dict[str, ParamInfo]  # by dotted name
PREFIX, VALUES, SCALES = "lora.", ".values", ".scales"
ALL_LINEAR = "all-linear"  # PEFT's name of all projections
_BLOCK = 64  # numbers of a scale (QLoRA)
_DROPOUT = 0x10AA  # folded into a step's key, of which the model's own draws are split


def adapters(infos: Infos, lora: Lora, model: ModelConfig) -> Infos:
    """Returns the parameters A [.., in, rank] and B [.., rank, out] of every matrix that is adapted.

    Raises:
      ConfigError: a target names no matrix.
    """
    if not lora.rank:
        return {}
    adapted: Infos = {}
    for name in targeted(infos, lora, model):
        for side in "ab":
            adapted[f"{PREFIX}{name}.{side}"] = _piece(infos[name], f"{PREFIX}{name}.{side}", lora.rank)
    return adapted


def targeted(infos: Infos, lora: Lora, model: ModelConfig) -> list[str]:
    """Returns the names of the matrices that are adapted, by our names of them or by those of `transformers`.

    Raises:
      ConfigError: a target names no matrix.
    """
    matrices = {name: info for name, info in infos.items() if info.is_matrix and not name.startswith(PREFIX)}
    by_target: dict[str, set[str]] = {ALL_LINEAR: {name for name, info in matrices.items() if is_linear(info)}}
    for name in matrices:
        by_target.setdefault(name.rpartition(".")[2], set()).add(name)
    if set(lora.targets) - by_target.keys():
        for module, names in their_modules(model).items():
            parts = module.split(".")
            for i in range(len(parts)):
                by_target.setdefault(".".join(parts[i:]), set()).update(names & matrices.keys())
    for target in lora.targets:
        if not by_target.get(target):
            raise ConfigError(f"train.finetune.lora.targets: no matrix is called {target!r}{nearest(target, by_target)}")
    chosen = set().union(*(by_target[target] for target in lora.targets))
    return [name for name in matrices if name in chosen]


def is_linear(info: ParamInfo) -> bool:
    """Returns whether a matrix is one of a layer's projections: no table, no output matrix, no router."""
    own = info.axes[info.stacked :]
    return info.is_matrix and "layers" in info.axes and "embed" in own and "gate" not in own


def their_modules(model: ModelConfig) -> dict[str, set[str]]:
    """Returns our matrices by the module of `transformers` that holds them, without the numbers of layers and experts."""
    interchange = interchange_of(model.family)
    modules: dict[str, set[str]] = {}
    for entry in interchange.entries(model) if interchange else ():
        if entry.theirs.endswith(".weight") and entry.parts[0].inputs:
            module = re.sub(r"\.?\{\w+\}", "", entry.theirs.removesuffix(".weight"))
            modules.setdefault(module, set()).update(part.name for part in entry.parts)
    return modules


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


def stored(infos: Infos, lora: Lora) -> Infos:
    """Returns the parameters as a run stores them: a quantised matrix as its values and its scales."""
    if not (lora.rank and lora.base):
        return infos
    result: Infos = {}
    for name, info in infos.items():
        if name.startswith(PREFIX) or not is_linear(info):
            result[name] = info
            continue
        axis, block = _blocks(info)
        like = jax.eval_shape(lambda: low_rank.quantize(jnp.zeros(info.shape), lora.base, axis, block))
        axes = ["rank" if i == axis else name for i, name in enumerate(info.axes)]  # few, and whole on every device
        for ending, x, names in ((VALUES, like.values, info.axes), (SCALES, like.scales, tuple(axes))):
            part = dataclasses.replace(info, name=f"{name}{ending}", shape=x.shape, dtype=x.dtype, axes=names)
            result[part.name] = part
    return result


def _blocks(info: ParamInfo) -> tuple[int, int]:
    """Returns the dimension of a matrix that is cut into blocks with a scale each, its last input, and a block's size."""
    axis = info.stacked + info.inputs - 1
    return axis, max(n for n in range(1, _BLOCK + 1) if info.shape[axis] % n == 0)


def quantized(arrays: dict[str, Any], infos: Infos, lora: Lora) -> dict[str, Any]:
    """Returns a model's parameters by name in the form in which `stored` says that they are.

    Args:
      infos: of the model's own parameters.
    """
    if not (lora.rank and lora.base):
        return arrays
    result = {}
    for name, x in arrays.items():
        if not is_linear(infos[name]):
            result[name] = x
            continue
        w = low_rank.quantize(x, lora.base, *_blocks(infos[name]))
        result |= {f"{name}{VALUES}": w.values, f"{name}{SCALES}": w.scales}
    return result


def in_place(
    params: dict[str, Any], lora: Lora, linear: frozenset[str] = frozenset(), key: jax.Array | None = None
) -> dict[str, Any]:
    """Returns the parameters as a model computes with them: adapted and quantised matrices in their own form, by which no sum and
    no whole matrix is formed (models/parts/low_rank.py).

    Args:
      linear: the matrices of which products leave the parts apart; of all others a layer makes arrays.
      key: draws dropout of what adapters read; None drops nothing.
    """
    if not lora.rank:
        return params
    params = dict(params)
    for name in [name.removesuffix(VALUES) for name in params if name.endswith(VALUES)]:
        values, scales = params.pop(f"{name}{VALUES}"), params.pop(f"{name}{SCALES}")
        params[name] = Quantized(values, scales, lora.base, apart=name in linear)
    sides = sorted(name for name in params if name.startswith(PREFIX) and name.endswith(".a"))
    keys = [None] * len(sides)
    if lora.dropout and key is not None:
        keys = list(jax.random.split(jax.random.fold_in(key, _DROPOUT), len(sides)))
    for side, own in zip(sides, keys, strict=True):
        name = side.removeprefix(PREFIX).removesuffix(".a")
        a, b = params.pop(side), params.pop(f"{PREFIX}{name}.b")
        of_layers = None if own is None else jax.random.split(own, a.shape[0])
        params[name] = LowRank(params[name], a, b, lora.alpha / lora.rank, name in linear, of_layers, lora.dropout)
    return params


def merged(params: dict[str, Any], lora: Lora) -> dict[str, Any]:
    """Returns the parameters as plain arrays, with their adapters added in. The arrays may be JAX's or NumPy's."""

    def plain_array(x: Any) -> Any:
        if isinstance(x, LowRank):
            base = plain_array(x.base)
            return base + low_rank.update(x.a, x.b, base.shape, x.scale).astype(base.dtype)
        if isinstance(x, Quantized):
            whole = x.astype(jnp.float32)
            return np.asarray(whole) if isinstance(x.values, np.ndarray) else whole
        return x

    return {name: plain_array(x) for name, x in in_place(params, lora).items()}


def plain(e: Experiment, params: dict[str, Any]) -> tuple[Experiment, dict[str, Any]]:
    """Returns a trained model's experiment and parameters with adapters merged, as if whole matrices had been trained."""
    return e.with_finetune(lora=Lora()), merged(params, e.train.finetune.lora)


def trained(infos: Infos, finetune: Finetuning) -> frozenset[str]:
    """Returns the names of the parameters that a run changes.

    Raises:
      ConfigError: a prefix of `train.finetune.freeze` fits no parameter, or nothing is left to train.
    """
    names = set(infos)
    if finetune.lora.rank:  # only adapters and fresh components are trained
        heads = tuple(f"{component}." for component in finetune.fresh)
        names = {name for name in names if name.startswith((PREFIX, *heads))}
    for prefix in finetune.freeze:
        frozen = {name for name in infos if f"{name}.".startswith(f"{prefix}.")}
        if not frozen:
            prefixes = {name.rsplit(".", i)[0] for name in infos for i in range(name.count(".") + 1)}
            raise ConfigError(f"train.finetune.freeze: no parameter begins with {prefix!r}{nearest(prefix, prefixes)}")
        names -= frozen
    if not names:
        raise ConfigError(f"train.finetune.freeze={finetune.freeze}: every parameter is frozen")
    return frozenset(names)
