"""Pictures as the model gets them: pure functions of seed and index."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from numpy.testing import assert_array_equal
from PIL import Image

from data.images import pictures
from data.images.config import Augmentation, ImageData
from data.images.task import ImageTask
from data.reading.batches import Batches, held_out_batches
from data.reading.caches import read_manifest
from data.reading.examples import AugmentedSource, open_source
from data.task import DataError
from models.sharding.component import make_mesh
from models.sharding.layout import Layout
from tests.helpers.pictures import encoded, smooth

EVERYTHING = Augmentation(crop="resized", area=(0.3, 1.0), flip=True, layers=2, magnitude=5, mixup=0.5, cutmix=1.0)
DATA = ImageData(cache="toy", batch_size=8, height=8, width=8, augmentation=EVERYTHING)


@pytest.fixture(autouse=True)
def here(root, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(root))


def plain(**fields) -> ImageData:
    return dataclasses.replace(DATA, augmentation=Augmentation(**fields))


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_rows_depend_on_seed_and_index_alone(model):
    """Two readers agree in any order of access, with every augmentation; another seed gives other pixels; the second epoch
    changes the same pictures otherwise."""
    a, b = open_source(DATA, model), open_source(DATA, model)
    forward = [a.row(i) for i in range(24)]
    backward = [b.row(i) for i in reversed(range(24))][::-1]
    assert all(same(x, y) for x, y in zip(forward, backward, strict=True))
    other = open_source(dataclasses.replace(DATA, seed=1), model)
    assert not any(same(x, other.row(i)) for i, x in enumerate(forward))
    cropped = open_source(plain(crop="resized"), model)
    epochs = [{cropped.row(i)["images"].tobytes() for i in range(start, start + 51)} for start in (0, 51)]
    assert not epochs[0] & epochs[1]


def test_rows_are_what_the_features_say(model):
    """Shapes and dtypes are those declared, with and without a mixture, of stored and of random data; weights add up to 1."""
    for data in (DATA, plain(), dataclasses.replace(DATA, cache=""), dataclasses.replace(plain(), cache="")):
        row = open_source(data, model).row(5)
        assert {k: (v.shape, str(v.dtype)) for k, v in row.items()} == {k: (f.shape, f.dtype) for k, f in data.features().items()}
        assert row["label_weights"].sum() == pytest.approx(1) and row["labels"].max() < 3
        assert (row["label_weights"][1] > 0) == data.augmentation.mixes


def test_pixels_are_normalised():
    """A grey 0.5 is the mean, so 0; white is one over the deviation, for each channel its own."""
    data = dataclasses.replace(plain(), mean=(0.5, 0.0, 1.0), std=(0.5, 0.25, 1.0))
    task = ImageTask(data)
    white = task.seen(encoded(np.full((8, 8, 3), 255, np.uint8)))["images"]
    assert np.abs(white - [1, 4, 0]).max() < 1e-6
    black = task.seen(encoded(np.zeros((8, 8, 3), np.uint8)))["images"]
    assert np.abs(black - [-1, 0, -1]).max() < 1e-6


def test_flips_come_to_half_of_the_pictures(model):
    """A picture comes as it is or mirrored, about equally often; without the flip it comes as evaluation sees it."""
    flipping, still = open_source(plain(flip=True), model), open_source(plain(), model)
    flipped = 0
    for i in range(200):
        a, b = flipping.row(i)["images"], still.row(i)["images"]
        flipped += not np.array_equal(a, b)
        assert np.array_equal(a, b) or np.abs(a - b[:, ::-1]).max() < 1e-6
    assert 75 < flipped < 125


@pytest.mark.parametrize("how", ["mixup", "cutmix"])
def test_pairs_are_mixed_with_each_other(model, how):
    """Rows 2 n and 2 n + 1 have each other's class second, with the share that their pixels have."""
    mixed, alone = open_source(plain(**{how: 1.0}), model), open_source(plain(), model)
    shares = []
    for i in range(40):
        row, (a, b) = mixed.row(i), (alone.row(j)["images"] for j in (i, i ^ 1))
        assert row["labels"].tolist() == [alone.row(j)["labels"][0] for j in (i, i ^ 1)]
        share = row["label_weights"][0]
        shares.append(share)
        if how == "mixup":
            assert np.abs(row["images"] - (share * a + (1 - share) * b)).max() < 1e-5
        else:
            from_a, from_b = ((row["images"] == x).all(axis=-1) for x in (a, b))
            assert (from_a | from_b).all() and np.mean(from_a) == pytest.approx(share, abs=1e-6)
    assert len(set(shares)) > 10
    assert shares[0] != shares[1]  # each of a pair has a share of its own


