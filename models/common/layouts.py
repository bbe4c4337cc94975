"""Ways to cut any dense model over a mesh of x by y devices. Each is a Layout; none touches a model.

A family's LAYOUTS are what `--layout NAME` offers; every function takes the sizes of the two mesh axes.
"""

from models.common.layout import Layout, rules

BOTH = ("data", "model")

# Tokens stay where the batch is cut, in every mode without expert parallelism.
TENSOR = rules(
    batch="data", group="data", expert_group="data",
    heads="model", mlp="model", vocab="model",
    act_heads="model", act_mlp="model", act_vocab="model", act_expert_mlp="model",
)  # fmt: skip


def data_parallel(x: int, y: int) -> Layout:
    """Every device holds the whole model and its share of the batch; gradients are all-reduced."""
    return Layout(
        name="data_parallel",
        mesh=(("data", x), ("model", y)),
        rules=rules(batch=BOTH, group=BOTH, expert_group=BOTH),
    )


def zero1(x: int, y: int) -> Layout:
    """Data parallel, with the optimizer state cut over all devices (ZeRO stage 1)."""
    base = data_parallel(x, y)
    return Layout(name="zero1", mesh=base.mesh, rules=base.rules, optimizer=rules(embed=BOTH))


def fully_sharded(x: int, y: int) -> Layout:
    """Data parallel over all devices, with every weight cut in both its dimensions and gathered where it is used (FSDP)."""
    return Layout(
        name="fully_sharded",
        mesh=(("data", x), ("model", y)),
        rules=rules(batch=BOTH, group=BOTH, expert_group=BOTH, embed="data", mlp="model", heads="model", vocab="model"),
    )


def tensor_parallel(x: int, y: int) -> Layout:
    """Batch over x; heads, hidden and vocabulary dimensions over y (Megatron's cut, GSPMD's 1D)."""
    return Layout(name="tensor_parallel", mesh=(("data", x), ("model", y)), rules=TENSOR)


def two_d(x: int, y: int) -> Layout:
    """GSPMD's finalised 2D (arXiv 2105.04663, Table 1): weights on x and y, the residual stream cut by batch on x and by its
    model dimension on y, so that a device holds 1/(xy) of everything."""
    return Layout(
        name="two_d",
        mesh=(("data", x), ("model", y)),
        rules=tuple(sorted((dict(TENSOR) | dict(rules(embed="data", act_embed="model"))).items())),
    )


LAYOUTS = {layout.__name__: layout for layout in (data_parallel, zero1, fully_sharded, tensor_parallel, two_d)}
