"""The linear classifier as a family."""

from models.protocol import Family
from tests.toy.linear.layouts import LAYOUTS
from tests.toy.linear.model import ToyLinear

FAMILY = Family(model=ToyLinear, layouts=LAYOUTS, like=lambda c: "toy.linear")
