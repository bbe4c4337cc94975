"""Ways to cut MetNet-2 over a mesh: in space, in channels, by examples."""

from models.sharding.layout import rules
from models.sharding.layouts import BOTH, Recipe, also, data_parallel, table
from models.sharding.layouts import fully_sharded as dense_fully_sharded

spatial = Recipe("spatial", rules(batch="data", height="rows", width="columns"), ("data", "rows", "columns"), 16)
"""Cuts examples over x, and each image's rows over y and columns over z: convolutions exchange what lies at the edges."""

spatial_1d = Recipe("spatial_1d", rules(batch="data", height="rows"), ("data", "rows"), 16)
"""Cuts examples over x and each image's rows over y."""

_CHANNELS = dict.fromkeys(("channels", "act_channels", "mlp", "act_mlp"), "model")
channel_parallel = Recipe("channel_parallel", rules(batch="data", **_CHANNELS), BOTH, 16)
"""Cuts examples over x and the channels inside each block over y: a block's result is all-reduced, as Megatron's is."""

fully_sharded = Recipe(
    "fully_sharded", also(dense_fully_sharded.rules, in_channels="data", channels="model", embed=None), BOTH, 16
)
"""Cuts examples over all devices, and every filter in both its channels, to be gathered where it is used (FSDP). What makes
scales and biases of a lead time is cut in its channels alone."""

LAYOUTS = table(data_parallel, fully_sharded, spatial, spatial_1d, channel_parallel)
