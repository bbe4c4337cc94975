"""A model of clicks is trained on prepared interactions, scored beside the baselines, and asked for what it recommends."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from configs import from_data, registry
from configs.experiment import Experiment
from configs.optimizers import AdamW, Constant
from data.clicks import latent
from data.clicks.caches import LatentCache
from data.clicks.config import ClickData
from data.config import HeldOut
from data.prepare import prepare
from data.sequences import latent as latent_sequences
from data.sequences.caches import LatentSequenceCache
from data.sequences.log import SequenceLog
from data.task import DataError
from models.sharding.layouts import ONE_DEVICE
from scripts import evaluate as evaluate_script
from scripts import recommend
from tests.helpers.clicks import FILMS, ratings, write_movielens
from tests.helpers.runs import run
from trainers import trainer
from trainers.monitoring import metrics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SETTINGS = LatentCache(users=60, items=40, interactions=24_000, factors=2, contexts=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data folder with made-up interactions, and with films."""
    root = tmp_path_factory.mktemp("recommend")
    prepare("toy", SETTINGS, data_dir=root, progress=lambda line: None)
    return root


@pytest.fixture(autouse=True)
def here(root, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(root))


def on(cache: str, steps: int) -> Experiment:
    """The quickstart on another cache, which decides the sizes of its model."""
    e = registry.load("dlrm.quickstart")
    assert isinstance(e.data, ClickData)
    e, fields = from_data.fit(dataclasses.replace(e, data=dataclasses.replace(e.data, cache=cache, batch_size=256)))
    assert "model.tables" in fields
    return dataclasses.replace(
        e,
        layout=ONE_DEVICE,
        optimizer=AdamW(schedule=Constant(value=5e-3)),
        eval=HeldOut(batch_size=256),
        train=dataclasses.replace(e.train, steps=steps, log_every=20, eval_every=steps),
    )


def command(script, monkeypatch, capsys, *arguments: object) -> str:
    """Returns the output of a command."""
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    capsys.readouterr()
    assert not script.main()
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    """A run on made-up interactions."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDZOO_DATA", str(root))
        assert run(on("toy", 400), workdir) == trainer.DONE
    return workdir


def test_a_model_learns_more_than_popularity(trained, monkeypatch, capsys):
    """Its AUC is above popularity's and factorisation's, which know neither circumstances nor numbers, and below the best."""
    logged = next(line for line in metrics.read(trained) if "eval/auc" in line)
    assert logged["eval/popularity/auc"] < logged["eval/factors/auc"] < logged["eval/auc"] < logged["eval/bayes/auc"] + 0.01
    assert logged["eval/normalized_entropy"] < logged["eval/factors/normalized_entropy"]
    out = command(evaluate_script, monkeypatch, capsys, "--checkpoint", trained, "--json")
    scored = json.loads(out)["all"]
    assert scored["auc"] == pytest.approx(logged["eval/auc"], abs=1e-5)
    assert scored["log_loss"] == pytest.approx(scored["cross_entropy"], rel=1e-4)


def test_the_best_items_of_a_user_are_printed(trained, monkeypatch, capsys):
    """The likeliest first; they are those that the latent model likes too, and with --seen all are ranked."""
    options = ("--checkpoint", trained, "--user", 7, "--seen", "--top", 40, "--json")
    printed = json.loads(command(recommend, monkeypatch, capsys, *options))
    probabilities = [item["probability"] for item in printed["items"]]
    assert probabilities == sorted(probabilities, reverse=True) and len(probabilities) == 40
    data = latent.interactions(SETTINGS)
    assert data.probabilities is not None
    mine = data.users == 7
    liked = np.array([data.probabilities[mine & (data.items == i)].mean() for i in range(40)])
    order = [int(item["item"]) for item in printed["items"]]
    assert liked[order[:10]].mean() > liked.mean() > liked[order[-10:]].mean()
    lines = command(recommend, monkeypatch, capsys, "--checkpoint", trained, "--user", 7, "--seen").splitlines()
    assert len(lines) == 10 and lines[0].split() == [f"{probabilities[0]:.3f}", str(order[0])]


def test_users_who_are_unknown_or_have_seen_all(trained, monkeypatch, capsys):
    """Each is a line that says what to do."""
    with pytest.raises(Exception, match="no user 'anna' in the training data of cache 'toy'; users are "):
        command(recommend, monkeypatch, capsys, "--checkpoint", trained, "--user", "anna")
    with pytest.raises(Exception, match="--user 7: has seen all 40 items in training; take --seen"):
        command(recommend, monkeypatch, capsys, "--checkpoint", trained, "--user", 7)
    with pytest.raises(Exception, match="--top 0: expected a number from 1 on"):
        command(recommend, monkeypatch, capsys, "--checkpoint", trained, "--user", 7, "--top", 0)


def test_films_are_recommended_by_name_without_those_seen(root, tmp_path, monkeypatch, capsys):
    """MovieLens' files give tables of genres that have several ids a row, and numbers of what came before."""
    from data.prepare import settings_from

    folder = write_movielens(tmp_path / "ml", "ratings.csv", ratings(n=60, users=20))
    prepare("films", settings_from(str(folder)), data_dir=root, progress=lambda line: None)
    e = on("films", 20)
    assert [table.hotness for table in e.model.tables] == [1, 1, 1, 1, 3]  # pyright: ignore[reportAttributeAccessIssue]
    assert run(e, tmp_path / "run") == trainer.DONE
    rows = sorted(ratings(n=60, users=20), key=lambda row: row[3])[:51]
    seen = {user: {film for who, film, *_ in rows if who == user} for user, *_ in rows}
    user = next(user for user, films in seen.items() if len(films) < len(FILMS))
    out = command(recommend, monkeypatch, capsys, "--checkpoint", tmp_path / "run", "--user", user)
    names = {line.split(maxsplit=2)[2] for line in out.splitlines()}
    assert names == {FILMS[film - 10] for film in {film for _, film, *_ in rows} - seen[user]}


