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
LAYER_IN = "layer_in"  # the input of each layer of a stack, from which "full" recomputes it
OPTIMIZER = "optimizer"

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


def names(policy: str) -> tuple[str, ...]:
    """Returns what a policy names: activations that are kept, or what is offloaded."""
    return () if policy in WHOLE else tuple(policy.split("+"))


def check(remat: str, activations: Collection[str]) -> None:
    """Raises UserError for a policy that names an activation which is none of these."""
    _check_names("remat", remat, WHOLE, activations)


def check_offload(offload: str, policies: Collection[str], activations: Collection[str]) -> None:
    """Raises UserError for what cannot be offloaded under these policies of what is kept in the device's own memory."""
    _check_names("offload", offload, ("none",), (LAYER_IN, OPTIMIZER, *activations))
    of_layers = [name for name in names(offload) if name != OPTIMIZER]
    for policy in policies if of_layers else ():
        if policy in ("none", "dots"):
            raise UserError(
                f"offload='{shortened(offload)}': remat={policy!r} keeps what has no name on the device; with offloaded "
                "activations it is 'full', or names"
            )
        if both := set(of_layers).intersection(names(policy)):
            raise UserError(
                f"offload='{shortened(offload)}': remat='{shortened(policy)}' keeps '{min(both)}' on the device; name it once"
            )


def _check_names(field: str, policy: str, words: tuple[str, ...], known: Collection[str]) -> None:
    for name in names(policy):
        if name not in known:
            raise UserError(f"{field}='{shortened(policy)}': no activation '{shortened(name)}'{nearest(name, (*words, *known))}")
