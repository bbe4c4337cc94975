"""M2M-100 as a family: what the trainer, the planner and the commands need to know of it."""

from models.m2m100.layouts import LAYOUTS
from models.m2m100.model import M2M100
from models.parts.encoder_decoder import family

FAMILY = family(M2M100, LAYOUTS, like=lambda c: "nllb.moe_54b" if c.moe else "m2m100.m418")
