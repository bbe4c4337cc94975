"""Ways to cut GShard M4 over a mesh of x by y devices. Each is a Layout; none touches the model.

`LAYOUTS` is what `--layout NAME` offers; every function takes the sizes of the two mesh axes.
"""

from models.common.layout import Layout, rules
from models.common.layouts import BOTH, TENSOR, data_parallel, fully_sharded, sequence_parallel, tensor_parallel, zero1


def expert_parallel(x: int, y: int) -> Layout:
    """GShard's own: batch over all devices, experts over y, dense weights everywhere; tokens travel by all-to-all."""
    both = ("data", "expert")
    return Layout(
        name="expert_parallel",
        mesh=(("data", x), ("expert", y)),
        rules=rules(batch=both, group=both, expert="expert", act_expert="expert", expert_group="data"),
    )


def expert_fully_sharded(x: int, y: int) -> Layout:
    """Expert parallel, with the dense weights cut over all devices as well (dense and embedding weights as in FSDP)."""
    base = expert_parallel(x, y)
    both = ("data", "expert")
    whole = rules(embed=None)
    return Layout(
        name="expert_fully_sharded",
        mesh=base.mesh,
        rules=tuple(sorted((dict(base.rules) | {"embed": both}).items())),
        components=(("decoder.moe", whole), ("encoder.moe", whole)),
    )


def mixed(x: int, y: int) -> Layout:
    """Encoder and decoder in different modes of one mesh: a tensor-parallel encoder, an expert-parallel decoder."""
    decoder = rules(
        batch=BOTH, group=BOTH, expert="model", act_expert="model", expert_group="data",
        heads=None, mlp=None, vocab=None, act_heads=None, act_mlp=None, act_vocab=None, act_expert_mlp=None,
    )  # fmt: skip
    return Layout(
        name="mixed",
        mesh=(("data", x), ("model", y)),
        rules=TENSOR,
        components=(("decoder", decoder), ("softmax", decoder), ("target_embedding", decoder)),
    )


LAYOUTS = {
    layout.__name__: layout
    for layout in (
        data_parallel, zero1, fully_sharded, tensor_parallel, sequence_parallel, expert_parallel, expert_fully_sharded,
        mixed,
    )
}  # fmt: skip
