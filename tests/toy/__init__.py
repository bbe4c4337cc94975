"""Families of models and kinds of data that live in tests alone: convolutions on float grids, and a linear classifier of
pictures or of colours, the kind that scripts.new copies, which the ordinary commands prepare from a file.

They show that nothing outside their folders asks which family or kind there is.
"""

from configs import registry
from data import kinds
from models import families

_PLACES = (
    (families.FAMILIES, "toy_conv", "tests.toy.conv"),
    (families.FAMILIES, "toy_linear", "tests.toy.linear"),
    (kinds.KINDS, "toy_grids", "tests.toy.grids"),
    (kinds.KINDS, "skeleton", "scripts.skeletons.kind"),
    (registry.MODULES, "skeleton", "scripts.skeletons.kind.experiments"),
    (registry.MODULES, "toy", "tests.toy.experiments"),
)


def register() -> None:
    """Registers the families, the kinds of data and the experiments, a line each."""
    for table, name, package in _PLACES:
        table[name] = package


def unregister() -> None:
    """Undoes `register`."""
    for table, name, _ in _PLACES:
        del table[name]
