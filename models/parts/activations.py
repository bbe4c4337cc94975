"""The activations of a Transformer's layers, by the names that they are marked with. Plain data, no JAX.

B rows, L positions, S keys, N heads, D size of a head, M model, H hidden; G groups, E experts, C slots.
"""

import dataclasses

from models.sharding.remat import CARRY, Activation, Axes

RESIDUAL: Axes = ("batch", "res_length", "act_embed")  # [B, L, M]
HEADS: Axes = ("batch", "length", "act_heads", None)  # [B, L, N, D]
SHARED_HEADS: Axes = ("batch", "length", "act_kv_heads", None)
HIDDEN: Axes = ("batch", "length", "act_mlp")  # [B, L, H]
IN_EXPERTS: Axes = ("act_expert", "expert_group", None, "act_expert_mlp")  # [E, G, C, H]

# Without recomputation the copies of what a scan hands on are also what two norms return.
DENSE = {
    CARRY: Activation(what="what passes from layer to layer", axes=(RESIDUAL,), copies=3),
    "attention_in": Activation(what="queries, keys and values", axes=(HEADS, SHARED_HEADS), product=True),
    "scores": Activation(
        what="attention's logits", axes=(("batch", "act_heads", "length", "keys"),), copies=1.5, working=2.5, quadratic=True
    ),
    "context": Activation(what="values mixed by attention, per head", axes=(HEADS,)),
    "attention_out": Activation(
        what="what attention adds to the residual stream", axes=(RESIDUAL,), product=True, summed="act_heads"
    ),
    # Twice: before its activation function and after.
    "up": Activation(what="the product with wi, before the activation", axes=(HIDDEN,), product=True, copies=2, working=4),
    "gate": Activation(
        what="the gate's product in a gated feed-forward network, before its activation", axes=(HIDDEN,), product=True
    ),
    "ffn_out": Activation(
        what="what the feed-forward network adds to the residual stream", axes=(RESIDUAL,), product=True, summed="act_mlp"
    ),
}
WITH_EXPERTS = DENSE | {
    "gate": dataclasses.replace(DENSE["gate"], axes=(HIDDEN, IN_EXPERTS)),
    "up": dataclasses.replace(DENSE["up"], axes=(HIDDEN, IN_EXPERTS)),
    "dispatched": Activation(
        what="tokens as experts receive them, and their gates",
        axes=(("act_expert", "expert_group", None, "act_embed"), ("act_expert", "expert_group", None)),
        exchanged=True,
    ),
    "returned": Activation(
        what="what experts made of them, back where the tokens are; no gradient needs it",
        axes=((None, "group", None, "act_embed"),),
        summed="act_expert_mlp",
        exchanged=True,
        copies=0.0,
    ),
    "mixture_out": Activation(
        what="what a mixture adds to the residual stream, which layers after it in its unit are computed from again",
        axes=(RESIDUAL,),
        copies=0.0,
    ),
}

# The policies that a search of plans tries (trainers/pods/layout_candidates.py), what keeps little first.
POLICIES = (
    "full",
    "attention_in+attention_out",
    "attention_in+context+attention_out",
    "attention_out+gate",
    "attention_in+attention_out+gate",
    "attention_in+context+attention_out+up",
    "attention_in+context+attention_out+gate+up",
    "dots",
    "none",
)
POLICIES_WITH_EXPERTS = (*POLICIES[:-2], "dispatched", "attention_in+attention_out+dispatched", *POLICIES[-2:])
