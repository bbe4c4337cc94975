"""The kind of data `skeleton`: importing this package registers it."""

from configs import registry
from data.kinds import KINDS

KINDS["skeleton"] = __name__
registry.MODULES["skeleton"] = f"{__name__}.experiments"
