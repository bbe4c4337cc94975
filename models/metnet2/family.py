"""MetNet-2 as a family: what the trainer, the planner and the commands need to know of it."""

from models.family import Family
from models.metnet2.layouts import LAYOUTS
from models.metnet2.model import MetNet2

FAMILY = Family(
    model=MetNet2,
    layouts=LAYOUTS,
    default_experiment=lambda c: "metnet2.quickstart",
    semantic_fields=("context.dilations", "bins.width", "bins.lower_edges", "detail.upsampling"),
)
