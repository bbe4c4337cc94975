"""Caches of clicks: splits in time, negatives, what a model reads, and how it is scored."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.clicks import latent, metrics
from data.clicks.blocks import expanded, record_of
from data.clicks.caches import ENTRIES, ClickCache, LatentCache
from data.clicks.catalogue import ClickCatalogue
from data.clicks.config import BLOCK, ClickData
from data.clicks.ids import Table, tables_of
from data.clicks.interactions import Drawn, InteractionLog, Interactions
from data.clicks.log import Row, ends
from data.clicks.negatives import Sampler
from data.clicks.task import ClickTask
from data.prepare import prepare
from data.reading.caches import examples, read_manifest
from data.reading.examples import open_source, unpack
from data.task import DataError, HeldOutExamples
from tests.helpers.clicks import stored_rows, write_csv

SMALL = LatentCache(users=30, items=20, interactions=2000, factors=2, contexts=3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """A table of a model."""

    rows: int
    hotness: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding:
    """The configuration of a model that embeds tables."""

    tables: tuple[Rows, ...]
    dense_features: int
    family: str = "toy"


def data_of(manifest: dict[str, Any], cache: str = "clicks") -> ClickData:
    """The data of a cache."""
    return ClickData(batch_size=4, cache=cache, hotness=tuple(t.hotness for t in tables_of(manifest)), dense=manifest["dense"])


def model_of(manifest: dict[str, Any]) -> Any:
    """A model that fits a cache."""
    tables = tuple(Rows(rows=table.rows, hotness=table.hotness) for table in tables_of(manifest))
    return Embedding(tables=tables, dense_features=manifest["dense"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A small cache of made-up interactions."""
    return prepare("clicks", SMALL, data_dir=tmp_path_factory.mktemp("data"), progress=lambda line: None)


# --- splits ---


def test_splits_follow_each_other_in_time():
    """Interactions of one time are together, in the later split."""
    times = np.array([0, 1, 2, 3, 4, 5, 5, 5, 8, 9.0])
    assert ends(10, 0.2, 0.2) == {"train": range(0, 6), "validation": range(6, 8), "test": range(8, 10)}
    assert ends(10, 0.2, 0.2, times)["train"] == range(0, 5)
    parts = ends(1000, 0.1, 0.2, np.sort(np.random.default_rng(0).integers(0, 200, 1000)).astype(float))
    assert parts["train"].stop == parts["validation"].start and parts["validation"].stop == parts["test"].start
    with pytest.raises(DataError, match="validation=0: expected a share, more than 0 and less than 1"):
        ends(10, 0, 0.1)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_held_out_is_known_in_training(seed):
    """Whatever the order of the log: every training time is before every held-out one, and a training row is the same without
    what comes later: its ids, its numbers, its negatives."""
    rng = np.random.default_rng(seed)
    n = 400
    users, items, times = rng.integers(0, 20, n), rng.integers(0, 30, n), np.sort(rng.integers(0, 150, n)).astype(float)
    names = [[str(i) for i in range(size)] for size in (20, 30)]

    def log() -> InteractionLog:
        data = Interactions(
            users=users.copy(), items=items.copy(), user_names=names[0], item_names=names[1], times=times, contexts={}
        )
        return InteractionLog(data, hashed=0, drawn=Drawn(negatives=3, held_negatives=5), validation=0.2, test=0.2)

    whole = log()
    parts = whole.parts
    for one, other in itertools.pairwise(("train", "validation", "test")):
        assert times[parts[one]].max() < times[parts[other]].min()
    trained = parts["train"].stop
    items[trained:] = rng.integers(0, 30, n - trained)
    users[trained:] = rng.integers(0, 20, n - trained)
    other = log()
    assert [record_of([row]) for row in whole.rows("train")] == [record_of([row]) for row in other.rows("train")]
    assert [record_of([row]) for row in whole.rows("test")] != [record_of([row]) for row in other.rows("test")]
    assert list(whole.items()) == list(other.items()) and list(whole.users()) == list(other.users())


def test_numbers_count_what_came_before():
    """Training rows those of their own past; held-out rows all of training."""
    users, items = np.array([0, 0, 1, 0, 1, 2, 0, 3]), np.array([0, 1, 0, 0, 1, 1, 0, 2])
    data = Interactions(
        users=users, items=items, user_names=list("abcd"), item_names=list("xyz"), labels=np.array([0, 1] * 4, np.float32)
    )
    log = InteractionLog(data, hashed=0, drawn=Drawn(), validation=0.125, test=0.125)
    before = [np.expm1(row.dense).round().astype(int).tolist() for split in log.sizes for row in log.rows(split)]
    assert before == [[0, 0], [1, 0], [0, 1], [2, 2], [1, 1], [0, 2], [3, 3], [0, 0]]
    # The last user and item are not in training: their ids are those of what is unseen.
    *_, last = log.rows("test")
    assert list(last.ids) == [(0,), (0,)]
    assert [table.rows for table in log.tables] == [4, 3]


