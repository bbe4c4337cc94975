"""GShard M4 as a family: what the trainer, the planner and the commands need to know of it."""

from models.gshard_m4.layouts import LAYOUTS
from models.gshard_m4.model import GShardM4
from models.parts.encoder_decoder import family

FAMILY = family(GShardM4, LAYOUTS, like=lambda c: "gshard_m4.quickstart")
