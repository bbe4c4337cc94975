"""Sequences: made-up ones follow their rules, rows hold a user's history alone, and rankings are those written out."""

import dataclasses
import json
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.clicks import metrics
from data.clicks.caches import ClickCache
from data.clicks.interactions import Interactions
from data.clicks.log import SPLITS
from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.reading.examples import open_source
from data.sequences import latent
from data.sequences.caches import ENTRIES, LatentSequenceCache, SequenceCache
from data.sequences.catalogue import SequenceCatalogue
from data.sequences.config import SequenceData
from data.sequences.log import SequenceLog, barred
from data.sequences.maker import Transitions, rank
from data.sequences.task import SequenceTask
from data.task import DataError, RanksItems
from tests.helpers.clicks import criteo_lines, ratings, write_csv, write_movielens

SMALL = LatentSequenceCache(users=30, items=12, interactions=25, length=8, validation=0.1, test=0.2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    target: str = "item"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reads:
    """A model as the task knows it."""

    family: ClassVar[str] = "toy"
    items: int = 13
    length: int = 8
    objective: Objective = Objective()

    def tiny(self) -> "Reads":
        return self


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return prepare("made", SMALL, data_dir=tmp_path_factory.mktemp("sequences"), progress=quiet)


def task_of(target: Any = "item", **fields: Any) -> SequenceTask:
    return SequenceTask(
        SequenceData(**({"batch_size": 4, "length": 8, "target": target, "negatives": 5, "cache": "made"} | fields))
    )


# --- made-up sequences ---


def per_user(data: Interactions) -> list[np.ndarray]:
    return [np.flatnonzero(data.users == user) for user in range(len(data.user_names))]


def test_chained_items_follow_a_rule():
    """All of them: every item has at most four successors, with the chances that are documented, and ranks as likely as these."""
    s = dataclasses.replace(SMALL, users=200, interactions=60, chained=1.0)
    data, ranks = latent.interactions(s)
    counts = np.zeros((s.items, s.items))
    for own in per_user(data):
        np.add.at(counts, (data.items[own[:-1]], data.items[own[1:]]), 1)
    shares = -np.sort(-counts / counts.sum(axis=1, keepdims=True), axis=1)
    assert (shares[:, 4:] == 0).all() and not counts.diagonal().any()
    assert_allclose(shares[:, :4].mean(axis=0), latent.CHANCES, atol=0.02)
    later = np.concatenate([own[1:] for own in per_user(data)])
    assert_allclose([np.mean(ranks[later] == n) for n in (1, 2, 3, 4)], latent.CHANCES, atol=0.02)


def test_items_of_taste_have_the_same_rank_always():
    """Without a rule an item's rank is a matter of the user: the ranks of a user's items are those of one order."""
    data, ranks = latent.interactions(dataclasses.replace(SMALL, chained=0.0))
    for own in per_user(data):
        pairs = {(int(i), int(r)) for i, r in zip(data.items[own], ranks[own], strict=True)}
        assert len({i for i, _ in pairs}) == len(pairs) == len({r for _, r in pairs})
    assert ranks.min() == 1 and ranks.mean() < (1 + SMALL.items) / 2


def test_made_up_sequences_are_in_order_and_labelled_with_their_probabilities():
    data, _ = latent.interactions(dataclasses.replace(SMALL, users=300))
    again, _ = latent.interactions(dataclasses.replace(SMALL, users=300))
    assert data.times is not None and data.labels is not None and data.probabilities is not None
    assert (np.diff(data.times) >= 0).all() and (again.items == data.items).all()
    assert [len(own) for own in per_user(data)] == [SMALL.interactions] * 300
    for low in (0.0, 0.25, 0.5, 0.75):
        some = (data.probabilities >= low) & (data.probabilities < low + 0.25)
        assert_allclose(data.labels[some].mean(), data.probabilities[some].mean(), atol=0.03)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(items=4), "items=4: must be at least 5"),
        (dict(users=0), "users=0: must be"),
        (dict(chained=1.5), "chained=1.5: expected"),
    ],
)
def test_settings_of_nothing_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        latent.interactions(dataclasses.replace(SMALL, **fields))


# --- rows ---


def log_of(users: list[int], items: list[int], length: int = 4, split: str = "last", **more: Any) -> SequenceLog:
    made = Interactions(
        users=np.array(users),
        items=np.array(items),
        user_names=[f"u{n}" for n in range(max(users) + 1)],
        item_names=[f"i{n}" for n in range(max(items) + 1)],
        times=np.arange(len(users)) * 10.0 + 1e9,
        **more,
    )
    return SequenceLog(made, length=length, split=split, validation=0.2, test=0.2)


