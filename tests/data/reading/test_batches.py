"""A batch is a pure function of seed and step, however many processes read it."""

import dataclasses
import json
import os
import select
import subprocess
import sys
from typing import ClassVar

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from numpy.testing import assert_array_equal

from configs import registry
from data import paths
from data.features import Feature
from data.kinds import task_of
from data.labelled.config import LabelledData
from data.reading.batches import Batches
from data.reading.caches import check_vocabularies
from data.reading.examples import AugmentedSource, CacheSource, Source, SyntheticSource, open_source, unpack
from data.task import DataError
from data.text import masking
from data.text.config import MaskedTextData
from data.translation.config import TranslationData
from models.sharding.component import make_mesh
from models.sharding.layout import Layout
from tests.helpers.caches import write_cache

DATA = TranslationData(cache="toy", batch_size=8, source_length=6, target_length=4, temperature=2.0)


@pytest.fixture
def folder(tmp_path):
    return write_cache(tmp_path, {"aa": 40, "bb": 10}, source_length=6, target_length=4)


def sharding(devices: int = 4) -> NamedSharding:
    layout = Layout(name="rows", mesh=(("all", devices),))
    return NamedSharding(make_mesh(layout, jax.devices()[:devices]), PartitionSpec("all", None))


def languages(source: CacheSource, indices) -> list[str]:
    """Returns the language of each row: the toy cache marks rows by their first token."""
    return ["aa" if source.row(i)["inputs"][0] < 1000 else "bb" for i in indices]


def test_rows_depend_on_index_and_seed_alone(folder):
    """Two readers agree in any order of access; another seed gives another order of the same rows."""
    a, b = CacheSource(task_of(DATA), folder), CacheSource(task_of(DATA), folder)
    forward = [a.row(i)["inputs"].tolist() for i in range(60)]
    assert forward == [b.row(i)["inputs"].tolist() for i in reversed(range(60))][::-1]
    other = CacheSource(task_of(dataclasses.replace(DATA, seed=1)), folder)
    assert forward != [other.row(i)["inputs"].tolist() for i in range(60)]
    assert other.fingerprint != a.fingerprint


