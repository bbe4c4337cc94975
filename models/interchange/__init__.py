"""Models of other libraries' files: what a family offers to be read from them and written to them. NumPy only, no JAX.

base.py has the contracts, rows.py the tables of a config.json's settings, tensors.py and layers.py those of tensors.
"""

from models.interchange.base import ArrayFiles, GgufFiles, Interchange
from models.interchange.tensors import Conversion, Entry, Index, InterchangeError, Part, Read, Shape

__all__ = ["ArrayFiles", "Conversion", "Entry", "GgufFiles", "Index", "Interchange", "InterchangeError", "Part", "Read", "Shape"]