def test_the_last_interactions_of_each_user_are_held_out():
    """The last for the test and the one before for validation, of users who have a history; rows are the latest before them."""
    log = log_of([0, 1, 0, 0, 1, 0, 0, 0, 0], [5, 6, 7, 8, 6, 5, 9, 7, 8], labels=np.array([1, 0, 1, 0, 1, 1, 1, 0, 1.0]))
    assert [row.tolist() for row in log.training()] == [[2, 3, 5, 6], [1, 4]]  # user 0's first one would be alone
    (validation,), (test,) = log.held_out("validation"), log.held_out("test")
    assert (validation.number, validation.before.tolist()) == (7, [3, 5, 6])
    assert (test.number, test.before.tolist()) == (8, [5, 6, 7])
    row = log.row(np.append(test.before, test.number), len(test.before))
    assert row["items"].tolist() == [log.ids.row(f"i{n}") for n in (5, 9, 7, 8)]
    assert row["actions"].tolist() == [2, 2, 1, 2] and row["times"].tolist() == [0, 10, 20, 30] and row["start"] == 3
    short = log.row(np.array([0, 2]), 0)
    assert short["actions"].tolist() == [2, 2, 0, 0] and short["items"].tolist()[2:] == [0, 0]


def test_the_last_interactions_of_all_are_held_out_by_time():
    """Items that training lacks have row 0; an interaction without one before it has no row."""
    log = log_of([0, 0, 1, 1, 0, 0, 1, 2, 0, 2], [1, 2, 3, 1, 2, 3, 4, 1, 5, 2], split="time")
    assert log.part.tolist() == [0] * 6 + [1] * 2 + [2] * 2
    assert [row.number for row in log.held_out("validation")] == [6] and [row.number for row in log.held_out("test")] == [8, 9]
    assert log.items.tolist() == [1, 2, 3, 1, 2, 3, 0, 1, 0, 2] and log.ids.size == 4


@pytest.mark.parametrize("split", ["time", "last"])
def test_rows_know_the_past_of_their_user_alone(split):
    """Training rows have interactions of training, each once; held-out rows the latest of the user before the one that is
    predicted."""
    data, _ = latent.interactions(SMALL)
    log = SequenceLog(data, length=8, split=split, validation=0.1, test=0.2)
    rows = list(log.training())
    numbers = np.concatenate(rows)
    assert len(set(numbers.tolist())) == len(numbers) > 0.9 * len(log.trained) and (log.part[numbers] == 0).all()
    for row in rows:
        assert len(set(data.users[row].tolist())) == 1 and (np.diff(row) > 0).all()
    for name in ("validation", "test"):
        held = log.held_out(name)
        assert {row.number for row in held} <= set(np.flatnonzero(log.part == SPLITS.index(name)).tolist())
        for row in held:
            own = np.flatnonzero(data.users == data.users[row.number])
            assert row.before.tolist() == own[own < row.number][-7:].tolist() != []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(split="last", users=[0, 0, 1], items=[1, 2, 1]), "validation: no interaction in it; .*no user has 3"),
        (dict(split="first", users=[0, 0], items=[1, 2]), "split='first': expected 'time' or 'last'"),
        (dict(length=1, users=[0, 0], items=[1, 2]), "length=1: must be at least 2"),
    ],
)
def test_logs_that_cannot_be_divided_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        log_of(**arguments)


# --- what a model reads ---


def test_training_rows_come_with_negatives_by_their_index(cache, monkeypatch):
    """They are items of the table, a function of seed and index, and rows have the shapes of the configuration."""
    monkeypatch.setenv("SHARDZOO_DATA", str(cache.parent.parent))
    data = task_of(negatives=40).data
    source, again = (open_source(data, Reads()) for _ in range(2))
    rows = [source.row(n) for n in range(60)]
    for row in rows:
        assert {k: (x.shape, str(x.dtype)) for k, x in row.items()} == {k: (f.shape, f.dtype) for k, f in data.features().items()}
    drawn = np.stack([row["negatives"] for row in rows])
    assert drawn.min() == 1 and drawn.max() == 12 and len({x.tobytes() for x in drawn}) == 60
    assert (again.row(37)["negatives"] == drawn[37]).all()
    other = open_source(dataclasses.replace(data, seed=1), Reads())
    assert (other.row(37)["negatives"] != drawn[37]).any()
    assert "negatives" not in task_of("action").data.features() and "negatives" not in task_of(negatives=0).data.features()


def test_random_rows_fit_the_model():
    """Items are below the table's rows; interactions come first, then empty places."""
    source = open_source(task_of(cache="").data, Reads(items=7))
    rows = [source.row(n) for n in range(100)]
    used = np.array([(row["actions"] > 0).sum() for row in rows])
    assert used.min() == 2 and used.max() == 8
    for row, n in zip(rows, used, strict=True):
        assert (row["actions"][:n] > 0).all() and (row["items"][:n] >= 1).all() and row["items"].max() < 7
        assert (np.diff(row["times"][:n]) >= 0).all() and not row["items"][n:].any()


