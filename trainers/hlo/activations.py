"""The work of a model in a step, whatever its layout: the activations of its layers, its output logits, its FLOPs.

Taken from the traced loss itself, so that every family has them without formulas of its own. The logical axes of an activation
are those that its family gives for its name.
"""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from configs.experiment import Experiment
from data.config import DataConfig
from data.features import Feature
from models.execution import Execution
from models.families import family_of
from models.sharding import remat
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import ParamInfo
from models.sharding.remat import CARRY, Axes
from trainers.hlo import model_flops, variants
from trainers.plan import make_plan

RESIDUAL = "residual"  # what is kept by a family that names no activations
_UNNAMED = remat.Activation(what="", axes=())


@dataclasses.dataclass(frozen=True)
class Traced:
    """An activation of a layer as a trace shows it.

    Attributes:
      kind: what the family says of its name.
      stack: number of the stack that the layer is in.
      component: path of that stack.
      shape, axes: for the whole batch.
      itemsize: bytes of an element.
      times: in how many layers it is.
    """

    name: str
    kind: remat.Activation
    stack: int
    component: str
    shape: tuple[int, ...]
    axes: Axes
    itemsize: int
    times: int

    def kept(self, how: Execution) -> float:
        """Returns the bytes that an execution keeps on the device for the backward pass, relative to the activation's own."""
        if self.waits_on_host(how):
            return 0
        policy = how.remat_at(self.component)
        if policy == "none":
            return self.kind.copies
        if self.name in (CARRY, RESIDUAL):
            return 1
        if policy == "dots":
            return self.kind.product and "act_expert" not in self.axes
        return self.name in remat.names(policy)

    def waits_on_host(self, how: Execution) -> bool:
        """Returns whether an execution keeps it for the backward pass in the host's memory."""
        return (remat.LAYER_IN if self.name == CARRY else self.name) in how.offloaded


def activations(e: Experiment) -> tuple[Traced, ...]:
    """Returns those of all stacks of layers; of a family that names none, all that its backward pass keeps."""
    if family_of(e.model).activations:
        return _of_stacks(on_one_device(variants.with_remat(e, "none")))
    return _residuals(on_one_device(e))


def logits(e: Experiment) -> int:
    """Returns how many output logits a batch has; 0 for a model without a vocabulary."""
    return _logits(on_one_device(variants.with_remat(e, "none")))


def program_flops(e: Experiment) -> float:
    """Returns the FLOPs of a step, including what its execution computes a second time."""
    return _program_flops(on_one_device(e))


def on_one_device(e: Experiment) -> Experiment:
    """Returns the experiment without what does not matter here: a key."""
    return dataclasses.replace(variants.unquantized(e), name="", layout=ONE_DEVICE)


def axis_sizes(infos: Iterable[ParamInfo]) -> dict[str, set[int]]:
    """Returns the sizes that each logical axis has among parameters."""
    sizes: dict[str, set[int]] = {}
    for info in infos:
        for name, size in zip(info.axes, info.shape, strict=True):
            sizes.setdefault(name, set()).add(size)
    return sizes


@functools.lru_cache(maxsize=64)
def _program_flops(e: Experiment) -> float:
    return model_flops.program_flops(e)


@functools.lru_cache(maxsize=16)
def _jaxpr(e: Experiment) -> Any:
    return model_flops.loss(e)


@functools.lru_cache(maxsize=16)
def _sizes(e: Experiment) -> dict[str, set[int]]:
    return axis_sizes(make_plan(e, abstract=True).parameters)


@functools.lru_cache(maxsize=16)
def _logits(e: Experiment) -> int:
    vocabularies = _sizes(e).get("vocab", set())
    products = (eqn.outvars[0].aval.shape for eqn in _equations(_jaxpr(e)) if eqn.primitive.name == "dot_general")
    return max((math.prod(shape) for shape in products if shape and shape[-1] in vocabularies), default=0)


@functools.lru_cache(maxsize=16)
def _of_stacks(e: Experiment) -> tuple[Traced, ...]:
    """Returns what goes from layer to layer in each scan over layers, and what is named in it."""
    table, sizes = family_of(e.model).activations, _sizes(e)
    stacks = [eqn for eqn in _equations(_jaxpr(e)) if eqn.primitive.name == "scan"]
    traced = []
    for number, eqn in enumerate(stacks):
        component = str(eqn.source_info.name_stack)  # models.sharding.params.scan
        times = eqn.params["length"]
        carries = [v.aval for v in eqn.invars[slice(*model_flops.carry_range(eqn))]]
        # The residual stream; a tower's has all slots of a row as rows of its own.
        stream = [x for x in carries if x.ndim > 2 and x.shape[0] % e.data.batch_size == 0]
        tensors = [(CARRY, x) for x in stream if jnp.issubdtype(x.dtype, jnp.floating)]
        for inner in _equations(eqn.params["jaxpr"].jaxpr):
            if inner.primitive.name == "name":
                tensors.append((inner.params["name"], inner.outvars[0].aval))
        for name, x in tensors:
            kind = table.get(name, _UNNAMED)
            axes = _form(kind.axes, x.shape, sizes) or _as_inputs(x.shape, e.data)
            traced.append(Traced(name, kind, number, component, x.shape, axes, x.dtype.itemsize, times))
    return tuple(traced)


def _form(forms: Iterable[Axes], shape: tuple[int, ...], sizes: dict[str, set[int]]) -> Axes | None:
    """Returns the first form that a tensor of this shape may have: an axis of activations is as long as that of weights which
    it goes with ("act_heads" as "heads"). None if there is none."""

    def fits(form: Axes) -> bool:
        pairs = ((sizes.get((name or "").removeprefix("act_")), n) for name, n in zip(form, shape, strict=False))
        return len(form) == len(shape) and all(known is None or n in known for known, n in pairs)

    return next(filter(fits, forms), None)


def _as_inputs(shape: tuple[int, ...], data: DataConfig) -> Axes:
    """Returns axes for a tensor of which nothing is known: as those of the input that begins most like it.

    The batch is its first dimension as long as that; in a stack of layers others come before.
    """
    at = shape.index(data.batch_size) if data.batch_size in shape else len(shape)
    after = shape[at + 1 :]

    def alike(feature: Feature) -> Axes:
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(after, feature.shape, strict=False))
        return feature.axes[: len(list(pairs))]

    axes = max(map(alike, data.features().values()), key=len, default=())
    return ((None,) * at + ("batch",) + axes + (None,) * len(shape))[: len(shape)]


@functools.lru_cache(maxsize=16)
def _residuals(e: Experiment) -> tuple[Traced, ...]:
    """Returns what differentiation keeps beside the parameters."""
    value, trained, others = model_flops.objective(variants.ordinary(e))
    kept = jax.tree.leaves(jax.eval_shape(lambda p, given: jax.vjp(lambda p: value(p, given), p)[1], trained, others))
    given = Counter((x.shape, x.dtype) for x in jax.tree.leaves((trained, others)))
    traced = []
    for x in kept:
        if given[x.shape, x.dtype]:
            given[x.shape, x.dtype] -= 1
        else:
            axes = _as_inputs(x.shape, e.data)
            traced.append(Traced(RESIDUAL, _UNNAMED, 0, "", x.shape, axes, x.dtype.itemsize, 1))
    return tuple(traced)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner programs after the one that they belong to."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _equations(inner)
