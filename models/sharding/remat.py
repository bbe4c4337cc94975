"""Policies of what the backward pass keeps of a layer, and what it computes a second time. Plain data, no JAX.

"none" keeps all, "full" recomputes the layer from its input, "dots" keeps the products of its weights; names joined by "+", as
"attention_in+context+gate", keep these activations and recompute the rest. A family names its activations in one table
(models.family.Family), which the planner and the drawings read as well.
"""

import dataclasses
from collections.abc import Collection

from models.errors import UserError, nearest, shortened

WHOLE = ("none", "full", "dots")

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


def check(remat: str, activations: Collection[str]) -> None:
    """Raises UserError for a policy that names an activation which is none of these."""
    for name in names(remat):
        if name not in activations:
            hint = nearest(name, (*WHOLE, *activations))
            raise UserError(f"remat='{shortened(remat)}': no activation '{shortened(name)}'{hint}")
