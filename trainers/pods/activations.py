"""What a model computes in a step whatever its layout: the activations of its layers, its output logits, its FLOPs.

Taken from the traced loss itself, so that every family has them without formulas of its own.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import core

from configs.experiment import Experiment
from models.sharding import remat
from models.sharding.layouts import ONE_DEVICE
from trainers.programs import model_flops

Axes = tuple[str | None, ...]

RESIDUAL: Axes = ("batch", "res_length", "act_embed")
HEADS: Axes = ("batch", "length", "act_heads", None)
HIDDEN: Axes = ("batch", "length", "act_mlp")
IN_EXPERTS: Axes = ("act_expert", "expert_group", None, "act_expert_mlp")  # "gate" and "up" of a mixture of experts
# Logical axes of the activations in models/sharding/remat.py and of two that have no name there: what goes from layer to layer,
# and attention's probabilities.
AXES: dict[str, Axes] = {
    "carry": RESIDUAL,
    "scores": ("batch", "act_heads", "length", "keys"),
    "attention_in": HEADS,
    "context": HEADS,
    "attention_out": RESIDUAL,
    "gate": HIDDEN,
    "up": HIDDEN,
    "ffn_out": RESIDUAL,
    "dispatched": ("act_expert", "expert_group", None, "act_embed"),
    "returned": ("group", None, None, "act_embed"),
}
OF_WEIGHTS = ("attention_in", "attention_out", "gate", "up", "ffn_out")  # products that remat="dots" keeps


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation of a layer.

    Attributes:
      stack: number of the stack that the layer is in.
      shape, axes: for the whole batch.
      itemsize: bytes of an element.
      times: in how many layers it is.
    """

    name: str
    stack: int
    shape: tuple[int, ...]
    axes: Axes
    itemsize: int
    times: int

    def kept(self, policy: str) -> float:
        """Bytes that this `remat` keeps for the backward pass, relative to the activation's own."""
        if policy == "none":  # also what two norms return, and what comes of the hidden product
            return {"carry": 3, "up": 2, "scores": 1.5}.get(self.name, 1)
        if self.name == "carry":
            return 1
        if policy == "dots":
            return self.name in OF_WEIGHTS and "act_expert" not in self.axes
        return self.name in remat.names(policy)


def activations(e: Experiment) -> tuple[Activation, ...]:
    """Those of all stacks of layers."""
    return _traced(on_one_device(e, "none"))[0]


def logits(e: Experiment) -> int:
    """How many output logits a batch has."""
    return _traced(on_one_device(e, "none"))[1]


def program_flops(e: Experiment, policy: str) -> float:
    """FLOPs of a step under a `remat`, what it computes a second time included."""
    return _program_flops(on_one_device(e, policy))


def on_one_device(e: Experiment, policy: str) -> Experiment:
    """The experiment with nothing in it that does not matter here: a key."""
    return dataclasses.replace(e, name="", model=dataclasses.replace(e.model, remat=policy), layout=ONE_DEVICE)


@functools.lru_cache(maxsize=64)
def _program_flops(e: Experiment) -> float:
    return model_flops.program_flops(e)


@functools.lru_cache(maxsize=16)
def _traced(e: Experiment) -> tuple[tuple[Activation, ...], int]:
    jaxpr = model_flops.loss(e)
    vocabularies = {getattr(e.model, name, None) for name in ("vocab", "target_vocab")}
    products = (eqn.outvars[0].aval.shape for eqn in _equations(jaxpr) if eqn.primitive.name == "dot_general")
    of_vocab = [math.prod(shape) for shape in products if shape and shape[-1] in vocabularies]
    return tuple(_of_stacks(jaxpr, e.model.heads)), max(of_vocab, default=0)


def _of_stacks(jaxpr: Any, heads: int) -> Iterator[Activation]:
    stacks = [eqn for eqn in _equations(jaxpr) if eqn.primitive.name == "scan"]
    for number, eqn in enumerate(stacks):
        first, times = eqn.params["num_consts"], eqn.params["length"]
        carries = [v.aval for v in eqn.invars[first : first + eqn.params["num_carry"]]]
        found = [("carry", x) for x in carries if x.ndim == 3 and jnp.issubdtype(x.dtype, jnp.floating)]
        for inner in _equations(eqn.params["jaxpr"].jaxpr):
            if inner.primitive.name == "name":
                found.append((inner.params["name"], inner.outvars[0].aval))
            elif inner.primitive.name == "exp" and inner.outvars[0].aval.ndim == 4:  # attention's softmax
                found.append(("scores", inner.outvars[0].aval))
        for name, x in found:
            axes = IN_EXPERTS if name in ("gate", "up") and x.ndim == 4 else AXES[name]
            if axes == HEADS and x.shape[2] != heads:  # shared keys and values
                axes = ("batch", "length", "act_kv_heads", None)
            yield Activation(name, number, x.shape, axes, x.dtype.itemsize, times)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner programs after the one that they belong to."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from _equations(inner)
