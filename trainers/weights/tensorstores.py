"""Arrays that TensorStore keeps in folders: T5X's checkpoints and Orbax's, as MaxText writes them, read a chunk at a time.

T5X: a msgpack file `checkpoint` with a tree of small arrays and of names of others, each a folder in zarr's form. Orbax:
`_METADATA`, a JSON object that names the arrays, all of them in one database (OCDBT), or each a folder.
"""

import ast
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data import untrusted
from models.errors import shortened
from models.interchange import Index, InterchangeError, Shape
from trainers.weights.flax_files import Stored, mapped, structure
from trainers.weights.tensor_files import DTYPES, NamedArrays

T5X, METADATA, ITEMS, SETTINGS = "checkpoint", "_METADATA", "items", "config.yml"
_VERSION = 3  # of T5X's form, since June 2021: older ones have bfloat16 as integers
_MOST_DEFLATED = 1100  # bytes that a byte of a folder may become, all arrays together
_SETTINGS = 1 << 18  # bytes of MaxText's settings, of which it has some 40,000
_CACHE = 1 << 30  # bytes of decoded chunks that are kept, for the next layer of a stack
_SCANNED, _LAYER = "decoder.layers.", "decoder.layers_{}."


@functools.cache
def context() -> Any:
    """Returns TensorStore's settings, among them its cache."""
    import tensorstore as ts  # takes a tenth of a second, which other forms need not wait for

    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE}})


def opened(driver: str, kvstore: Mapping[str, Any], name: object) -> Any:
    """Returns an open array.

    Raises:
      InterchangeError: it is missing or damaged, or a chunk is larger than it.
    """
    import tensorstore as ts

    with untrusted.damage(name, InterchangeError):
        array = ts.open({"driver": driver, "kvstore": dict(kvstore)}, open=True, read=True, context=context()).result()
        for layout in (array.chunk_layout.read_chunk, array.chunk_layout.write_chunk):
            chunk = [size or 0 for size in layout.shape or ()]
            if any(size > max(whole, 1) for size, whole in zip(chunk, array.shape, strict=False)):
                raise InterchangeError(f"{name} is damaged: a chunk of {chunk} in an array of {list(array.shape)}")
    if array.dtype.numpy_dtype not in DTYPES.values():
        raise InterchangeError(f"{name} holds {array.dtype.name}; known are {', '.join(map(str, DTYPES.values()))}")
    return array


def check_size(folder: Path, arrays: Mapping[str, Any]) -> None:
    """Raises InterchangeError for arrays that are larger than the files of a folder can hold: what no file has reads as zeros."""
    untrusted.bounded(len(arrays), untrusted.FIELDS, "arrays", InterchangeError, folder)
    stored = sum(os.path.getsize(Path(at, name)) for at, _, names in os.walk(folder) for name in names)
    size = sum(array.size * array.dtype.numpy_dtype.itemsize for array in arrays.values())
    untrusted.bounded(size, _MOST_DEFLATED * stored, f"bytes of arrays in {stored:,} bytes of files", InterchangeError, folder)


class T5xCheckpoint(NamedArrays):
    """The parameters of a T5X checkpoint, by their names behind "target.", joined by dots.

    Raises:
      InterchangeError: the folder is no such checkpoint, or damaged.
    """

    settings: Mapping[str, Any] = {}  # it has none

    def __init__(self, folder: Path):
        self.path = folder
        untrusted.regular_below(folder, InterchangeError)  # TensorStore would wait for a pipe
        tree = structure(folder / T5X)
        if (version := tree.get("version")) != _VERSION:
            raise InterchangeError(
                f"{folder / T5X}: a T5X checkpoint of version {shortened(str(version))}; only {_VERSION} is read"
            )
        target = tree["optimizer"].get("target") if isinstance(tree.get("optimizer"), dict) else None
        if not isinstance(target, dict):
            raise InterchangeError(f"{folder / T5X}: no optimizer.target, where a T5X checkpoint has its parameters")
        self._stored: dict[str, Stored] = {}
        self._arrays: dict[str, Any] = {}
        for name, leaf in _leaves(target):
            if isinstance(leaf, Stored):
                self._stored[name] = leaf
            else:
                self._arrays[name] = opened("zarr", {"driver": "file", "path": f"{self._place(name, leaf)}/"}, folder / name)
        check_size(folder, self._arrays)
        self.shapes = {name: tuple(array.shape) for name, array in (self._stored | self._arrays).items()}
        self.dtypes = {name: array.dtype for name, array in self._stored.items()}
        self.dtypes |= {name: array.dtype.numpy_dtype for name, array in self._arrays.items()}
        self.require_floats(self.shapes)

    def _place(self, name: str, leaf: Any) -> Path:
        """Returns the folder of an array, given what stands for it in the tree: of that, its path alone is obeyed."""
        kvstore = leaf.get("kvstore") if isinstance(leaf, dict) else None
        path = (kvstore.get("path") or leaf.get("path")) if isinstance(kvstore, dict) else None
        if not isinstance(path, str) or not untrusted.is_within(path):
            raise InterchangeError(f"{self.path / T5X}: {shortened(name)} is no array, and names none of this folder")
        return (self.path / path).absolute()

    def __call__(self, name: str) -> np.ndarray:
        if name in self._stored:
            return mapped(self.path / T5X, self._stored[name])
        with untrusted.damage(self.path / name, InterchangeError):
            return self._arrays[name].read().result()


