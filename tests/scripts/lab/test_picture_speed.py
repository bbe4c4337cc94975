"""The benchmarks of pictures, on small ones."""

import json
import sys

import pytest

from models.errors import UserError
from scripts.lab import image_baseline, picture_speed
from tests.helpers.pictures import write_picture_cache


def test_the_reader_is_measured(capsys):
    """Pictures are made and read; each number of workers has a rate."""
    arguments = ["--pictures", "16", "--batch", "8", "--batches", "2", "--size", "16", "--workers", "0", "--json"]
    assert picture_speed.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images_per_s"]["0"] > 0 and report["core_ms_per_image"]["0"] > 0
    assert 60 < report["kilobytes"] < 200 and report["pictures"] == 12  # the others are held out


def test_pixels_of_a_cache(tmp_path):
    """Training and held-out pictures are vectors from 0 to 1, with their classes."""
    cache = write_picture_cache(tmp_path, {"ant": 20, "bee": 20})
    manifest = json.loads((cache / "manifest.json").read_text())
    splits = image_baseline.read(cache, manifest, 6, limit=10)
    assert {name: pixels.shape for name, (pixels, _) in splits.items()} == {
        "train": (10, 108),
        "validation": (2, 108),
        "test": (4, 108),
    }
    pixels, labels = splits["test"]
    assert pixels.min() >= 0 and pixels.max() <= 1 and set(labels.tolist()) == {0, 1}


def test_what_the_baselines_need(tmp_path, monkeypatch):
    """Without scikit-learn the bench says how to get it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"needs scikit-learn: pip install scikit-learn$"):
        image_baseline.main(["mnist"])
