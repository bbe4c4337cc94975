"""Prepared caches as SeqIO tasks; this imports TensorFlow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.kinds import config_classes
from data.reading.examples import StoredExamples
from data.reading.packing import write_rows
from data.task import DataError
from data.vocabularies import tokenizers
from tests.helpers.caches import write_text_cache, write_translation_cache
from tests.helpers.chats import write_chat_cache
from tests.helpers.pictures import write_picture_cache

pytestmark = pytest.mark.integration

CONFIGS = config_classes()
FIELDS = {
    "toy": ("TranslationData", {"source_length": 16, "target_length": 16}),
    "text": ("TextData", {"length": 16}),
    "chat-1": ("ChatData", {"length": 64}),
    "pictures": ("ImageData", {}),
}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """The folder of four prepared caches, all registered."""
    from data.reading import seqio_bridge

    root = tmp_path_factory.mktemp("data")
    write_translation_cache(root / "caches", {"de": 4, "zh-Hans": 32})
    write_text_cache(root / "caches" / "text", tokenizers.train_bpe, 300, 16)
    (root / "caches" / "chat-1").mkdir()
    write_chat_cache(root / "caches" / "chat-1")
    write_picture_cache(root, {"ant": 5, "bee": 5}, name="pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDZOO_DATA", str(root))
        seqio_bridge.register()
    return root / "caches"


def read(name: str, **options) -> list[dict[str, np.ndarray]]:
    import seqio

    return list(seqio.get_mixture_or_task(name).get_dataset(None, "train", **options).as_numpy_iterator())


@pytest.mark.parametrize("cache", FIELDS)
def test_rows_are_those_of_our_own_reader(cache, caches):
    """Every part, row for row, with the arrays' types and shapes; pictures' files have any length."""
    name, fields = FIELDS[cache]
    stored = CONFIGS[name](batch_size=1, **fields).stored()
    for file in sorted((caches / cache / "train").iterdir()):
        part = f"{cache}.{file.name.partition('.')[0]}".replace("-", "_")
        rows = read(part, shuffle=False)
        ours = StoredExamples(file, stored, lambda row: row, len(rows))
        assert len(rows) == len(ours._records) > 0
        for row, our in zip(rows, ours, strict=True):
            assert row.keys() == our.keys()
            assert all(row[key].dtype == our[key].dtype and np.array_equal(row[key], our[key]) for key in our)


def test_a_mixture_draws_parts_as_training_does(caches):
    """At rates n ** (1/5), the default of translations: of 32 times the pairs twice as often; tokens have their vocabularies."""
    import seqio

    mixture: Any = seqio.get_mixture_or_task("toy")
    rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
    assert rates["toy.zh_Hans"] / rates["toy.de"] == pytest.approx(8 ** (1 / 5))
    features = mixture.output_features
    assert {features[side].vocabulary.vocab_size for side in ("inputs", "targets")} == {512}
    assert features["inputs_segments"].rank == 1 and not features["inputs"].add_eos
    assert seqio.get_mixture_or_task("text").output_features["tokens"].vocabulary.vocab_size == 300
    rows = mixture.get_dataset(None, "train", seed=0).take(40).as_numpy_iterator()
    assert 5 < sum(row["inputs"][0] >= 1000 for row in rows) < 40


def test_rows_are_shuffled_and_sharded_by_index(caches):
    """Two shards hold every row once; a seed decides the order."""
    import seqio

    def first_tokens(**options) -> list[int]:
        return [int(row["inputs"][0]) for row in read("toy.zh_Hans", **options)]

    whole = first_tokens(shuffle=False)
    halves = [first_tokens(shuffle=False, shard_info=seqio.ShardInfo(i, 2)) for i in range(2)]
    assert halves == [whole[::2], whole[1::2]]
    shuffled = first_tokens(shuffle=True, seed=1)
    assert sorted(shuffled) == sorted(whole) and shuffled != whole
    assert shuffled == first_tokens(shuffle=True, seed=1) != first_tokens(shuffle=True, seed=2)


def test_flags_that_no_manifest_has_are_read_off_the_rows(tmp_path, monkeypatch):
    """Labels that are spans have two numbers in each slot."""
    import seqio

    from data.reading import seqio_bridge

    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    folder: Path = tmp_path / "caches" / "spans"
    (folder / "train").mkdir(parents=True)
    write_rows(folder / "train" / "all.array_record", [np.arange(4 * 8 + 2 + 2 * 2, dtype=np.int32)])
    manifest = {"kind": "labelled", "length": 8, "slots": 2, "vocabulary": 64, "parts": {"all": {"examples": 1, "rows": 1}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seqio_bridge.register("spans")
    assert seqio.get_mixture_or_task("spans").output_features["targets"].rank == 2
    (row,) = read("spans.all")
    assert row["targets"].tolist() == [[34, 35], [36, 37]]


def test_a_cache_that_is_not_there_or_does_not_fit_is_refused(caches, tmp_path, monkeypatch):
    """Names have their nearest; a manifest that says another length than the rows have is refused in a line."""
    from data.reading import seqio_bridge

    monkeypatch.setenv("SHARDZOO_DATA", str(caches.parent))
    with pytest.raises(DataError, match=r"did you mean 'pictures'\?"):
        seqio_bridge.register("picturs")
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    folder: Path = tmp_path / "caches" / "text"
    write_text_cache(folder, tokenizers.train_bpe, 300, 16)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"length": 17}))
    with pytest.raises(DataError, match="no configuration of kind 'text' has rows as the cache holds"):
        seqio_bridge.register("text")
