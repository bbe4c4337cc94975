"""The benchmark of the reader of pictures, on small ones."""

import json

from scripts.lab import picture_speed


def test_the_reader_is_measured(capsys):
    """Pictures are made and read; each number of workers has a rate."""
    arguments = ["--pictures", "16", "--batch", "8", "--batches", "2", "--size", "16", "--workers", "0", "--json"]
    assert picture_speed.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images_per_s"]["0"] > 0 and report["core_ms_per_image"]["0"] > 0
    assert 60 < report["kilobytes"] < 200 and report["pictures"] == 12  # the others are held out