def test_both_mixtures_share_the_pairs(model):
    """With both, about half of the pairs are blended and half pasted."""
    mixed, alone = open_source(plain(mixup=1.0, cutmix=1.0), model), open_source(plain(), model)
    pasted = 0
    for i in range(0, 200, 2):
        a, b = (alone.row(j)["images"] for j in (i, i ^ 1))
        row = mixed.row(i)["images"]
        pasted += ((row == a) | (row == b)).all()
    assert 30 < pasted < 70


def test_a_pair_is_read_once(model, monkeypatch):
    """Rows in order are decoded once each, though each is mixed into another."""
    source = open_source(DATA, model)
    assert isinstance(source, AugmentedSource)
    read, row = [], type(source.source).row
    monkeypatch.setattr(type(source.source), "row", lambda self, index: read.append(index) or row(self, index))
    for i in range(16):
        source.row(i)
    assert read == list(range(16))


@pytest.mark.integration
def test_workers_and_processes_change_nothing(model):
    """Batches that two workers read from the middle on, where a resumed run begins, are those that the trainer's own thread
    reads; and a process that holds some rows alone gets the same rows, though pairs reach beyond them."""

    class Part:
        """The sharding as a process sees it that holds the devices of rows 3 to 5."""

        def addressable_devices_indices_map(self, shape):
            mesh = make_mesh(Layout(name="rows", mesh=(("all", 8),)), jax.devices()[:8])
            every = NamedSharding(mesh, PartitionSpec("all")).addressable_devices_indices_map(shape)
            return {d: i for d, i in every.items() if i and i[0].start in (3, 4, 5)}

    source, shardings = open_source(DATA, model), dict.fromkeys(DATA.features())
    readers = [Batches(source, DATA, shardings, workers) for workers in (0, 2)]
    part = Batches(source, DATA, dict.fromkeys(DATA.features(), Part()))  # type: ignore[arg-type]
    try:
        for step in (7, 8):
            want, *others = (batches(step) for batches in readers)
            for name, array in want.items():
                for have in others:
                    assert_array_equal(array, have[name], err_msg=f"step {step}, {name}")
            assert_array_equal(part._read(step)["images"], want["images"][3:6])
    finally:
        for batches in (*readers, part):
            batches.close()


def test_held_out_pictures_are_decoded_when_asked_for(root):
    """A slice has the same pictures as one by one, in the order of the split; padding rows have no weight."""
    folder = root / "caches" / "toy"
    task = ImageTask(DATA)
    held_out = task.held_out(folder, folder, "test", 0)
    assert held_out.count == len(held_out.rows) == 6 and held_out.needs_outputs
    for at, row in enumerate(held_out.rows[1:5], 1):
        assert same(row, held_out.rows[at]) and row["labels"][0] == held_out.extra[at]
        assert row["label_weights"].tolist() == [1, 0]
    batches = list(held_out_batches(held_out.rows, DATA.features(), 4))
    assert [batch["label_weights"].sum() for batch in batches] == [4, 2]
    assert len(task.held_out(folder, folder, "test", 2).rows) == 2
    with pytest.raises(DataError, match="cache 'toy' has no split 'tset'; did you mean 'test'"):
        task.held_out(folder, folder, "tset", 0)


def test_scores_are_accuracies(root):
    """Logits that point at the true class of all but one picture are right about the others; padding does not count."""
    folder = root / "caches" / "toy"
    task = ImageTask(DATA)
    held_out = task.held_out(folder, folder, "test", 0)
    logits = np.eye(8)[held_out.extra] * 5
    logits[0] = np.arange(8)[::-1] == held_out.extra[0]  # the true class is one of eight, last of all
    logits[0, held_out.extra[0]] = -1
    scores = task.scores({}, held_out, [*logits, np.zeros(8), np.zeros(8)])
    assert scores == pytest.approx({"accuracy": 5 / 6, "accuracy_top5": 5 / 6})
    assert task.scores({}, held_out).keys() == scores.keys() == task.directions.keys()


