"""A family of models and a kind of data that live in tests alone: convolutions on float grids.

They show that nothing outside their folders asks which family or kind there is. Importing this package registers them.
"""

from configs import registry
from data import kinds
from models import families

families.FAMILIES["toy_conv"] = "tests.toy.conv"
kinds.KINDS["toy_grids"] = "tests.toy.grids"
registry.MODULES["toy"] = "tests.toy.experiments"