# --- negatives ---


def test_draws_are_a_function_of_seed_and_index():
    """In any order; another seed, split or index gives others."""
    counts = np.arange(50)
    sampler, again = Sampler(counts, 0.75, 1), Sampler(counts, 0.75, 1)
    drawn = {(split, i): sampler(split, i, 5, {49}) for split in range(2) for i in range(20)}
    assert {key: again(*key, 5, {49}) for key in reversed(drawn)} == drawn
    assert len({tuple(some) for some in drawn.values()}) == len(drawn)
    assert Sampler(counts, 0.75, 2)(0, 0, 5, {49}) != drawn[0, 0]


def test_no_taken_item_is_drawn_and_none_twice():
    """However many are taken: what is left is drawn whole."""
    counts = np.array([1] * 10 + [1000] * 3 + [0])
    sampler = Sampler(counts, 1.0, 0)
    for index in range(50):
        drawn = sampler(0, index, 4, {10, 11, 12, 3})
        assert len({*drawn}) == 4 and not {*drawn} & {3, 10, 11, 12, 13}
    assert sorted(sampler(0, 0, 20, {0, 1})) == [*range(2, 13)]
    assert sampler(0, 0, 4, set(range(13))) == []


@pytest.mark.parametrize("power", [0.0, 0.75])
def test_items_come_in_proportion_to_their_power(power):
    """Frequencies of 20,000 draws are those of the counts' power, within five standard deviations."""
    counts = np.array([1, 4, 16, 64, 256, 0])
    sampler = Sampler(counts, power, 3)
    drawn = np.bincount([sampler(0, i, 1, ())[0] for i in range(20_000)], minlength=6) / 20_000
    chances = np.where(counts > 0, np.maximum(counts, 1.0) ** power, 0) / (counts[:5].astype(float) ** power).sum()
    assert (abs(drawn - chances) <= 5 * np.sqrt(chances * (1 - chances) / 20_000)).all()


def test_a_table_without_labels_gets_negatives(tmp_path):
    """Each interaction with so many items that the user has not seen; held-out ones are ranked among more."""
    rng = np.random.default_rng(0)
    rows = [{"user": f"u{rng.integers(12)}", "item": f"i{rng.integers(40)}", "time": 1e9 + 60 * i} for i in range(300)]
    settings = ClickCache(source=f"file:{write_csv(tmp_path / 'a.csv', rows)}", negatives=3, held_negatives=15)
    folder = prepare("own", settings, data_dir=tmp_path, progress=lambda line: None)
    held = list(examples(folder, "test"))
    seen: dict[str, set[str]] = {}
    for row in rows:
        seen.setdefault(row["user"], set()).add(row["item"])
    groups = [list(group) for _, group in itertools.groupby(held, lambda e: e["group"])]
    assert len(groups) == 30
    for number, group in enumerate(groups, 270):
        assert [e["label"] for e in group] == [1] + [0] * 15
        assert (group[0]["user"], group[0]["item"]) == (rows[number]["user"], rows[number]["item"])
        assert not {e["item"] for e in group[1:]} & seen[group[0]["user"]]
        assert [e.get("weight", 1) for e in group] == [1] + [3 / 15] * 15
    train = stored_rows(folder)["train"]
    catalogue = {(row["by_table"][0][0], row["by_table"][1][0]) for row in train if row["label"] == 1}
    assert len(train) == 4 * 255 == read_manifest(folder)["trained"] and sum(row["label"] for row in train) == 255
    assert not catalogue & {(row["by_table"][0][0], row["by_table"][1][0]) for row in train if row["label"] == 0}
    manifest = read_manifest(folder)
    task = ClickTask(data_of(manifest))
    scores = task.scores({}, task.held_out(folder, folder, "test", 0))
    assert {"popularity/ndcg", "factors/hit_rate", "auc"} <= scores.keys() and "bayes/auc" not in scores
    # Equal scores: one of 16 is among the first ten by chance; and a loss that counts the negatives as in training.
    assert_allclose(scores["hit_rate"], 10 / 16)
    assert_allclose(scores["log_loss"], math.log(2))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert_allclose(scores["normalized_entropy"], math.log(2) / entropy)


