"""The layouts of T5 and Switch Transformer: `LAYOUTS` is what `--layout NAME` offers."""

from models.sharding import expert_layouts

LAYOUTS = expert_layouts.recipes(decoder=("decoder",))