def _leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields arrays, and what stands for arrays, with their names."""
    for name, value in tree.items():
        if isinstance(value, dict) and "kvstore" not in value:
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


class MaxTextCheckpoint(NamedArrays):
    """The parameters of a MaxText checkpoint, by their names behind "params.", joined by dots: of scanned layers, each layer's
    part by the name that it has where layers are not scanned.

    Args:
      folder: a step's, or its `items`.

    Attributes:
      settings: of the model, from the config.yml in one of the folders up to that of the run.

    Raises:
      InterchangeError: the folder is no such checkpoint, is damaged, or has no config.yml.
    """

    def __init__(self, folder: Path):
        self.path = items = folder / ITEMS if (folder / ITEMS).exists() else folder
        untrusted.regular_below(items, InterchangeError)  # TensorStore would wait for a pipe
        self.settings = _settings(items)
        metadata = untrusted.read_json(items / METADATA, InterchangeError)
        driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
        self._arrays = dict(_orbax_arrays(items, metadata, driver))
        check_size(items, self._arrays)
        axis = self.settings.get("param_scan_axis", 1)
        self._places: dict[str, tuple[str, Index]] = {}
        self.shapes, self.dtypes = dict[str, Shape](), dict[str, np.dtype]()
        for name, array in self._arrays.items():
            for known, index in self._parts(name, array.shape, axis):
                self._places[known] = name, index
                self.shapes[known] = tuple(n for i, n in enumerate(array.shape) if not index or i != axis)
                self.dtypes[known] = array.dtype.numpy_dtype
        self.require_floats(self.shapes)

    def _parts(self, name: str, shape: Shape, axis: int) -> Iterator[tuple[str, Any]]:
        """Yields the names of an array's layers, with what reads each."""
        if not name.startswith(_SCANNED):
            yield name, ()
            return
        if type(axis) is not int or not 0 <= axis < len(shape):
            raise InterchangeError(f"{self.path}: param_scan_axis={shortened(str(axis))}: {name} has {len(shape)} axes")
        layers = untrusted.bounded(shape[axis], 1 << 12, "layers", InterchangeError, f"{self.path}: {name}")
        for i in range(layers):
            yield name.replace(_SCANNED, _LAYER.format(i), 1), (slice(None),) * axis + (i,)

    def __call__(self, name: str) -> np.ndarray:
        whole, index = self._places[name]
        with untrusted.damage(f"{self.path}: {whole}", InterchangeError):
            return self._arrays[whole][index or ...].read().result()


def _orbax_arrays(items: Path, metadata: dict[str, Any], driver: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays among a checkpoint's parameters."""
    tree = metadata.get("tree_metadata")
    if not isinstance(tree, dict):
        raise InterchangeError(f"{items / METADATA} names no arrays (tree_metadata)")
    untrusted.bounded(len(tree), untrusted.FIELDS, "arrays", InterchangeError, items)
    for key in tree:
        with untrusted.damage(items / METADATA, InterchangeError):
            path = tuple(map(str, ast.literal_eval(key)))
        if path[:1] != ("params",):
            continue
        stored, known = ".".join(path), ".".join(path[1 + (path[1:2] == ("params",)) :])
        if not untrusted.is_within(stored) or "/" in stored:
            raise InterchangeError(f"{items / METADATA}: {shortened(stored)} is no name of an array")
        base = f"{items.absolute()}/"
        if metadata.get("use_ocdbt", True):
            kvstore = {"driver": "ocdbt", "base": {"driver": "file", "path": base}, "path": f"{stored}/"}
        else:
            kvstore = {"driver": "file", "path": f"{base}{stored}/"}
        yield known, opened(driver, kvstore, items / shortened(stored))


def _settings(items: Path) -> dict[str, Any]:
    """Returns the settings of the run that a checkpoint is of."""
    import yaml  # takes a twentieth of a second, which other forms need not wait for

    folders = [items, *items.absolute().parents][:4]
    files = [folder / SETTINGS for folder in folders if (folder / SETTINGS).exists()]
    if not files:
        raise InterchangeError(
            f"{items}: no {SETTINGS} is there or up to three folders above: it has what no array shows (rope_max_timescale, "
            "normalization_layer_epsilon), and MaxText writes it with save_config_to_gcs=True"
        )
    text = untrusted.read_text(files[0], InterchangeError, _SETTINGS)
    with untrusted.damage(files[0], InterchangeError):
        settings = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(settings, dict):
        raise InterchangeError(f"{files[0]} is damaged: expected settings by name")
    return settings
