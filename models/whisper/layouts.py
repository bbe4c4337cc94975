"""The layouts of Whisper: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the model."""

from models.sharding import expert_layouts
from models.sharding.layout import rules
from models.sharding.layouts import Recipe, table

_TIME = rules(length="model", res_length="model")
time = Recipe("time", rules(batch="data"), components=(("encoder", _TIME), ("front", _TIME)))
"""Cuts each sound's time over y, from its frames to the encoder's last layer: convolutions exchange a frame with their
neighbours, attention gathers keys and values. The decoder, whose texts are short, has all of its row."""

# No layer is a mixture of experts.
_DENSE = {name: recipe for name, recipe in expert_layouts.recipes(decoder=("decoder",)).items() if not name.startswith("expert_")}
LAYOUTS = _DENSE | table(time)
