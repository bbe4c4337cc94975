"""Arrays by name without Hugging Face's configuration, as weights to start from: a family knows its own by names and shapes.

Files: .npz (AugReg's ViT), safetensors under the names of the original code (Whisper's), and CTranslate2's model.bin. Folders:
T5X's and MaxText's checkpoints.
"""

import dataclasses
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data import untrusted
from data.vocabularies import files
from models.errors import shortened
from models.families import FAMILIES, array_files_of
from models.interchange import Index, InterchangeError, Shape, tensors
from trainers.weights import tensorstores
from trainers.weights.ctranslate2 import CTranslate2File
from trainers.weights.source import most_stored
from trainers.weights.tensor_files import TensorFile

_MOST_DEFLATED = 1100  # bytes that a byte of a zip file can become: deflate's most is 1,032


class ArrayFile(Protocol):
    """An open file or folder: `file(name)` is an array."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of its model, where its form has some."""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each array, by name."""
        ...

    @property
    def dtypes(self) -> Mapping[str, np.dtype]:
        """The dtype of each array, by name."""
        ...

    def __call__(self, name: str) -> np.ndarray: ...


class NpzFile:
    """The arrays of an .npz file, read when they are asked for.

    Raises:
      InterchangeError: the file is damaged, or has pickled objects.
    """

    settings: Mapping[str, Any] = {}

    def __init__(self, path: Path):
        self.path, self.shapes, self.dtypes = path, dict[str, Shape](), dict[str, np.dtype]()
        formats = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        with untrusted.damage(path, InterchangeError), zipfile.ZipFile(untrusted.zipped(path, InterchangeError)) as archive:
            for info in archive.infolist():
                name = shortened(info.filename)
                with archive.open(info) as file:
                    shape, _, dtype = formats[np.lib.format.read_magic(file)](file)
                    size = info.file_size - file.tell()
                if dtype.kind != "f":
                    raise InterchangeError(f"{path}: {name} holds {dtype}, weights are floats")
                if math.prod(shape) * dtype.itemsize != size or info.file_size > _MOST_DEFLATED * info.compress_size:
                    raise InterchangeError(f"{path} is damaged: {name} has not the bytes of {dtype} {list(shape)}")
                at = info.filename.removesuffix(".npy")
                self.shapes[at], self.dtypes[at] = shape, dtype

    def __call__(self, name: str) -> np.ndarray:
        with untrusted.damage(self.path, InterchangeError), np.load(self.path, allow_pickle=False) as arrays:
            return arrays[name]


class FloatTensors(TensorFile):
    """The tensors of a safetensors file, all of them floats."""

    settings: Mapping[str, Any] = {}

    def __init__(self, path: Path):
        super().__init__(path)
        self.require_floats(self.shapes)


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of arrays by name.

    Attributes:
      key: the form by which a family knows its arrays (models.families.array_files_of).
      title: its name for people.
      opener: opens a file or folder.
    """

    key: str
    title: str
    opener: Callable[[Path], ArrayFile]


# By a file's ending; by a file that a folder of this form has.
FILES = {
    ".npz": Form("npz", "an .npz file", NpzFile),
    ".safetensors": Form("openai", "a safetensors file under the names of the original code", FloatTensors),
    ".bin": Form("ctranslate2", "a CTranslate2 file", CTranslate2File),
}
FOLDERS = {
    tensorstores.T5X: Form("t5x", "a T5X checkpoint", tensorstores.T5xCheckpoint),
    tensorstores.METADATA: Form("maxtext", "a MaxText checkpoint", tensorstores.MaxTextCheckpoint),
    f"{tensorstores.ITEMS}/{tensorstores.METADATA}": Form("maxtext", "a MaxText checkpoint", tensorstores.MaxTextCheckpoint),
}


def form_of(path: Path) -> Form | None:
    """Returns the form of a file or folder, of which no more than names is looked at; None for none of these."""
    if path.is_dir():
        return next((form for name, form in FOLDERS.items() if (path / name).is_file()), None)
    return FILES.get(path.suffix)


class Bare:
    """A file or folder of arrays as weights (see trainers.weights.source).

    Attributes:
      form: which of `FILES` and `FOLDERS` it is.

    Raises:
      InterchangeError: the file is damaged, or is of no model that a family knows.
    """

    def __init__(self, path: Path, form: Form):
        self.form = form
        beside = path if path.is_dir() else path.parent
        self.vocabulary = beside if files.readable(beside) else None
        file = form.opener(path)
        self._file = file
        known = {name: family for name in FAMILIES if (family := array_files_of(name, form.key))}
        problems = {}
        for name, family in known.items():
            try:
                self.config = family.read_config(file.shapes, file.settings)
            except (InterchangeError, ValueError) as error:
                problems[name] = str(error)
                continue
            entries = family.entries(self.config)
            break
        else:
            raise InterchangeError(f"{path}: {'; '.join(problems.values())}")
        want = tensors.their_shapes(entries)
        if wrong := tensors.problems(want, _divided(self._file.shapes, want)):
            raise InterchangeError(f"{path}: not the arrays of the model that it looks like: {wrong}")
        self.shapes = tensors.shapes(entries)
        self.stored = most_stored((file.dtypes[name].name, file.shapes[name]) for name in file.shapes)
        self._read = tensors.reader(entries, self._fetch, path)

    def _fetch(self, name: str) -> np.ndarray:
        whole, rows = _rows(name)
        return self._file(whole)[rows]

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name."""
        return self._read(name, index)


def _divided(stored: Mapping[str, Shape], names: Iterable[str]) -> dict[str, Shape]:
    """Returns the shapes of a file's arrays; those of which names ask for rows, as "NAME[a:b]", as these rows."""
    shapes = dict(stored)
    for name in names:
        whole, rows = _rows(name)
        if name != whole and whole in stored:
            shapes.pop(whole, None)
            first, *inner = stored[whole]
            shapes[name] = (len(range(*rows.indices(first))), *inner)
    return shapes


def _rows(name: str) -> tuple[str, slice]:
    """Returns the name of an array, and which of its rows are asked for."""
    whole, _, rows = name.partition("[")
    return whole, slice(*map(int, rows[:-1].split(":"))) if rows else slice(None)
