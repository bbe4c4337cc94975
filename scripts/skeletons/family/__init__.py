"""The family `skeleton`: importing this package registers it."""

from configs import registry
from models.families import FAMILIES

FAMILIES["skeleton"] = __name__
registry.MODULES["skeleton"] = f"{__name__}.experiments"
