"""How a model is computed, apart from what it is: none of these settings belongs to the model. Plain data, no JAX."""

import dataclasses
from collections.abc import Collection
from typing import Literal

from models.errors import UserError, nearest
from models.parts.numbers import check_least, check_literals
from models.sharding import remat

Dtype = Literal["float32", "bfloat16", "float64"]
Dispatch = Literal["sort", "einsum", "all_to_all", "ragged"]
Quantization = Literal["none", "int8", "fp8"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of speed, memory and precision. Another execution of an experiment computes the same, to rounding.

    Attributes:
      dtype: of activations and of weights as they are used; stored weights have `Train.master_dtype`.
      remat: what the backward pass keeps of a layer: "none" keeps all, "full" recomputes it, "dots" keeps products, names
        joined by "+" keep these activations (models/sharding/remat.py).
      remat_of: the same for components that differ, as (path, what is kept); it holds for the components inside them too, and
        the longest path wins, as with a layout's rules.
      offload: what waits in the host's memory: "none", or names joined by "+" of activations, "layer_in" (each layer's input) and
        "optimizer" (its state). The backward pass fetches an activation that is named here instead of computing it again.
      unroll: layers that are compiled one after the other in each turn of a loop over layers: all of them run sooner on CPUs,
        which copy what a loop keeps for the backward pass, and take as much longer to compile. 0 is all.
      dispatch: of a mixture of experts: "sort" (gathers), "einsum" (GShard's algorithm), "all_to_all" (the exchange between
        devices written down) or "ragged" (grouped products, no buffers): equal value for value; models/parts/moe/dispatch.py
        has their costs.
      exchange_parts: parts of a device's experts to which a mixture's tokens travel one after the other, so that one part
        multiplies while the next one's tokens travel; fewer where it does not divide them.
      quantization: of products with the matrices of dense layers and experts inside a stack: "int8" computes them in 8 bits,
        forward and backward, with a scale for each row and column, "fp8" the same in floats of 8 bits
        (models/parts/eight_bits.py); chips gain where such products are faster. Weights, the optimizer, attention's own products,
        routers, embeddings, norms, convolutions, logits and heads stay as they are; so do experts under dispatch "ragged", and
        matrices that LoRA keeps frozen in a few bits.
      loss_chunks: parts of a row whose logits exist at the same time in a decoder's loss (models/gpt), each computed again in
        the backward pass: n parts need an n-th of the logits' memory.
    """

    dtype: Dtype = "float32"
    remat: str = "none"
    remat_of: tuple[tuple[str, str], ...] = ()
    offload: str = "none"
    unroll: int = 1
    dispatch: Dispatch = "sort"
    exchange_parts: int = 1
    quantization: Quantization = "none"
    loss_chunks: int = 1

    def __post_init__(self) -> None:
        check_literals(self)
        if self.unroll < 0:
            raise ValueError(f"unroll={self.unroll}: must be 1 or more, or 0 for all layers")
        check_least(self, 1, "exchange_parts", "loss_chunks")

    def check(self, components: Collection[str], activations: Collection[str]) -> None:
        """Raises UserError for an activation or a component that the model does not have."""
        policies = (self.remat, *(policy for _, policy in self.remat_of))
        for policy in policies:
            remat.check(policy, activations)
        remat.check_offload(self.offload, policies, activations)
        for path, _ in self.remat_of:
            if path not in components:
                raise UserError(f"remat_of: the model has no component {path!r}{nearest(path, components)}")

    def remat_at(self, path: str) -> str:
        """Returns what the backward pass keeps of the layers of a component."""
        within = [(len(name), kept) for name, kept in self.remat_of if f"{path}.".startswith(f"{name}.")]
        return max(within)[1] if within else self.remat

    @property
    def offloaded(self) -> tuple[str, ...]:
        """Returns the names of the activations that wait in the host's memory."""
        return tuple(name for name in remat.offloaded(self.offload) if name != remat.OPTIMIZER)

    @property
    def offloads_optimizer(self) -> bool:
        """Returns whether the optimizer's state waits in the host's memory."""
        return remat.OPTIMIZER in remat.offloaded(self.offload)
