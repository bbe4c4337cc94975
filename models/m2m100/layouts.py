"""The layouts of M2M-100 and NLLB: `LAYOUTS` is what `--layout NAME` offers."""

from models.sharding import expert_layouts

LAYOUTS = expert_layouts.recipes(decoder=("decoder",))
