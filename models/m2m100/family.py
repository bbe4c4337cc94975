"""M2M-100 as a family: what the trainer, the planner and the commands need to know of it."""

from models.family import encoder_decoder
from models.m2m100.layouts import LAYOUTS
from models.m2m100.model import M2M100

FAMILY = encoder_decoder(M2M100, LAYOUTS, default_experiment=lambda c: "nllb.moe_54b" if c.moe else "m2m100.m418")
