"""The linear classifier as a family."""

from models.family import Family
from tests.toy.linear.layouts import LAYOUTS
from tests.toy.linear.model import ToyLinear

FAMILY = Family(model=ToyLinear, layouts=LAYOUTS, default_experiment=lambda c: "toy.linear")
