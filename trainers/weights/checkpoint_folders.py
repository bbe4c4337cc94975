"""Writes models as checkpoints of T5X and of MaxText, float32, a tensor at a time; tensorstores.py reads them."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from models.families import array_files_of
from models.interchange import Entry, InterchangeError, Shape, tensors
from trainers.weights.source import Weights
from trainers.weights.tensorstores import ITEMS, METADATA, SETTINGS, T5X, context

_CHUNK = 1 << 26  # bytes, as T5X has
_LAYER = "decoder.layers_{layer}."
_METADATA = "_CHECKPOINT_METADATA"
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


def _prepared(weights: Weights, to: Path, form: str, title: str) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the entries of a model in a form, and its settings.

    Raises:
      InterchangeError: `to` exists, the form has no such model, or a tensor is missing.
    """
    if to.exists():
        raise InterchangeError(f"{to} exists; choose a new folder")
    files = array_files_of(weights.config.family, form)
    if files is None:
        raise InterchangeError(f"models of family {weights.config.family!r} have no form of {title}")
    settings, entries = files.write_settings(weights.config), files.entries(weights.config)
    want = tensors.shapes(entries)
    if wrong := tensors.problems(want, {name: shape for name, shape in weights.shapes.items() if name in want}):
        raise InterchangeError(f"not the tensors of the model to write: {wrong}")
    return entries, settings


def _made(driver: str, kvstore: dict[str, Any], shape: Iterable[int], chunk: Iterable[int], **more: Any) -> Any:
    """Returns a new array of float32."""
    import tensorstore as ts

    spec = {"driver": driver, "kvstore": kvstore, "create": True, "delete_existing": True, **more}
    layout = ts.ChunkLayout(write_chunk_shape=tuple(map(_least, chunk)), read_chunk_shape=tuple(map(_least, chunk)))
    return ts.open(spec, shape=tuple(shape), dtype=ts.float32, chunk_layout=layout, context=context()).result()


def _least(size: int) -> int:
    return max(size, 1)


def _chunk(shape: Shape) -> Shape:
    """Returns the shape of chunks: rows of the first dimension."""
    if not shape:
        return ()
    return (min(shape[0], max(1, _CHUNK // (4 * math.prod(shape[1:]) or 1))), *shape[1:])


def write_t5x(weights: Weights, to: Path) -> Path:
    """Writes a model as a T5X checkpoint of step 0, without an optimizer's state; raises InterchangeError (see `_prepared`)."""
    from flax import serialization

    entries, _ = _prepared(weights, to, "t5x", "T5X")
    with paths.new_folder(to.absolute()) as folder:
        target: dict[str, Any] = {}
        for name, array in tensors.written(entries, weights.read):
            path, at = f"target.{name}", target
            compressor = {"id": "gzip", "level": 1}
            kvstore = {"driver": "file", "path": f"{folder / path}/"}
            store = _made("zarr", kvstore, array.shape, _chunk(array.shape), metadata={"compressor": compressor})
            store.write(np.asarray(array, np.float32)).result()
            *modules, last = name.split(".")
            for module in modules:
                at = at.setdefault(module, {})
            metadata = {"shape": list(array.shape), "chunks": list(_chunk(array.shape)), "compressor": compressor}
            kvstore = {"driver": "file", "path": f"{path}/"}
            at[last] = {"driver": "zarr", "dtype": "float32", "kvstore": kvstore, "metadata": metadata}
        state = {"step": np.int32(0), "param_states": {}}
        content = serialization.msgpack_serialize({"version": 3, "optimizer": {"target": target, "state": state}})
        (folder / T5X).write_bytes(content)
    return to


def write_maxtext(weights: Weights, to: Path, *, scanned: bool = True) -> Path:
    """Writes a model as a MaxText checkpoint, parameters alone, with a config.yml of the settings that describe it.

    Args:
      to: a step's folder, whose `items` is what MaxText's `load_parameters_path` names.
      scanned: all layers are one array with an axis 1 for them, as MaxText has by default.

    Raises:
      InterchangeError: see `_prepared`.
    """
    import yaml

    entries, settings = _prepared(weights, to, "maxtext", "MaxText")
    with paths.new_folder(to.absolute()) as folder:
        items = folder / ITEMS
        items.mkdir()
        names = [
            name
            for entry in entries
            for name in (_write_stack(items, entry, weights) if scanned and entry.layers else _write_each(items, entry, weights))
        ]
        tree = {str(tuple(name.split("."))): _described(name) for name in names}
        metadata = {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": True, "store_array_data_equal_to_fill_value": True}
        (items / METADATA).write_text(json.dumps(metadata | {"custom_metadata": None}))
        (folder / _METADATA).write_text(json.dumps({"item_handlers": {ITEMS: _HANDLER}, "metrics": {}, "custom_metadata": {}}))
        (folder / SETTINGS).write_text(yaml.safe_dump(settings | {"scan_layers": scanned, "param_scan_axis": 1}))
    return to


def _described(name: str) -> dict[str, Any]:
    keys = [{"key": key, "key_type": 2} for key in name.split(".")]
    return {"key_metadata": keys, "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False}}


def _database(items: Path, name: str) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{items}/"}, "path": f"{name}/"}


def _write_each(items: Path, entry: Entry, weights: Weights) -> Iterator[str]:
    for name, array in tensors.written([entry], weights.read):
        stored = f"params.params.{name}"
        store = _made("zarr3", _database(items, stored), array.shape, _chunk(array.shape))
        store.write(np.asarray(array, np.float32)).result()
        yield stored


def _write_stack(items: Path, entry: Entry, weights: Weights) -> Iterator[str]:
    """Writes all layers of an entry as one array, each layer as a chunk."""
    stored = f"params.params.{entry.theirs.replace(_LAYER, 'decoder.layers.')}"
    first, *inner = entry.shape
    store = _made("zarr3", _database(items, stored), (first, entry.layers, *inner), (first, 1, *inner))
    for i, (_, array) in enumerate(tensors.written([entry], weights.read)):
        store[:, i].write(np.asarray(array, np.float32)).result()
    yield stored
