"""Policies of what the backward pass keeps of a layer, where, and what it computes a second time. Plain data, no JAX.

"none" keeps all, "full" recomputes the layer from its input, "dots" keeps the products of its weights; names joined by "+", as
"attention_in+context+gate", keep these activations and recompute the rest. A family names its activations in one table
(models.family.Family), which the planner and the drawings read as well.

What is offloaded waits in the memory of the host until the backward pass fetches it: activations by the same names, the input of
each layer, and the optimizer's state, which is there between steps.
"""

import dataclasses
from collections.abc import Collection

from models.errors import UserError, nearest, shortened

WHOLE = ("none", "full", "dots")
NAMELESS = ("none", "dots")  # keep what has no name, on the device: nothing of a layer is offloaded under them
LAYER_IN = "layer_in"  # the input of each layer of a stack, from which "full" recomputes it
OPTIMIZER = "optimizer"
CARRY = "carry"  # what a scan over layers hands on, in a family's table: no mark, so that no policy names it

Axes = tuple[str | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation:
    """A tensor inside a layer that the model marks with `jax.ad_checkpoint.checkpoint_name`.

    Attributes:
      what: describes it in a few words.
      axes: the logical axes of each form in which it occurs, a name for each dimension (models/sharding/layout.py, AXES).
      product: whether it is a product with a weight, which "dots" keeps unless it is computed expert by expert.
      summed: the axis over whose shards the sub-layer that returns it is summed; "" for none.
      exchanged: whether it travels between the devices of routing groups and those of experts.
      copies: how many arrays of its size a backward pass without recomputation keeps.
      working: how many arrays of its size the layer's backward pass holds at once.
      quadratic: whether it is an attention's table of queries by keys, which goes through memory.
    """

    what: str
    axes: tuple[Axes, ...]
    product: bool = False
    summed: str = ""
    exchanged: bool = False
    copies: float = 1.0
    working: float = 2.0
    quadratic: bool = False


def names(remat: str) -> tuple[str, ...]:
    """Returns the activations that are kept by name."""
    return () if remat in WHOLE else tuple(remat.split("+"))


def offloaded(offload: str) -> tuple[str, ...]:
    """Returns the names of what is offloaded."""
    return () if offload == "none" else tuple(offload.split("+"))


def check(remat: str, activations: Collection[str]) -> None:
    """Raises UserError for a policy that names an activation which is none of these."""
    _check_names("remat", remat, names(remat), (*WHOLE, *activations))


def check_offload(offload: str, policies: Collection[str], activations: Collection[str]) -> None:
    """Raises UserError for what cannot be offloaded under these policies of what is kept in the device's own memory."""
    _check_names("offload", offload, offloaded(offload), ("none", LAYER_IN, OPTIMIZER, *activations))
    of_layers = [name for name in offloaded(offload) if name != OPTIMIZER]
    for policy in policies if of_layers else ():
        if policy in NAMELESS:
            raise UserError(
                f"offload='{shortened(offload)}': remat={policy!r} keeps what has no name on the device; with offloaded "
                "activations it is 'full', or names"
            )
        if both := set(of_layers).intersection(names(policy)):
            raise UserError(
                f"offload='{shortened(offload)}': remat='{shortened(policy)}' keeps '{min(both)}' on the device; name it once"
            )


def _check_names(field: str, value: str, named: tuple[str, ...], choices: tuple[str, ...]) -> None:
    """Raises UserError for the first name that is none of the choices, of which those in WHOLE stand alone."""
    choices = tuple(choice for choice in choices if choice != CARRY)
    for name in named:
        if name not in choices or name in WHOLE:
            raise UserError(f"{field}='{shortened(value)}': no activation '{shortened(name)}'{nearest(name, choices)}")