# --- made-up interactions ---


def test_labels_are_drawn_with_the_probabilities_that_are_kept():
    """In bins of the probability, the share of labels is within five standard deviations of its mean."""
    data = latent.interactions(dataclasses.replace(SMALL, interactions=50_000))
    assert data.probabilities is not None and data.labels is not None
    bins = (data.probabilities * 10).astype(int)
    for b in range(10):
        p, y = data.probabilities[bins == b], data.labels[bins == b]
        assert abs(y.mean() - p.mean()) < 5 * math.sqrt((p * (1 - p)).mean() / len(p))
    # Five terms of variance 1, times the strength.
    logits = np.log(data.probabilities) - np.log1p(-data.probabilities)
    assert 1.0 < logits.std() < 3.0
    again = latent.interactions(dataclasses.replace(SMALL, interactions=50_000))
    assert (again.labels == data.labels).all() and (again.items == data.items).all()


def test_the_models_own_probabilities_are_held_out_with_the_rows(cache):
    """And score better than the baselines; training rows have no such field."""
    manifest = read_manifest(cache)
    task = ClickTask(data_of(manifest))
    held = task.held_out(cache, cache, "test", 0)
    data = latent.interactions(SMALL)
    assert data.probabilities is not None
    assert_allclose(metrics.probabilities(held.extra["bayes"]), data.probabilities[-200:], rtol=1e-6)
    scores = task.scores({}, held)
    assert scores["bayes/auc"] > max(scores["factors/auc"], scores["popularity/auc"]) > 0.5
    assert scores["bayes/log_loss"] < min(scores["factors/log_loss"], scores["popularity/log_loss"])
    assert_allclose(scores["bayes/auc"], metrics.auc(held.extra["label"], data.probabilities[-200:]))


@pytest.mark.parametrize("field", ["users", "items", "interactions", "factors", "contexts"])
def test_sizes_of_nothing_are_refused(field):
    """By the name of the setting."""
    with pytest.raises(DataError, match=f"{field}=0: must be at least 1"):
        latent.interactions(dataclasses.replace(SMALL, **{field: 0}))


# --- what a model reads ---


def block(counts: list[list[int]], ids: list[int]) -> dict[str, np.ndarray]:
    """Stored rows with these ids."""
    return {
        "dense": np.zeros((len(counts), 2), np.float32),
        "label": np.ones(len(counts), np.float32),
        "counts": np.array(counts, np.uint8),
        "ids": np.array(ids, np.int32),
    }


def test_ids_are_put_into_the_columns_of_their_tables():
    """Three tables have 2, 3 and 1 columns; empty places have weight 0."""
    made = expanded(block([[1, 3, 0], [0, 0, 0], [2, 1, 1]], [7, 4, 5, 6, 1, 2, 3, 0]), (2, 3, 1), (8, 7, 1))
    assert made["ids"].tolist() == [[7, 0, 4, 5, 6, 0], [0] * 6, [1, 2, 3, 0, 0, 0]]
    assert made["weights"].tolist() == [[1, 0, 1, 1, 1, 0], [0] * 6, [1, 1, 1, 0, 0, 1]]
    assert made["ids"].dtype == np.int32 and made["weights"].dtype == np.float32


@pytest.mark.parametrize(
    ("counts", "ids", "message"),
    [
        ([1, 3, 0], [7, 4, 9, 6], "id 9 is outside table 1 of 7 rows"),
        ([1, 3, 0], [-1, 4, 5, 6], "id -1 is outside table 0 of 8 rows"),
        ([3, 0, 0], [1, 2, 3], r"up to \[3, 0, 0\] ids of the tables, which have \[2, 3, 1\] columns; 3 for 3"),
        ([1, 1, 0], [1, 2, 3], "3 for 2$"),
    ],
)
def test_ids_outside_a_table_are_refused(counts, ids, message):
    """In a line that names the table, the id and the rows."""
    with pytest.raises(DataError, match=message):
        expanded(block([counts], ids), (2, 3, 1), (8, 7, 1))


