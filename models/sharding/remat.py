"""What the backward pass keeps of a layer, and what it computes a second time. Plain data, no JAX.

"none" keeps all, "full" recomputes the layer from its input, "dots" keeps the products of its weights; names joined by "+", as
"attention_in+context+gate", keep these activations and recompute the rest.
"""

from models.errors import nearest

WHOLE = ("none", "full", "dots")
ACTIVATIONS = {
    "attention_in": "queries, keys and values",
    "context": "values mixed by attention, per head",
    "attention_out": "what attention adds to the residual stream",
    "gate": "the gate's product in a gated feed-forward network, before its activation",
    "up": "the product with wi, before the activation",
    "ffn_out": "what the feed-forward network adds to the residual stream",
    "dispatched": "tokens as experts receive them",
    "returned": "what experts made of them, back where the tokens are",
}


def names(remat: str) -> tuple[str, ...]:
    """The activations that are kept by name; raises ValueError for an unknown one."""
    if remat in WHOLE:
        return ()
    for name in (found := tuple(remat.split("+"))):
        if name not in ACTIVATIONS:
            raise ValueError(f"remat={remat!r}: no activation {name!r}{nearest(name, (*WHOLE, *ACTIVATIONS))}")
    return found
