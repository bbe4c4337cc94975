"""DLRM as a family: what the trainer, the planner and the commands need to know of it."""

from models.dlrm.layouts import LAYOUTS
from models.dlrm.model import Dlrm
from models.family import Family

FAMILY = Family(model=Dlrm, layouts=LAYOUTS, default_experiment=lambda c: "dlrm.quickstart", semantic_fields=("interaction",))