@pytest.mark.parametrize("number", [1, 3, BLOCK])
def test_records_hold_filled_places_alone(number):
    """A block is as long as its ids, and comes back as it was; rows that are missing have label -1 and no ids."""
    data = ClickData(batch_size=1, hotness=(1, 4), dense=3)
    words = [(), (5,), (5, 6, 7, 8)]
    rows = [Row(np.array([1, 2, n], np.float32), ((n,), words[n % 3]), n % 2) for n in range(number)]
    record = record_of(rows)
    filled = sum(1 + len(row.ids[1]) for row in rows)
    assert len(record) == BLOCK * (4 * 3 + 4 + 2) + 4 * filled
    made = expanded(unpack(np.frombuffer(record, np.uint8), data.stored()), data.hotness)
    assert made["label"].tolist() == [row.label for row in rows] + [-1] * (BLOCK - number)
    assert made["dense"][:number].tolist() == [row.dense.tolist() for row in rows]
    assert made["weights"].sum() == filled and not made["weights"][number:].any()
    assert made["ids"][:, 0].tolist() == [*range(number)] + [0] * (BLOCK - number)


def test_training_rows_come_as_features(cache, monkeypatch):
    """Shapes and types are those of the configuration; a held-out row is made the same way."""
    monkeypatch.setenv("SHARDZOO_DATA", str(cache.parent.parent))
    manifest = read_manifest(cache)
    data = data_of(manifest)
    source = open_source(data, model_of(manifest))
    row = source.row(3)
    held = ClickTask(data).held_out(cache, cache, "validation", 5)
    for one in (row, *held.rows):
        assert {k: (x.shape, str(x.dtype)) for k, x in one.items()} == {k: (f.shape, f.dtype) for k, f in data.features().items()}
    assert held.count == 5 and held.needs_outputs
    # An epoch has every training row once, and the rows that fill up its last block.
    epoch = [source.row(i) for i in range(BLOCK * manifest["parts"]["all"]["rows"])]
    read = sorted((*row["ids"].tolist(), float(row["label"])) for row in epoch if row["label"] >= 0)
    stored = stored_rows(cache)["train"]
    assert read == sorted((*row["ids"].tolist(), float(row["label"])) for row in stored)
    assert len(read) == manifest["trained"] == 1700 and len(epoch) == 1728
    assert ClickTask(data).rows(manifest) == 1700


def test_a_model_that_does_not_fit_is_refused(cache):
    """In one line with the table and both numbers; a table may be larger than the cache's."""
    manifest = read_manifest(cache)
    model, task = model_of(manifest), ClickTask(data_of(manifest))
    task.check(manifest, model)
    users, items, contexts = model.tables
    larger = dataclasses.replace(model, tables=(Rows(rows=99), items, contexts))
    task.check(manifest, larger)
    wrong: list[tuple[Any, str]] = [
        (
            dataclasses.replace(model, tables=(Rows(rows=30), items, contexts)),
            r"model.tables\[0\].rows=30: table 'user' of cache 'clicks' has 31 rows",
        ),
        (
            dataclasses.replace(model, tables=(users, items, Rows(rows=4, hotness=2))),
            r"model.tables\[2\].hotness=2: table 'context' of cache 'clicks' has up to 1 ids a row",
        ),
        (
            dataclasses.replace(model, tables=(users, items)),
            r"model.tables: the model has 2, cache 'clicks' has 3 \(user, item, context\)",
        ),
        (dataclasses.replace(model, dense_features=13), "model.dense_features=13: cache 'clicks' has 1"),
        (Rows(rows=1), "embeds no tables of ids"),
    ]
    object.__setattr__(wrong[-1][0], "family", "toy")
    for other, message in wrong:
        with pytest.raises(DataError, match=message):
            task.check(manifest, other)
    narrow = ClickTask(dataclasses.replace(task.data, hotness=(1, 1)))
    with pytest.raises(DataError, match=r"data.hotness=\(1, 1\): cache 'clicks' has \(1, 1, 1\)"):
        narrow.check(manifest, model)
    assert narrow.decided(manifest) == {"hotness": (1, 1, 1), "dense": 1}
    assert task.sizes(manifest)["tables"] == [{"rows": n, "hotness": 1} for n in (31, 21, 4)]


def test_random_rows_fit_the_model():
    """Ids are below the rows of their tables, and every row has one at least of each."""
    model: Any = Embedding(tables=(Rows(rows=3), Rows(rows=50, hotness=4)), dense_features=2)
    data = ClickData(batch_size=4, hotness=(1, 4), dense=2)
    source = open_source(data, model)
    rows = [source.row(i) for i in range(200)]
    for row in rows:
        assert row["ids"][0] < 3 and (row["ids"][1:] < 50).all() and row["weights"][[0, 1]].all()
    assert 0.2 < np.mean([row["label"] for row in rows]) < 0.8
    assert {row["weights"].sum() for row in rows} == {2, 3, 4, 5}
    assert (source.row(7)["ids"] == rows[7]["ids"]).all()
    with pytest.raises(DataError, match=r"model.tables\[1\].hotness=4: table 'table_1' of the data has up to 3 ids a row"):
        open_source(dataclasses.replace(data, hotness=(1, 3)), model).row(0)


