"""Reads classified pictures from TFDS's folder, as the encoded files that are stored there.

Importing this module imports TensorFlow (5 s); training reads the cache (`data.images.maker`) and never does.
"""

import functools
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from data.images.caches import ImageCache
from data.images.splits import Picture, Pictures
from data.packages.tfds import Mapped, Part, dataset_folder, open_builder
from data.task import DataError

# Sets whose own test has no classes.
_UNLABELLED_TEST = ("imagenet2012",)


def open_tfds(name: str, data_dir: Path, settings: ImageCache) -> Pictures:
    """Returns the pictures of a data set of TFDS: its "train", "validation" and "test".

    Where it has no test with classes, its validation is the test here; where nothing is left for the validation, or for
    either, it is the head of training, in the shares of the settings.

    Args:
      name: data set, config and version, such as "cifar10:3.0.2"; without a version the newest that is prepared.
      data_dir: TFDS's folder.

    Raises:
      DataError: the data set has no picture with one class.
      NotPreparedError: it is not there.
    """
    folder = dataset_folder(_with_version(name, data_dir), data_dir)
    builder = open_builder(folder)
    picture, label = _fields(name, builder.info)
    features: Any = builder.info.features
    labels = tuple(features[label].names)
    splits = _splits(builder, settings)

    def pictures(split: str, own: str) -> Mapped:
        return Mapped(Part(folder, own, picture), functools.partial(_picture, split, picture, label, labels))

    return Pictures(labels, {split: pictures(split, own) for split, own in splits.items()})


def _picture(split: str, picture: str, label: str, labels: tuple[str, ...], at: int, example: dict[str, Any]) -> Picture:
    """Returns a picture, encoded as it is stored, by the names of the features that are the picture and its class."""
    encoded, number = bytes(example[picture]), int(example[label])
    name = example["file_name"].decode() if "file_name" in example else f"{split}/{at:07d}"
    return Picture(name, labels[number] if number >= 0 else "", lambda: encoded)


def _with_version(name: str, data_dir: Path) -> str:
    if ":" in name:
        return name
    prepared = [info.parent.name for info in (data_dir / name).glob("*/dataset_info.json")]
    return f"{name}:{max(prepared, key=tfds.core.Version)}" if prepared else name


def _fields(name: str, info: tfds.core.DatasetInfo) -> tuple[str, str]:
    """Returns the names of the features that are the picture and its class."""
    features: Any = info.features
    keys = info.supervised_keys or (None, None)
    pictures = [key for key in features if isinstance(features[key], tfds.features.Image)]
    labels = [key for key in features if isinstance(features[key], tfds.features.ClassLabel)]
    pictures, labels = ([key for key in chosen if key in keys] or chosen for chosen in (pictures, labels))
    if len(pictures) != 1 or len(labels) != 1:
        raise DataError(f"{name}: expected a picture and its class, got the features {', '.join(sorted(features))}")
    return pictures[0], labels[0]


def _splits(builder: tfds.core.DatasetBuilder, settings: ImageCache) -> dict[str, str]:
    """Returns our splits, each as TFDS names a part of its own."""
    own = dict.fromkeys(builder.info.splits)
    if builder.name in _UNLABELLED_TEST:
        own.pop("test", None)
    splits = {name: name for name in ("validation", "test") if name in own}
    if "validation" in splits and "test" not in splits:
        splits["test"] = splits.pop("validation")
    at = 0
    for name in ("validation", "test"):
        if name not in splits:
            percent = max(1, round(100 * getattr(settings, name)))
            splits[name], at = f"train[{at}%:{at + percent}%]", at + percent
    return {"train": f"train[{at}%:]" if at else "train", **splits}