HISTORIES = LatentSequenceCache(users=300, items=20, interactions=60, length=20, chained=0.6)


@pytest.fixture(scope="module", params=["item", "action"])
def of_histories(request, root, tmp_path_factory):
    """A run on made-up histories: of next items, or of actions."""
    prepare("histories", HISTORIES, data_dir=root, progress=lambda line: None)
    e = registry.load("hstu.quickstart" if request.param == "item" else "hstu.clicks")
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, cache="histories", batch_size=32))
    workdir = tmp_path_factory.mktemp("run") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDZOO_DATA", str(root))
        e, _ = from_data.fit(e)
        narrow = dataclasses.replace(e.model, model_dim=32, embedding_dim=32, heads=1, dropout=0.0)  # pyright: ignore[reportCallIssue]
        train = dataclasses.replace(e.train, steps=200, log_every=50, eval_every=200)
        e = dataclasses.replace(e, model=narrow, optimizer=AdamW(schedule=Constant(value=5e-3)), train=train)
        assert run(e, workdir) == trainer.DONE
    return request.param, workdir


def test_histories_teach_more_than_popularity(of_histories):
    """Next items are ranked better than by popularity and factorisation, and no better than by their own probabilities; actions
    are told better than by popularity."""
    target, workdir = of_histories
    logged = next(line for line in metrics.read(workdir) if "eval/bayes/ndcg" in line or "eval/bayes/auc" in line)
    score, beaten = ("ndcg", ("popularity", "factors")) if target == "item" else ("auc", ("popularity",))
    assert max(logged[f"eval/{name}/{score}"] for name in beaten) + 0.03 < logged[f"eval/{score}"]
    assert logged[f"eval/{score}"] < logged[f"eval/bayes/{score}"] + 0.02


def test_what_comes_next_is_recommended(of_histories, monkeypatch, capsys):
    """The likeliest first. Of next items, probabilities are those of all items together, and the best of a few users are
    successors of their last ones in training, most of them; of actions each is one of its own."""
    target, workdir = of_histories
    data, _ = latent_sequences.interactions(HISTORIES)
    log = SequenceLog(data, length=20, split="time", validation=0.05, test=0.1)
    followed = 0
    for user in range(3):
        options = ("--checkpoint", workdir, "--user", user, "--seen", "--top", 20, "--json")
        items = json.loads(command(recommend, monkeypatch, capsys, *options))["items"]
        probabilities = [item["probability"] for item in items]
        assert probabilities == sorted(probabilities, reverse=True) and len(items) == 20
        assert target == "action" or sum(probabilities) == pytest.approx(1, abs=1e-4)
        last = data.items[log.trained[data.users[log.trained] == user][-1]]
        pairs = [own[np.flatnonzero(data.items[own[:-1]] == last) + 1] for own in log.own.values()]
        after = np.bincount(data.items[np.concatenate(pairs)], minlength=20)
        followed += int(items[0]["item"]) in np.argsort(-after)[:4]
    assert target == "action" or followed >= 2


def test_models_of_other_data_are_refused(tmp_path, monkeypatch, capsys):
    """In one line with the kind of their data."""
    e = registry.tiny(registry.load("metnet2.quickstart"))
    monkeypatch.setattr(recommend.cli, "opened", lambda *args: (e, None))
    message = r"metnet2.quickstart: its data is of kind 'grids', and no interactions of users with items"
    with pytest.raises(DataError, match=message):
        command(recommend, monkeypatch, capsys, "--checkpoint", tmp_path, "--user", 7)