@pytest.mark.parametrize(
    ("fields", "message"), [({"hotness": (1, 256)}, "256 is not from 1 to 255"), ({"hotness": ()}, "a table")]
)
def test_columns_that_cannot_be_stored_are_refused(fields, message):
    """A row has a table at least, and of each no more ids than a byte counts."""
    with pytest.raises(ValueError, match=message):
        ClickData(**({"batch_size": 1, "hotness": (1,), "dense": 1} | fields))


# --- scores ---


def test_scores_are_those_of_the_models_outputs(cache):
    """Outputs beyond the rows are padding; without any there are the names of the same scores."""
    manifest = read_manifest(cache)
    task = ClickTask(data_of(manifest))
    held = task.held_out(cache, cache, "test", 0)
    logits = np.random.default_rng(0).normal(size=256).astype(np.float32)
    scores = task.scores({}, held, list(logits))
    labels = held.extra["label"]
    assert scores["auc"] == metrics.auc(labels, logits[:200])
    assert scores["log_loss"] == metrics.log_loss(labels, logits[:200])
    assert scores.keys() == task.scores({}, held).keys()
    for name in scores:
        last = name.rsplit("/", 1)[-1]
        assert last in task.directions and last in task.meanings
    assert {"popularity", "factors", "bayes"} <= task.meanings.keys()
    mine = HeldOutExamples(held.rows, 200, {"label": labels})
    assert task.scores({}, mine, list(logits)).keys() == {"auc", "log_loss", "normalized_entropy"}


def test_a_split_of_one_class_is_refused_before_training(cache):
    """With the limit that makes it one."""
    manifest = read_manifest(cache)
    with pytest.raises(DataError, match=r"test of cache 'clicks': all 1 rows have label [01]: .* \(eval.limit=1\)"):
        ClickTask(data_of(manifest)).held_out(cache, cache, "test", 1)


# --- lists for ranking ---


def test_users_and_items_are_listed_for_ranking(cache):
    """With the ids of the training rows, and what the user has seen; the row of a pair is that of a later interaction."""
    data = latent.interactions(SMALL)
    manifest = read_manifest(cache)
    catalogue = ClickCatalogue.of(cache, data_of(manifest), "7")
    trained = slice(0, 1700)
    seen = {str(i) for i in data.items[trained][data.users[trained] == 7]}
    assert {catalogue.items[place]["item"] for place in catalogue.user["seen"]} == seen
    left = {catalogue.items[place]["item"] for place in catalogue.candidates(seen=False)}
    assert left == {str(i) for i in {*data.items[trained].tolist()}} - seen
    assert len(catalogue.candidates(seen=True)) == len(catalogue.items) == 20
    log = InteractionLog(data, hashed=0, drawn=Drawn(), validation=SMALL.validation, test=SMALL.test)
    ids = {str(data.items[i]): row.ids for i, row in enumerate(log.rows("train")) if data.users[i] == 7}
    places = catalogue.candidates(seen=True)
    row = {}
    for place, row in zip(places, catalogue.rows(places), strict=True):
        if (item := catalogue.items[place]["item"]) in ids:
            assert row["ids"][:2].tolist() == [*ids[item][0], *ids[item][1]]
        assert row["weights"].tolist() == [1, 1, 1]
    last = int(np.flatnonzero(data.users[trained] == 7)[-1])
    assert row["ids"][2] == 1 + data.contexts["context"][last]
    assert_allclose(row["dense"], [data.dense["amount"][last]])


def test_an_unknown_user_is_one_line(cache):
    """With the nearest name, or the first ones."""
    manifest = read_manifest(cache)
    with pytest.raises(DataError, match=r"^no user 'nobody' in the training data of cache 'clicks'; users are .*, \.\.\.$"):
        ClickCatalogue.of(cache, data_of(manifest), "nobody")
    with pytest.raises(DataError, match=r"^no user '77' in the training data of cache 'clicks'; did you mean '7'\?$"):
        ClickCatalogue.of(cache, data_of(manifest), "77")


def test_registered_caches_are_of_the_kind():
    """Their settings are LatentCache's, and each has rows for its users and items."""
    assert ENTRIES and all(isinstance(entry, LatentCache) for entry in ENTRIES.values())
    assert Table(name="x", rows=2).hotness == 1
