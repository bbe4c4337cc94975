"""Ways to cut MetNet-2 over a mesh: in space, in channels, by examples."""

from models.sharding.layout import Layout, rules
from models.sharding.layouts import Recipe, also, data_parallel, table
from models.sharding.layouts import fully_sharded as dense_fully_sharded

SPACE = ("data", "rows", "columns")


def spatial(x: int, y: int, z: int) -> Layout:
    """Cuts examples over x, and each image's rows over y and columns over z: convolutions exchange what lies at the edges."""
    return Layout(
        name="spatial", mesh=(("data", x), ("rows", y), ("columns", z)), rules=rules(batch="data", height="rows", width="columns")
    )


def spatial_1d(x: int, y: int) -> Layout:
    """Cuts examples over x and each image's rows over y."""
    return Layout(name="spatial_1d", mesh=(("data", x), ("rows", y)), rules=rules(batch="data", height="rows"))


def channel_parallel(x: int, y: int) -> Layout:
    """Cuts examples over x and the channels inside each block over y: a block's result is all-reduced, as Megatron's is."""
    return Layout(
        name="channel_parallel",
        mesh=(("data", x), ("model", y)),
        rules=rules(batch="data", channels="model", act_channels="model", mlp="model", act_mlp="model"),
    )


def fully_sharded(x: int, y: int) -> Layout:
    """Cuts examples over all devices, and every filter in both its channels, to be gathered where it is used (FSDP).

    What makes scales and biases of a lead time is cut in its channels alone.
    """
    base = dense_fully_sharded(x, y)
    return Layout(name="fully_sharded", mesh=base.mesh, rules=also(base.rules, in_channels="data", channels="model", embed=None))


LAYOUTS = table(
    Recipe(data_parallel, largest=1),
    Recipe(fully_sharded, largest=16),
    Recipe(spatial, SPACE, largest=16),
    Recipe(spatial_1d, ("data", "rows"), largest=16),
    Recipe(channel_parallel, largest=16),
)
