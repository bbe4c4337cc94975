"""Prepared caches as SeqIO tasks, for T5X and other users of SeqIO.

    from data.reading import seqio_bridge
    seqio_bridge.register()  # every prepared cache, or those that are named
    rows = seqio.get_mixture_or_task("gpt_small").get_dataset(None, "train", shuffle=True)

Each part of a cache is a task CACHE.PART, and the cache is the mixture CACHE, at the rates at which training draws the parts. A
row has the arrays that the cache stores, packed already: feature converters must not pack again.

Importing this module imports TensorFlow (5 s).
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grain
import numpy as np
import seqio
import tensorflow as tf

from data import kinds, paths, untrusted
from data.config import DataConfig
from data.features import Features
from data.reading.caches import check_rows, read_manifest
from data.reading.examples import unpack
from data.task import DataError

_SIDES = {"inputs": "source", "targets": "target"}  # features to the names of SentencePiece models beside them


class CacheSource(seqio.DataSource):
    """The training rows of a file of a cache. Rows are read by index, so that they are shuffled and sharded exactly."""

    def __init__(self, file: Path, stored: Features):
        self.file, self.stored = file, stored
        self.records: Any = grain.sources.ArrayRecordDataSource(str(file))
        super().__init__(["train"], {"train": len(self.records)}, caching_permitted=False, performs_internal_shuffling=True)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> list[str]:
        return [str(self.file)]

    def read(self, index: int) -> list[np.ndarray]:
        """Returns the arrays of a row; raises ValueError if they are not those of a record."""
        return list(unpack(np.frombuffer(self.records[int(index)], np.uint8), self.stored).values())

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        types = [tf.as_dtype(feature.dtype) for feature in self.stored.values()]

        def row(index: tf.Tensor) -> dict[str, tf.Tensor]:
            arrays = tf.numpy_function(self.read, [index], types)
            shapes = [[None if n < 0 else n for n in feature.shape] for feature in self.stored.values()]
            return {name: tf.ensure_shape(x, n) for name, x, n in zip(self.stored, arrays, shapes, strict=True)}

        indices = tf.data.Dataset.range(len(self.records))
        indices = indices.shard(shard_info.num_shards, shard_info.index) if shard_info else indices
        indices = indices.shuffle(len(self.records), seed=seed) if shuffle else indices
        return indices.map(row, num_parallel_calls=tf.data.AUTOTUNE)


def register(*caches: str) -> None:
    """Registers prepared caches, or registers them anew; without names, all in the data folder.

    Raises:
      DataError: a cache is not prepared, or holds other rows than its manifest says.
    """
    root = paths.data_dir() / "caches"
    for folder in [root / name for name in caches] or sorted(file.parent for file in root.glob("*/manifest.json")):
        _register(folder)


def _register(folder: Path) -> None:
    manifest = read_manifest(folder)
    with untrusted.damage(folder / "manifest.json", DataError):
        data = _config(folder, manifest)
        task = kinds.task_of(data)
        sizes, rates = task.parts(manifest), []
        for part, rate in zip(sizes, task.weights(sizes), strict=True):
            name = _name(f"{folder.name}.{part}")
            seqio.TaskRegistry.remove(name)
            source = CacheSource(check_rows(folder, manifest, part), data.stored())
            features = _features(folder, manifest, data)
            # SeqIO's protocol and its own class disagree on whether a split may have no known size.
            seqio.TaskRegistry.add(name, source=source, preprocessors=[], output_features=features)  # pyright: ignore[reportArgumentType]
            rates.append((name, rate))
        seqio.MixtureRegistry.remove(_name(folder.name))
        seqio.MixtureRegistry.add(_name(folder.name), rates)


def _name(text: str) -> str:
    """Returns a name that SeqIO allows: `zh-Hans` is written `zh_Hans`."""
    return re.sub(r"[^\w.]", "_", text)


def _config(folder: Path, manifest: Mapping[str, Any]) -> DataConfig:
    """Returns the first configuration of the cache's kind whose stored arrays fit its rows, with the manifest's values."""
    for cls, flag in itertools.product(kinds.module(manifest["kind"], "config").CONFIGS, (False, True)):
        fields = dataclasses.fields(cls)
        values = {f.name: 1 for f in fields if f.default is f.default_factory is dataclasses.MISSING}
        values |= {f.name: flag for f in fields if isinstance(f.default, bool)}  # flags that decide the arrays are in no manifest
        data = cls(**values | {f.name: manifest[f.name] for f in fields if f.name in manifest} | {"cache": folder.name})
        part = next(iter(kinds.task_of(data).parts(manifest)))
        try:
            CacheSource(check_rows(folder, manifest, part), data.stored()).read(0)
        except ValueError:
            continue
        return data
    raise DataError(f"{folder}: no configuration of kind {manifest['kind']!r} has rows as the cache holds")


def _features(folder: Path, manifest: Mapping[str, Any], data: DataConfig) -> dict[str, Any]:
    """Returns the stored arrays as SeqIO's features, tokens with the vocabulary that is beside them."""

    def vocabulary(name: str) -> Any:
        model = folder / f"{_SIDES.get(name, name)}.model"
        size = manifest.get(f"{_SIDES.get(name)}_vocabulary", manifest.get("vocabulary", 0))
        return seqio.SentencePieceVocabulary(str(model)) if model.exists() else seqio.PassThroughVocabulary(size)

    return {
        name: seqio.Feature(vocabulary(name), add_eos=False, dtype=tf.as_dtype(feature.dtype), rank=len(feature.shape))
        for name, feature in data.stored().items()
    }
