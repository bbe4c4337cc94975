"""Samples of Flax's files and of checkpoints of T5X and MaxText, for tests/fuzz/readers.py."""

from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization

from data import paths
from models.families import interchange_of
from models.sharding.params import describe
from tests.parity.ours import abstract
from trainers.weights import checkpoint_folders, flax_files
from trainers.weights.source import Arrays

_T5 = dict(model_type="t5", vocab_size=9, d_model=6, d_kv=2, d_ff=5, num_layers=1, num_heads=2)
_LLAMA = dict(model_type="llama", vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=5)


def _weights(family: str, settings: dict[str, Any]) -> Arrays:
    files = interchange_of(family)
    assert files
    config = files.read_config(settings)
    rng = np.random.default_rng(0)
    shapes = {info.name: info.shape for info in describe(abstract(config))}
    return Arrays(config, {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


def write_flax(folder: Path) -> None:
    """Writes a file with arrays of two dtypes, one of them in pieces, and a scalar."""
    pieces = {"0": np.ones(3, np.float32), "1": np.ones(1, np.float32)}
    tree = {
        "a": {"kernel": np.ones((3, 4), np.float32), "bias": np.ones(4, np.float16)},
        "whole": {"__msgpack_chunked_array__": True, "shape": {"0": 2, "1": 2}, "chunks": pieces},
        "scale": np.float32(2),
    }
    (folder / "flax_model.msgpack").write_bytes(serialization.msgpack_serialize(tree))


def read_flax(folder: Path) -> None:
    """Reads all arrays of a file."""
    file = flax_files.FlaxFile(folder / "flax_model.msgpack")
    for name in file.shapes:
        np.array(file(name))


def _into(folder: Path, write: Any) -> None:
    with paths.scratch(folder) as room:
        write(room / "new")
        for file in (room / "new").iterdir():
            file.rename(folder / file.name)


def write_t5x(folder: Path) -> None:
    """Writes a T5X checkpoint."""
    _into(folder, lambda to: checkpoint_folders.write_t5x(_weights("t5", _T5), to))


def write_maxtext(folder: Path) -> None:
    """Writes a MaxText checkpoint with scanned layers."""
    _into(folder, lambda to: checkpoint_folders.write_maxtext(_weights("gpt", _LLAMA), to))