def test_a_model_that_does_not_fit_is_refused(cache):
    """In one line with the field and what would do."""
    manifest, task = read_manifest(cache), task_of()
    task.check(manifest, Reads())
    task.check(manifest, Reads(items=99))
    wrong: list[tuple[Any, SequenceTask, str]] = [
        (Reads(items=12), task, "model.items=12: cache 'made' has 13 rows of items"),
        (Reads(length=9), task, "model.length=9: the data have rows of 8"),
        (Reads(length=9), task_of(length=9), "data.length=9: cache 'made' has rows of 8"),
        (Reads(objective=Objective(target="action")), task, "data.target='item': the model predicts the action; take 'action'"),
        (Objective(), task, "a model of family 'toy' reads no sequences"),
    ]
    object.__setattr__(wrong[-1][0], "family", "toy")
    for model, own, message in wrong:
        with pytest.raises(DataError, match=message):
            own.check(manifest, model)
    assert task_of(length=9).decided(manifest) == {"length": 8} and task.sizes(manifest) == {"items": 13, "places": 8}


@pytest.mark.parametrize(
    ("fields", "message"),
    [(dict(target="user"), "target='user'"), (dict(length=1), "length=1"), (dict(negatives=-1), "negatives=-1")],
)
def test_impossible_rows_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SequenceData(**({"batch_size": 1, "length": 8} | fields))


# --- scores ---


def test_ranks_are_those_of_a_sorted_list():
    """Behind all items of equal score, without those that are left out; an unknown item is behind all."""
    scores = np.array([9.0, 0.5, 0.9, 0.5, 0.1, 0.9])
    assert [rank(scores, item, np.array([0])) for item in range(6)] == [6, 4, 2, 4, 5, 2]
    assert [rank(scores, item, np.array([2, 0])) for item in (1, 2, 3, 4, 5)] == [3, 2, 3, 4, 1]


def test_scores_of_ranks_are_those_of_rankings():
    """NDCG and hit rate of one positive item at each rank, beside the scores of whole lists."""
    ranks = np.array([1, 4, 10, 11, 20])
    labels = np.concatenate([np.arange(1, 31) == n for n in ranks]).astype(float)
    scores, groups = np.tile(-np.arange(30.0), 5), np.repeat(np.arange(5), 30)
    for name, want in metrics.rankings(labels, scores, groups).items():
        assert_allclose(metrics.of_ranks(ranks)[name], want)


def test_transitions_are_counted():
    """Pairs of neighbours in each history, and how often an item comes at all where these are alike."""
    histories = [np.array([1, 2, 1, 2, 3]), np.array([2, 1]), np.array([4])]
    after = Transitions(histories, np.array([0.0, 3, 3, 1, 1]))
    assert np.floor(after(1)).tolist() == [0, 0, 2, 0, 0] and np.floor(after(2)).tolist() == [0, 2, 0, 1, 0]
    assert_allclose(after(4), np.array([0, 3, 3, 1, 1]) / 9)


def test_held_out_rows_of_items_are_ranked_beside_baselines(cache):
    """Ranks of the made-up probabilities are the best; rows have what is barred, and their last place alone is predicted."""
    task = task_of()
    held = task.held_out(cache, cache, "test", 0)
    scores = task.scores({}, held)
    assert held.count == len(held.rows) == 150 and not held.needs_outputs
    assert scores["bayes/ndcg"] > max(scores[f"{name}/ndcg"] for name in ("popularity", "factors", "transitions"))
    _, ranks = latent.interactions(SMALL)
    assert_allclose(scores["bayes/hit_rate"], np.mean(ranks[-150:] <= 10))
    for row in held.rows[:20]:
        assert {k: (x.shape, str(x.dtype)) for k, x in row.items()} == {
            k: (f.shape, f.dtype) for k, f in task.data.held_out().items()
        }
        assert row["start"] == (row["actions"] > 0).sum() - 1 and not row["barred"].any()
    row = held.rows[0]
    assert barred(row, repeats=False).tolist() == [*row["items"][: row["start"]], *[0] * (8 - row["start"])]
    for name in scores:
        assert name.split("/")[0] in task.meanings and name.split("/")[1] in task.directions


