"""MetNet-2 as a family: what the trainer, the planner and the commands need to know of it."""

from models.metnet2.layouts import LAYOUTS
from models.metnet2.model import MetNet2
from models.protocol import Family

FAMILY = Family(
    model=MetNet2, layouts=LAYOUTS, like=lambda c: "metnet2.quickstart", meaning=("dilations", "bin_width", "edges", "upsampling")
)
