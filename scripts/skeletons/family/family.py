"""The family as the other folders know it; docs/ADD_A_MODEL.md lists the further fields."""

from models.family import Family
from models.sharding.layouts import LAYOUTS

from .model import Skeleton

FAMILY = Family(
    model=Skeleton,
    layouts=LAYOUTS,  # those of every dense model
    default_experiment=lambda c: "skeleton.small",
)
