"""The toy model as a family."""

from models.family import Family
from tests.toy.conv.layouts import LAYOUTS
from tests.toy.conv.model import ToyConv

FAMILY = Family(model=ToyConv, layouts=LAYOUTS, default_experiment=lambda c: "toy.conv")
