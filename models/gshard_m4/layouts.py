"""Ways to cut GShard M4 over a mesh of x by y devices. Each is a Layout; none touches the model.

`LAYOUTS` is what `--layout NAME` offers.
"""

import dataclasses

from models.gshard_m4.config import GShardM4Config
from models.sharding.layout import Layout, Pipeline, rules
from models.sharding.layouts import ANY, BOTH, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE


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
    whole = rules(embed=None)
    return Layout(
        name="expert_fully_sharded",
        mesh=base.mesh,
        rules=also(base.rules, embed=("data", "expert")),
        components=(("decoder.moe", whole), ("encoder.moe", whole)),
    )


def expert_parallel_2d(x: int, y: int) -> Layout:
    """Expert parallel over both axes of the mesh, as many experts as devices or a multiple: tokens travel to all of them."""
    base = expert_parallel(x, y)
    both = ("data", "expert")
    return Layout(
        name="expert_parallel_2d",
        mesh=base.mesh,
        rules=also(base.rules, expert=both, act_expert=both, expert_group=None),
    )


def expert_zero1(x: int, y: int) -> Layout:
    """Expert parallel, with the optimizer state cut over all devices: that of experts over the replicas of each (ZeRO-1)."""
    base = expert_parallel(x, y)
    return Layout(name="expert_zero1", mesh=base.mesh, rules=base.rules, optimizer=rules(embed=("data", "expert")))


def expert_tensor_parallel(x: int, y: int) -> Layout:
    """Sparse and dense layers cut together (GSPMD, arXiv 2105.04663): batch and experts over x, heads and hidden dimensions,
    inside experts too, over y; a device has 1/(xy) of the experts and 1/y of the dense weights."""
    return Layout(
        name="expert_tensor_parallel",
        mesh=(("data", x), ("model", y)),
        rules=also(TENSOR, expert="data", act_expert="data", expert_group=None),
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


def encoder_pipelined(p: int, x: int, y: int) -> Layout:
    """The encoder in p pipeline stages under a decoder that is not: GPipe below, whose stages the decoder uses for its batch."""
    both, everywhere = ("data", "expert"), ("stage", "data", "expert")
    experts = rules(batch=both, group=both, expert="expert", act_expert="expert", expert_group="data", layers="stage")
    decoder = rules(batch=everywhere, group=everywhere, expert_group=("stage", "data"))
    return Layout(
        name="encoder_pipelined",
        mesh=(("stage", p), ("data", x), ("expert", y)),
        rules=expert_parallel(x, y).rules,
        components=(("encoder", experts), ("decoder", decoder), ("softmax", decoder), ("target_embedding", decoder)),
        pipelines=(("encoder", Pipeline(microbatches=2 * p, schedule="gpipe")),),
    )


def pipelines_with_experts(p: int, x: int, y: int) -> Layout:
    """Both towers in p pipeline stages, the decoder as 1F1B, with experts over y inside every stage."""
    base = expert_parallel(x, y)
    stages = rules(layers="stage")
    return Layout(
        name="pipelines_with_experts",
        mesh=(("stage", p), *base.mesh),
        rules=also(base.rules, vocab="stage", act_vocab="stage"),
        components=(("encoder", stages), ("decoder", stages)),
        pipelines=(
            ("encoder", Pipeline(microbatches=p, schedule="gpipe")),
            ("decoder", Pipeline(microbatches=p, schedule="1f1b")),
        ),
    )


EXPERT_AXES = ("data", "expert")

SHARED = {
    name: DENSE[name] for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel", "sequence_parallel")
}
EXPERTS = table(
    Recipe(expert_parallel, EXPERT_AXES, ANY),
    Recipe(expert_parallel_2d, EXPERT_AXES),
    Recipe(expert_zero1, EXPERT_AXES, ANY),
    Recipe(expert_fully_sharded, EXPERT_AXES, ANY),
    Recipe(expert_tensor_parallel, BOTH, 16),
    Recipe(mixed, BOTH),
    Recipe(encoder_pipelined, ("stage", *EXPERT_AXES)),
    Recipe(pipelines_with_experts, ("stage", *EXPERT_AXES), ANY, (1, 2)),
)
LAYOUTS = SHARED | EXPERTS


def searched(c: GShardM4Config) -> dict[str, Recipe]:
    """Returns the layouts that a search of plans tries: those of experts, or where there are none the dense ones."""
    if c.moe:
        return EXPERTS
    return SHARED | table(dataclasses.replace(EXPERTS["pipelines_with_experts"], largest=1))
