"""The layouts of Whisper: `LAYOUTS` is what `--layout NAME` offers."""

from models.sharding import expert_layouts

LAYOUTS = expert_layouts.recipes(decoder=("decoder",))