def test_pictures_that_are_given(root, tmp_path):
    """Files are read as evaluation sees them; one that cannot be used is named in a line."""
    task = ImageTask(DATA)
    good, bad, grey = (tmp_path / name for name in ("good.png", "bad.png", "grey.png"))
    good.write_bytes(encoded(smooth(12, 16)))
    bad.write_bytes(good.read_bytes()[:80])
    grey.write_bytes(encoded(smooth(12, 16)[..., 0]))
    rows = task.read_given([{"picture": str(good)}, {"picture": str(grey)}], root)
    assert rows[0]["images"].shape == (8, 8, 3) and [row["owners"].tolist() for row in rows] == [[0], [1]]
    assert task.class_names(root / "caches" / "toy") == ["ant", "bee", "cow"]
    for file, why in (
        (bad, rf"{bad}: cannot be decoded \(16 x 12 pixels\): "),
        (tmp_path / "no.png", f"{tmp_path}: no.png is missing"),
        (tmp_path, f"{tmp_path.parent}: {tmp_path.name} is no regular file"),
    ):
        with pytest.raises(DataError, match=f"^{why}"):
            task.read_given([{"picture": str(file)}], root)
    single = ImageTask(dataclasses.replace(plain(), channels=1))
    with pytest.raises(DataError, match=f"^{good}: has 3 channels, expected 1$"):
        single.read_given([{"picture": str(good)}], root)


def test_a_cached_picture_that_cannot_be_decoded_is_named(root, model, monkeypatch):
    """In training and in evaluation the line says which row of which file it is, and how large."""

    def broken(image: Image.Image, channels: int) -> Image.Image:
        raise ValueError("no such luck")

    monkeypatch.setattr(pictures, "_converted", broken)
    why = r"cannot be decoded \(16 x 12 pixels\): no such luck$"
    with pytest.raises(DataError, match=rf"^row 6 of cache 'toy': {why}"):
        open_source(DATA, model).row(6)
    held_out = ImageTask(DATA).held_out(root / "caches" / "toy", root, "test", 0).rows
    for chosen in (2, slice(2, 3)):
        with pytest.raises(DataError, match=rf"^{root}/caches/toy/test\.array_record, row 2: {why}"):
            held_out[chosen]


def test_what_does_not_fit_is_refused(model):
    """Classes, shapes and channels of cache, data and model are compared, and the first that differs is named."""
    with pytest.raises(DataError, match=r"^model\.labels=10: cache 'toy' has 3 labels; take --model\.labels 3$"):
        open_source(DATA, dataclasses.replace(model, labels=10))
    flags = "--model.height 8 --model.width 8 --model.channels 3"
    with pytest.raises(
        DataError, match=rf"^data\.height, .* make pictures of 8 x 8 x 3; the model reads 28 x 28 x 1; take {flags}$"
    ):
        open_source(DATA, dataclasses.replace(model, picture=(28, 28, 1)))
    with pytest.raises(DataError, match=r"^data\.channels=1: cache 'toy' has pictures of 3 channels$"):
        open_source(dataclasses.replace(DATA, channels=1), model)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"channels": 4}, "channels=4: must be 1 "),
        ({"mean": (0.5, 0.5)}, r"mean=\(0.5, 0.5\): must be one value, or 3, one a channel"),
        ({"std": (0.0,)}, r"std=\(0.0,\): must be positive"),
        ({"eval_crop": 1.5}, "eval_crop=1.5: must be from 0 to 1"),
        ({"batch_size": 7}, "batch_size=7: must be even, for pictures are mixed in pairs"),
        ({"augmentation": Augmentation(crop="padded", pad=8)}, r"augmentation.pad=8: must be less than"),
    ],
)
def test_settings_that_cannot_be(fields, line):
    """A setting out of its range is named with the range."""
    with pytest.raises(ValueError, match=line):
        dataclasses.replace(DATA, **fields)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"area": (0.5, 0.1)}, r"area=\(0.5, 0.1\): must be two shares of a picture, rising"),
        ({"ratio": (0.0, 1.0)}, r"ratio=\(0.0, 1.0\): must be two positive ratios"),
        ({"magnitude": 11.0}, "magnitude=11: must be from 0 to 10"),
        ({"mixup": -1.0}, "mixup=-1: must be 0 or more"),
    ],
)
def test_augmentations_that_cannot_be(fields, line):
    """So is one of an augmentation."""
    with pytest.raises(ValueError, match=line):
        Augmentation(**fields)


def test_the_fingerprint_tells_augmentations_apart(model):
    """The name of what a run has read changes with the augmentation and the size, and not with the size of batches."""
    names = [
        open_source(data, dataclasses.replace(model, picture=(data.height, 8, 3))).fingerprint
        for data in (DATA, plain(), dataclasses.replace(DATA, height=16), dataclasses.replace(DATA, batch_size=16))
    ]
    assert len(set(names)) == 3 and names[0] == names[3]


def test_the_card_names_the_classes(root):
    """A release's page says how many pictures of which classes were read."""
    lines = ImageTask(DATA).card(read_manifest(root / "caches" / "toy"))
    assert lines[0].startswith("Trained on 51 pictures of `toy` (fingerprint ") and lines[1] == "3 classes: ant, bee, cow."
