"""Public sets by their TFDS names, in stand-ins that are stored under those names; these import TensorFlow."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data.images.caches import ENTRIES, ImageCache
from data.images.sources import open_source
from data.packages.tfds import NotPreparedError
from data.prepare import prepare
from data.reading.caches import examples, read_manifest
from data.task import DataError
from tests.helpers.pictures import smooth

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A data folder with stand-ins: ImageNet as JPEG files, some without a class; CIFAR-100 with its two kinds of classes."""
    import tensorflow_datasets as tfds

    root, features = tmp_path_factory.mktemp("public"), tfds.features

    def store(name: str, version: str, fields: dict, example, sizes: dict[str, int]) -> Path:
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version=version,
            data_dir=root / "tfds",
            features=features.FeaturesDict(fields),
            split_datasets={
                split: [(n, example(1000 * at + n)) for n in range(size)] for at, (split, size) in enumerate(sizes.items())
            },
        )
        return root / "tfds" / name / version / "dataset_info.json"

    names = [f"n{n:08d}" for n in range(5)]
    pictures = {"image": features.Image(encoding_format="jpeg"), "label": features.ClassLabel(names=names)}

    def photograph(n: int) -> dict:
        return {"image": smooth(20, 30, n), "label": n % 5, "file_name": f"ILSVRC_{n}.JPEG"}

    store(
        "imagenet2012",
        "5.1.0",
        {**pictures, "file_name": features.Text()},
        photograph,
        {"train": 100, "validation": 10, "test": 3},
    )
    small = {"image": features.Image(shape=(8, 8, 3)), "label": features.ClassLabel(num_classes=4)}
    both = {**small, "coarse_label": features.ClassLabel(num_classes=2)}
    info = store(
        "cifar100",
        "3.0.2",
        both,
        lambda n: {"image": smooth(8, 8, n), "label": n % 4, "coarse_label": n % 2},
        {"train": 40, "test": 8},
    )
    keys = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}  # as the real set has them
    info.write_text(json.dumps(json.loads(info.read_text()) | {"supervisedKeys": keys}))
    store("numbers", "1.0.0", {"x": np.int32}, lambda n: {"x": n}, {"train": 2})
    return root


def test_imagenet_by_its_name(public):
    """Files are the bytes that are stored, with their names and classes; the validation is our test, since its own has none."""
    opened = open_source(ENTRIES["imagenet2012"], public)
    assert opened.labels == tuple(f"n{n:08d}" for n in range(5))
    splits = {name: list(pictures) for name, pictures in opened.splits.items()}
    assert {name: len(pictures) for name, pictures in splits.items()} == {"train": 99, "validation": 1, "test": 10}
    for picture in splits["test"]:
        number = int(picture.name.removeprefix("ILSVRC_").removesuffix(".JPEG"))
        assert picture.label == f"n{number % 5:08d}"
        assert picture.read()[:3] == b"\xff\xd8\xff" and len(picture.read()) < smooth(20, 30).nbytes
    assert [picture.name for picture in splits["test"]] == [picture.name for picture in opened.splits["test"]]


@pytest.mark.parametrize("version", ["", ":3.0.2"])
def test_a_cache_of_any_name(public, version):
    """A set of a user's choice becomes a cache; of two kinds of classes the supervised one counts; versions may be left out."""
    cache = prepare(
        "own", ImageCache(source=f"tfds:cifar100{version}", validation=0.1), data_dir=public, progress=lambda line: None
    )
    manifest = read_manifest(cache)
    assert manifest["labels"] == list("0123") and manifest["held_out"] == {"validation": 4, "test": 8}
    assert manifest["parts"]["all"] == {"examples": 36, "rows": 36, "left_out": 0}
    assert sorted(e["label"] for e in examples(cache, "test")) == sorted("0123" * 2)


def test_pictures_without_a_class_are_left_out(public, monkeypatch):
    """As in sets whose test is secret."""
    from data.images import tfds_pictures

    stored = open_source(ENTRIES["imagenet2012"], public)
    unlabelled = [type(p)(p.name, "" if at < 4 else p.label, p.read) for at, p in enumerate(stored.splits["test"])]
    opened = type(stored)(stored.labels, {**stored.splits, "test": unlabelled})
    monkeypatch.setattr(tfds_pictures, "open_tfds", lambda *_: opened)
    cache = prepare("some", ENTRIES["imagenet2012"], data_dir=public, progress=lambda line: None)
    manifest = read_manifest(cache)
    assert manifest["held_out"]["test"] == 6 and manifest["left_out"]["test"][0].endswith(": has no class")


def test_what_is_not_there_or_has_no_pictures(public, tmp_path):
    """A set that TFDS has not prepared is refused at once, and so is one of other things."""
    for name in ("cifar10:3.0.2", "cifar10"):
        with pytest.raises(NotPreparedError, match=rf"^{name} is not prepared in .*; prepare it with TFDS"):
            open_source(ImageCache(source=f"tfds:{name}"), public)
    with pytest.raises(DataError, match=r"^numbers: expected a picture and its class, got the features x$"):
        open_source(ImageCache(source="tfds:numbers"), public)


def test_reading_needs_no_tensorflow():
    """Everything but the reader of TFDS's folder can be imported without TensorFlow."""
    modules = ("caches", "config", "crops", "folders", "metrics", "mixing", "pictures", "randaugment", "maker", "sources", "task")
    program = (
        f"import sys, {', '.join(f'data.images.{module}' for module in modules)};"
        "heavy = {'tensorflow', 'seqio', 'tensorflow_datasets', 'jax'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
