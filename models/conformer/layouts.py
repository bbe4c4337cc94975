"""The layouts of the Conformer: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the model.

`two_d` is GSPMD's for Conformers, as Lingvo annotates them (core/conformer_layer.py, SetCanonicalShardingParams): weights of
feed-forward and convolution layers [0, 1] and [1, 0], attention's by heads, hidden activations [0, -, 1], positions' [0, -, 1]
between layers, the depthwise filter by channels, so that nothing of time is exchanged.
"""

from models.sharding.layouts import CONTEXT, Recipe, pipelines, table
from models.sharding.layouts import LAYOUTS as DENSE

time = Recipe("time", CONTEXT)
"""Cuts each row's time over y, from its frames on: convolutions exchange the frames that they reach with their neighbours, and
attention gathers keys and values."""

# Keys that go round in a ring, and rows in zigzag order, are for models that read text; "time" is what cuts a sound.
_WHOLE = {name: recipe for name, recipe in DENSE.items() if not name.startswith("context_")}
LAYOUTS = _WHOLE | pipelines("encoder") | table(time)