def test_rows_of_another_cache_are_refused(folder, tmp_path):
    """Rows of the same shape under somebody else's manifest: their SHA-256 is not the one that the manifest was written with."""
    rows = folder / "train" / "bb.array_record"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {"train/bb.array_record": paths.sha256(rows)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    CacheSource(task_of(DATA), folder)
    other = write_cache(tmp_path / "other", {"bb": 11}, source_length=6, target_length=4)
    rows.write_bytes((other / "train" / "bb.array_record").read_bytes())
    with pytest.raises(DataError, match=r"bb\.array_record is damaged or another cache's"):
        CacheSource(task_of(DATA), folder)


@pytest.mark.parametrize("damage", [lambda x: b"", lambda x: x[: len(x) // 2], lambda x: x.replace(b"languages", b"langvages")])
@pytest.mark.parametrize("name", ["manifest.json", "train/bb.array_record"])
def test_a_damaged_cache_is_refused_in_one_line(folder, name, damage):
    """A file of rows is, or its rows are what they were: a name that only the manifest has changes nothing there."""
    content = (folder / name).read_bytes()
    if (changed := damage(content)) == content:
        return
    (folder / name).write_bytes(changed)
    with pytest.raises(DataError, match=r"^[^\n]*is damaged[^\n]*$"):
        source = CacheSource(task_of(DATA), folder)
        for index in range(200):
            source.row(index)


def test_languages_are_mixed_at_the_temperature(folder):
    """40 and 10 pairs at T = 2 are drawn as sqrt(40) : sqrt(10) = 2 : 1, at T = 1 as 4 : 1."""
    assert languages(CacheSource(task_of(DATA), folder), range(300)).count("bb") == pytest.approx(100, abs=2)
    plain = CacheSource(task_of(dataclasses.replace(DATA, temperature=1.0)), folder)
    assert languages(plain, range(300)).count("bb") == pytest.approx(60, abs=2)


def test_every_row_comes_once_an_epoch_and_epochs_differ(folder):
    """Among the rows of one language each epoch holds every row once, in a new order."""
    source = CacheSource(task_of(dataclasses.replace(DATA, temperature=1.0)), folder)
    rows = [int(r["inputs"][0]) for r in (source.row(i) for i in range(100)) if r["inputs"][0] < 1000]
    first, second = rows[:40], rows[40:80]
    assert sorted(first) == sorted(second) == list(range(100, 140)) and first != second


def test_batches_are_the_rows_of_their_step(folder):
    """Step s holds rows s * B to (s + 1) * B - 1, on the mesh, whatever was read before: resuming needs the step only."""
    source = CacheSource(task_of(DATA), folder)
    batches = Batches(source, DATA, dict.fromkeys(DATA.features(), sharding()))
    for step in (0, 1, 5, 3):
        batch = batches(step)
        assert batches.ids(step) == (8 * step, 8 * step + 7)
        for i in range(8):
            assert_array_equal(batch["targets"][i], source.row(8 * step + i)["targets"])
    assert batch["inputs"].sharding.is_equivalent_to(sharding(), 2)
    batches.close()


def test_a_process_reads_only_its_rows(m4):
    """A process with two of the four devices that a batch is cut over reads half the rows."""

    class Half:
        """The sharding as a process sees it that holds the devices of rows 4 to 7."""

        def addressable_devices_indices_map(self, shape):
            every = sharding().addressable_devices_indices_map(shape)
            return {d: i for d, i in every.items() if i and i[0].start >= 4}

    class Asked(SyntheticSource):
        """Remembers which rows it was asked for."""

        asked: ClassVar[list[int]] = []

        def row(self, index):
            self.asked.append(index)
            return super().row(index)

    data = TranslationData(batch_size=8, source_length=6, target_length=4)
    batches = Batches(Asked(task_of(data), m4.model), data, dict.fromkeys(data.features(), Half()))  # type: ignore[arg-type]
    batches._read(3)
    assert Asked.asked == [28, 29, 30, 31]


def test_data_that_does_not_fit_is_refused(tmp_path, m4, monkeypatch):
    """Missing caches say how to make them; wrong lengths and small vocabularies are named."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    write_cache(tmp_path / "caches", {"aa": 4}, source_length=6, target_length=4)
    with pytest.raises(DataError, match=r"python -m scripts\.prepare_data nothing"):
        open_source(dataclasses.replace(DATA, cache="nothing"), m4.model)
    with pytest.raises(DataError, match="source_length=9: cache 'toy' was packed with 6"):
        open_source(dataclasses.replace(DATA, source_length=9), m4.model)
    with pytest.raises(DataError, match="target_vocab=10 is too small"):
        open_source(DATA, dataclasses.replace(m4.model, target_vocab=10))
    with pytest.raises(DataError, match="family 'gshard_m4' reads none of the vocabularies of cache 'text'"):
        check_vocabularies(m4.model, {"cache": "text", "vocabulary": 64})


def test_synthetic_rows_are_full_and_reproducible(m4):
    """Every position holds a real token; the same index gives the same row."""
    data = TranslationData(batch_size=8, source_length=6, target_length=4)
    a, b = SyntheticSource(task_of(data), m4.model).row(7), SyntheticSource(task_of(data), m4.model).row(7)
    assert all((np.asarray(a[k]) == b[k]).all() for k in a)
    assert a["inputs"].min() >= 3 and a["inputs"].max() < 64 and (a["targets_segments"] == 1).all()


@pytest.mark.parametrize(
    "name", ["gpt.quickstart", "bert.quickstart_pairs", "bert.base_squad", "bert.minilm_l6", "bert.minilm_brown_tags"]
)
def test_random_rows_are_what_the_data_says(name):
    """Arrays of a random row have the declared shapes; the same index gives the same row, the next one another."""
    e = registry.tiny(registry.load(name))
    source = open_source(e.data, e.model)
    row, again, other = source.row(7), source.row(7), source.row(8)
    assert {k: v.shape for k, v in row.items()} == {k: a.shape for k, a in e.data.features().items()}
    assert all(v.dtype == np.int32 for v in row.values())
    for name, array in row.items():
        assert_array_equal(array, again[name])
    assert (row["tokens"] != other["tokens"]).any()


def test_masking_changes_with_every_epoch_and_never_with_the_reader():
    """The same stored row is masked otherwise at another index; targets are what stood at the slots, at most 15 % of them."""
    e = registry.tiny(registry.load("bert.quickstart"))
    data = dataclasses.replace(e.data, length=40)

    class Same(Source):
        """A source whose rows are all alike."""

        fingerprint = "same"

        def row(self, index):
            tokens = np.arange(3, 43, dtype=np.int32)
            return {"tokens": tokens, "segments": np.ones_like(tokens), "positions": tokens - 3}

    assert isinstance(data, MaskedTextData)
    source = AugmentedSource(task_of(data), Same(), masking.Vocabulary.without_words(64))
    a, again, b = source.row(0), source.row(0), source.row(1)
    assert_array_equal(a["slots"], again["slots"])
    assert (a["slots"] != b["slots"]).any()
    assert len(a["slots"]) == data.predictions == 6 and (a["targets"] == a["slots"] + 3).all()
    kept = np.setdiff1d(np.arange(40), a["slots"])
    assert_array_equal(a["tokens"][kept], kept + 3)
    noisy = dataclasses.replace(registry.load("bert.minilm_debian_taught_5k").data, masked=0.5)
    assert isinstance(noisy, LabelledData)
    labelled = AugmentedSource(task_of(noisy), Same(), masking.Vocabulary.without_words(64))
    c, d = labelled.row(0), labelled.row(1)
    assert (c["tokens"] != d["tokens"]).any() and 5 < np.sum(c["tokens"] == 1) < 35
    assert_array_equal(c["tokens"], labelled.row(0)["tokens"])
    other = AugmentedSource(task_of(dataclasses.replace(noisy, masked=0.4)), Same(), labelled.assets)
    assert labelled.fingerprint != other.fingerprint


@pytest.mark.integration
def test_workers_change_nothing(m4):
    """Rows that two processes read and augment ahead of time are the rows that the trainer's own thread reads, also after a
    resume in the middle."""
    e = registry.tiny(registry.load("bert.quickstart"))
    source = open_source(e.data, e.model)
    shardings = dict.fromkeys(e.data.features())
    alone, helped = Batches(source, e.data, shardings), Batches(source, e.data, shardings, workers=2)
    try:
        for step in (0, 1, 7, 8):  # 7: where a resumed run begins
            want, have = alone(step), helped(step)
            for name, array in want.items():
                assert_array_equal(array, have[name], err_msg=f"step {step}, {name}")
    finally:
        alone.close()
        helped.close()


@pytest.mark.integration
def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    """Its parent is killed, and cannot tell it: the pipe that the worker alone has open is closed all the same."""
    os.mkfifo(tmp_path / "alive")
    command = [sys.executable, "-m", "tests.data.reading.orphan", str(tmp_path / "alive")]
    with subprocess.Popen(command) as parent, (tmp_path / "alive").open() as alive:
        assert alive.readline() == "working\n"
        parent.kill()
        parent.wait()
        ended, _, _ = select.select([alive], [], [], 60)
        assert ended and alive.read() == "", "the worker is still there"


def test_records_keep_their_dtypes():
    """A stored record is its features' bytes one after the other, whatever their dtypes."""
    stored = {
        "image": Feature((2, 3), ("height", "width"), dtype="float32"),
        "bytes": Feature((3,), (None,), dtype="uint8"),
        "label": Feature((), (), fill=-1),
    }
    row = {"image": np.arange(6, dtype="<f4").reshape(2, 3), "bytes": np.array([1, 2, 255], np.uint8), "label": np.int32(7)}
    record = np.concatenate([np.asarray(row[name]).reshape(-1).view(np.uint8) for name in stored])
    arrays = unpack(record, stored)
    assert arrays["image"].dtype == np.float32 and arrays["label"].shape == ()
    for name, array in row.items():
        assert_array_equal(arrays[name], array)
    with pytest.raises(ValueError, match="a record of 30 bytes, where the features"):
        unpack(record[:-1], stored)
