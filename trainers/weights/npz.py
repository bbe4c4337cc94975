"""NumPy's .npz files as weights to start from: arrays by name, in which a family knows its own."""

import zipfile
from pathlib import Path

import numpy as np

from models import interchange
from models.errors import shortened
from models.families import FAMILIES, interchange_of
from models.interchange import Index, InterchangeError, Shape


class Npz:
    """An .npz file as weights (see trainers.weights.source). Arrays are read when they are asked for.

    Raises:
      InterchangeError: the file is damaged, has pickled objects, or is of no model that a family knows.
    """

    def __init__(self, path: Path):
        self.path, self.vocabulary = path, None
        self._stored = self._shapes()
        known = {name: module for name in FAMILIES if (module := interchange_of(name, "npz"))}
        problems = {}
        for name, module in known.items():
            try:
                self.config = module.read_config(self._stored)
            except (InterchangeError, ValueError) as error:
                problems[name] = str(error)
                continue
            entries = module.entries(self.config)
            break
        else:
            raise InterchangeError(f"{path}: {'; '.join(problems.values())}")
        if wrong := interchange.problems(interchange.their_shapes(entries), self._stored):
            raise InterchangeError(f"{path}: not the arrays of the model that it looks like: {wrong}")
        self.shapes = interchange.shapes(entries)
        self._read = interchange.reader(entries, self._fetch, path)

    def _shapes(self) -> dict[str, Shape]:
        """Returns the shapes of all arrays from their headers."""
        shapes = {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                for member in archive.namelist():
                    with archive.open(member) as file:
                        version = np.lib.format.read_magic(file)
                        read = {
                            (1, 0): np.lib.format.read_array_header_1_0,
                            (2, 0): np.lib.format.read_array_header_2_0,
                        }
                        shape, _, dtype = read[version](file)
                    if dtype.kind != "f":
                        raise InterchangeError(f"{self.path}: {shortened(member)} holds {dtype}, weights are floats")
                    shapes[member.removesuffix(".npy")] = shape
        except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError) as error:
            raise InterchangeError(f"{self.path}: damaged or no .npz file: {shortened(str(error), 200)}") from None
        return shapes

    def _fetch(self, name: str) -> np.ndarray:
        with np.load(self.path, allow_pickle=False) as arrays:
            return arrays[name]

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name."""
        return self._read(name, index)