def test_held_out_actions_are_scored_from_logits(cache):
    """As those of clicks; the probabilities that labels were drawn with are the best."""
    task = task_of("action")
    held = task.held_out(cache, cache, "test", 0)
    logits = np.random.default_rng(0).normal(size=160)
    scores = task.scores({}, held, list(logits))
    assert held.needs_outputs and "barred" not in held.rows[0]
    assert scores["auc"] == metrics.auc(held.extra["label"], logits[:150])
    data, _ = latent.interactions(SMALL)
    assert data.probabilities is not None
    assert_allclose(scores["bayes/auc"], metrics.auc(held.extra["label"], data.probabilities[-150:]))
    assert scores.keys() == task.scores({}, held).keys()
    with pytest.raises(DataError, match=r"test of cache 'made': all 1 rows have label [01]: .* \(eval.limit=1\)"):
        task.held_out(cache, cache, "test", 1)


# --- sources, and lists for ranking ---


def test_films_are_sequences(tmp_path):
    """MovieLens' files, the last of each user held out, and items that do not come again are barred; the baselines too."""
    folder = write_movielens(tmp_path / "films", "ratings.dat", ratings())
    settings = settings_from(str(folder), kind="sequences")
    assert isinstance(settings, SequenceCache) and settings.split == "last"
    made = prepare("films", dataclasses.replace(settings, length=5), data_dir=tmp_path, progress=quiet)
    manifest = read_manifest(made)
    assert manifest["items"] == 7 and manifest["held_out"] == {"validation": 9, "test": 9}
    held = task_of(length=5).held_out(made, made, "test", 0)
    assert all(row["barred"].any() for row in held.rows)
    first = next(iter(examples(made, "test")))
    assert {"popularity_rank", "factors_rank", "transitions_rank", "label", "popularity"} <= first.keys()
    assert isinstance(settings_from(str(folder)), ClickCache)


def test_a_table_without_labels_has_items_alone(tmp_path):
    """Its actions all count, and there is nothing to tell them apart by."""
    rows = [{"customer": f"c{n % 5}", "item": n * n % 11, "time": 1_000 + n} for n in range(60)]
    file = write_csv(tmp_path / "orders.csv", rows)
    settings = settings_from(str(file), "user=customer", kind="sequences")
    made = prepare("orders", settings, data_dir=tmp_path, progress=quiet)
    assert task_of(length=200).held_out(made, made, "test", 0).extra.keys() >= {"popularity_rank", "label"}
    with pytest.raises(DataError, match="test of cache 'orders': all 5 rows have label 1"):
        task_of("action", length=200).held_out(made, made, "test", 0)


def test_clicks_without_users_are_no_sequences(tmp_path):
    (tmp_path / "train.txt").write_text("".join(criteo_lines(20)))
    with pytest.raises(DataError, match=r"train\.txt"):
        settings_from(str(tmp_path / "train.txt"), kind="sequences")


def test_users_and_items_are_listed_for_ranking(cache):
    """The history of training, and rows in which an item is behind it; probabilities are among all items, or of an action."""
    task = task_of()
    assert isinstance(task, RanksItems)
    catalogue = SequenceCatalogue.of(cache, task.data, "7")
    data, _ = latent.interactions(SMALL)
    log = SequenceLog(data, length=8, split="time", validation=0.1, test=0.2)
    past = log.trained[data.users[log.trained] == 7]
    names = [catalogue.items[n - 1]["item"] for n in catalogue.user["items"]]
    assert names == [data.item_names[i] for i in data.items[past[-7:]]]
    assert {catalogue.items[n]["item"] for n in catalogue.user["seen"]} == {data.item_names[i] for i in data.items[past]}
    (row,) = catalogue.rows([3, 4])
    assert row["items"].tolist() == [*catalogue.user["items"], 0] and row["actions"][7] == 0 and row["start"] == 7
    logits = np.log(np.arange(1.0, 14.0))[None]
    assert_allclose(catalogue.probabilities(logits, [0, 11]), np.array([2, 13]) / 91)
    acts = SequenceCatalogue.of(cache, task_of("action").data, "7")
    first, second = acts.rows([3, 4])
    assert (first["items"][7], second["items"][7], first["actions"][7], first["start"]) == (4, 5, 1, 7)
    assert_allclose(acts.probabilities(np.zeros(2), [3, 4]), [0.5, 0.5])


def test_a_damaged_history_is_one_line(cache):
    """A list of users that somebody has changed is refused with the cache's name."""
    catalogue = SequenceCatalogue.of(cache, task_of().data, "7")
    for change in ({"items": [99] * 7}, {"items": [1]}, {"items": []}):
        broken = dataclasses.replace(catalogue, user=json.loads(json.dumps(catalogue.user | change)))
        with pytest.raises(DataError, match="the list of users of 'made'"):
            list(broken.rows([1]))


def test_registered_caches_are_of_the_kind():
    assert ENTRIES and all(isinstance(entry, LatentSequenceCache) for entry in ENTRIES.values())
