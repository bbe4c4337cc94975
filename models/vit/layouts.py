"""The layouts of ViT and V-MoE: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the model.

All dense models' and those with experts, which cut a picture after it has become positions; and those that cut it in space.
"""

from models.sharding import expert_layouts
from models.sharding.layout import Layout
from models.sharding.layouts import CONTEXT, Recipe, also, pipelines, table
from models.sharding.layouts import LAYOUTS as DENSE


def spatial(x: int, y: int) -> Layout:
    """Cuts rows of pixels, then of patches, and then positions over y: a device has a part of each picture from its pixels on,
    and gathers all keys and values. A class token, which is in no part, is refused."""
    return Layout(name="spatial", mesh=(("data", x), ("model", y)), rules=also(CONTEXT, height="model"))


def spatial_ring(x: int, y: int) -> Layout:
    """Cuts as `spatial`; keys and values go round, and no device has all of a picture's."""
    return Layout(name="spatial_ring", mesh=(("data", x), ("model", y)), rules=also(CONTEXT, height="model", keys="model"))


WITH_EXPERTS = expert_layouts.of_stack("encoder")
# Rows of pictures are their own order of positions, and nothing is causal: zigzag order balances nothing.
_WHOLE = {name: recipe for name, recipe in DENSE.items() if name != "context_ring_balanced"}
LAYOUTS = _WHOLE | pipelines("encoder") | table(Recipe(spatial), Recipe(spatial_ring)) | WITH_EXPERTS
