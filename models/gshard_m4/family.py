"""GShard M4 as a family: what the trainer, the planner and the commands need to know of it."""

from models.family import encoder_decoder
from models.gshard_m4.layouts import LAYOUTS
from models.gshard_m4.model import GShardM4

FAMILY = encoder_decoder(GShardM4, LAYOUTS, default_experiment=lambda c: "gshard_m4.quickstart")
