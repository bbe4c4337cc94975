"""The layouts of ViT and V-MoE: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the model.

All dense models' and those with experts, which cut a picture after it has become positions; and those that cut it in space.
"""

from models.sharding import expert_layouts
from models.sharding.layouts import CONTEXT, Recipe, also, pipelines, table
from models.sharding.layouts import LAYOUTS as DENSE

spatial = Recipe("spatial", also(CONTEXT, height="model"))
"""Cuts rows of pixels, then of patches, and then positions over y: a device has a part of each picture from its pixels on, and
gathers all keys and values. A class token, which is in no part, is refused."""

spatial_ring = Recipe("spatial_ring", also(CONTEXT, height="model", keys="model"))
"""Cuts as `spatial`; keys and values go round, and no device has all of a picture's."""

WITH_EXPERTS = expert_layouts.of_stack("encoder")
# Rows of pictures are their own order of positions, and nothing is causal: zigzag order balances nothing.
_WHOLE = {name: recipe for name, recipe in DENSE.items() if name != "context_ring_balanced"}
LAYOUTS = _WHOLE | pipelines("encoder") | table(spatial, spatial_ring) | WITH_EXPERTS
