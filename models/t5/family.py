"""T5 as a family: what the trainer, the planner and the commands need to know of it."""

from models.parts.encoder_decoder import family
from models.t5.layouts import LAYOUTS
from models.t5.model import T5

FAMILY = family(T5, LAYOUTS, like=lambda c: "switch.quickstart" if c.moe else "t5.quickstart", meaning=("scale_logits",))
