"""HSTU as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses

from models.family import Family
from models.hstu.layouts import LAYOUTS
from models.hstu.model import Hstu

FAMILY = Family(
    model=Hstu,
    layouts=LAYOUTS,
    default_experiment=lambda c: "hstu.quickstart" if c.objective.target == "item" else "hstu.clicks",
    deterministic=lambda c, lengths: dataclasses.replace(c, dropout=0.0),
    semantic_fields=("form",),
)
