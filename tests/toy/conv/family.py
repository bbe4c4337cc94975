"""The toy model as a family."""

from models.protocol import Family
from tests.toy.conv.layouts import LAYOUTS
from tests.toy.conv.model import ToyConv

FAMILY = Family(model=ToyConv, layouts=LAYOUTS, like=lambda c: "toy.conv")
