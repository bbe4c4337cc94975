"""Tests of which checkpoints stay, and which are believed. Whole runs that resume are in test_trainer.py."""

import contextlib
import dataclasses
import errno
import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import pytest

from configs import registry
from configs.registry import ConfigError
from data import progress
from models.errors import UserError
from tests.helpers.runs import kept
from trainers import runlog, state
from trainers.checkpoints import checkpoint
from trainers.checkpoints.checkpoint import CheckpointError, StoreReadError
from trainers.checkpoints.manager import Checkpoints
from trainers.plan import Plan, fresh_state, make_plan

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def p() -> Plan:
    return make_plan(registry.tiny(registry.load("gpt.quickstart")), jax.devices()[:1])


@pytest.fixture(scope="module")
def fresh(p) -> state.State:
    return fresh_state(p)


def open_checkpoints(workdir: Path, p: Plan, say=print, **changes) -> Checkpoints:
    return Checkpoints(workdir, dataclasses.replace(p.experiment.train.checkpoint, **changes), say=say)


def save(checkpoints: Checkpoints, p: Plan, fresh: state.State, step: int, **scores: float) -> None:
    now = dataclasses.replace(fresh, step=jnp.full_like(fresh.step, step))
    checkpoints.save(p, now, "fingerprint", {f"eval/{name}": value for name, value in scores.items()})


# --- the best one ------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("cross_entropy", [5, 1, 3, 4], 2),
        ("accuracy", [0.2, 0.9, 0.3, 0.4], 2),
        ("accuracy", [0.9, NAN, 0.2, 0.3], 1),
        ("cross_entropy", [1, 3, NAN, 4], 1),
        ("cross_entropy", [INF, 3, -INF, 4], 2),
        ("accuracy", [0.9, 0.9, 0.2, 0.3], 2),  # the newer of two equals
        ("accuracy", [NAN, NAN, NAN, NAN], 4),
        ("accuracy", [0.1, 0.2, 0.3, NAN], 3),
    ],
)
def test_the_best_checkpoint_stays_beside_the_newest(tmp_path, p, fresh, metric, scores, best):
    """The lowest cross-entropy or the highest accuracy is kept; what is not finite is no score and unseats none."""
    checkpoints = open_checkpoints(tmp_path, p, keep=1, best=f"eval/{metric}")
    for step, score in enumerate(scores, 1):
        save(checkpoints, p, fresh, step, **{metric: float(score)})
    checkpoints.close()
    assert kept(tmp_path) == sorted({best, 4})


def with_scores(workdir: Path, p: Plan, fresh: state.State) -> Path:
    """Checkpoints at steps 1, 2 and 3, of which the first is the best. Returns its folder."""
    checkpoints = open_checkpoints(workdir, p, keep=3, best="eval/accuracy")
    for step, score in enumerate([0.9, 0.3, 0.1], 1):
        save(checkpoints, p, fresh, step, accuracy=score)
    checkpoints.close()
    return workdir / "checkpoints" / "1"


def kept_after_another(workdir: Path, p: Plan, fresh: state.State) -> list[int]:
    """The steps that stay where a run that keeps one checkpoint beside the best goes on for a step."""
    again = open_checkpoints(workdir, p, keep=1, best="eval/accuracy")
    assert again.restore(p, "fingerprint") is not None
    save(again, p, fresh, 4, accuracy=0.2)
    again.close()
    return kept(workdir)


SPOILED = {
    "empty": lambda path: path.write_text(""),
    "cut": lambda path: path.write_text(path.read_text()[:-2]),
    "a flipped bit of a digit": lambda path: path.write_text(path.read_text().replace("0.9", "0.1")),
    "a flipped bit of the name": lambda path: path.write_text(path.read_text().replace("eval/acc", "eval/abc")),
    "not finite": lambda path: path.write_text('{"eval/accuracy": NaN}'),
    "a list": lambda path: path.write_text("[0.9]"),
    "a number that no float holds": lambda path: path.write_text('{"eval/accuracy": 1' + "0" * 400 + "}"),
    "too deep": lambda path: path.write_text("[" * 100_000),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.integration
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_no_damage_of_a_score_deletes_a_checkpoint(tmp_path, p, fresh, spoil):
    """The score is in the meta, whose checksum tells: a checkpoint stays as long as nobody knows that it is not the best."""
    best = with_scores(tmp_path, p, fresh)
    spoil(best / "meta" / "metadata")
    assert kept_after_another(tmp_path, p, fresh) == [1, 2, 4]


def as_before(best: Path) -> Path:
    """Puts the score of a checkpoint where it was before it was part of the meta: in a file without a checksum."""
    path = best / "meta" / "metadata"
    meta = json.loads(path.read_text())
    older = best / "metrics" / "metrics"
    older.parent.mkdir()
    older.write_text(json.dumps(meta.pop("score")))
    path.write_text(json.dumps({k: v for k, v in meta.items() if k != "checksum"}))
    return older


def test_scores_are_read_where_earlier_versions_wrote_them(tmp_path, p, fresh):
    """The best checkpoint of a run from then stays; beside a score in the meta, that file counts for nothing."""
    best = with_scores(tmp_path, p, fresh)
    as_before(best)
    other = tmp_path / "checkpoints" / "2" / "metrics" / "metrics"
    other.parent.mkdir()
    other.write_text('{"eval/accuracy": 0.95}')
    assert kept_after_another(tmp_path, p, fresh) == [1, 4]


@pytest.mark.integration
@pytest.mark.parametrize("spoil", [v for k, v in SPOILED.items() if not k.startswith("a flipped")])
def test_a_score_from_before_that_cannot_be_read_deletes_no_checkpoint(tmp_path, p, fresh, spoil):
    """Step 1 stays beside step 2, which is the best of those that are known."""
    spoil(as_before(with_scores(tmp_path, p, fresh)))
    assert kept_after_another(tmp_path, p, fresh) == [1, 2, 4]


def test_a_checkpoint_that_orbax_cannot_describe_hides_no_other(tmp_path, p, fresh):
    """Damage of Orbax's own file at step 3 costs step 3: the run goes on from step 2, and the tools read the others."""
    with_scores(tmp_path, p, fresh)
    (tmp_path / "checkpoints" / "3" / "_CHECKPOINT_METADATA").write_text("[" * 100_000)
    assert checkpoint.read_params(tmp_path, 1)[1] == 1
    step, said = restored(tmp_path, p)
    assert step == 2 and "3 is damaged (maximum recursion" in said
    assert kept(tmp_path) == [1, 2]


@pytest.mark.parametrize("gone", [(), ("meta/metadata",), ("_CHECKPOINT_METADATA", "meta", "state")], ids=len)
def test_what_a_run_killed_while_deleting_leaves_is_deleted(tmp_path, p, fresh, gone):
    """Step 1 was not deleted, or only in part: `tidy` ends what the save of step 4 began. The two newest and the best stay."""
    first = open_checkpoints(tmp_path, p, keep=4, best="eval/accuracy")
    for step, score in enumerate([0.1, 0.9, 0.3, 0.2], 1):
        save(first, p, fresh, step, accuracy=score)
    first.close()
    for name in gone:
        path = tmp_path / "checkpoints/1" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = open_checkpoints(tmp_path, p, keep=2, best="eval/accuracy")
    assert kept(tmp_path) == [1, 2, 3, 4]
    again.tidy()
    again.close()
    assert kept(tmp_path) == [2, 3, 4]


def test_a_metric_that_is_neither_way_better_cannot_choose(tmp_path, p):
    """The error names the metric, before a folder is made."""
    with pytest.raises(ConfigError, match="metric 'eval/examples': neither more nor less"):
        open_checkpoints(tmp_path, p, best="eval/examples")
    assert not list(tmp_path.iterdir())


# --- what is said of a checkpoint --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory, p, fresh) -> Path:
    """Checkpoints at steps 1 and 2."""
    workdir = tmp_path_factory.mktemp("saved")
    checkpoints = open_checkpoints(workdir, p)
    for step in (1, 2):
        save(checkpoints, p, fresh, step)
    checkpoints.close()
    return workdir


def restored(workdir: Path, p: Plan, fingerprint: str = "fingerprint") -> tuple[int, str]:
    """(the step that a run would go on from, what it says)."""
    said = []
    checkpoints = open_checkpoints(workdir, p, said.append)
    result = checkpoints.restore(p, fingerprint)
    checkpoints.close()
    assert result is not None
    return int(result.step), "\n".join(said)


def copy_with_meta(saved: Path, to: Path, change) -> Path:
    """The run's folder with `change(text)` in place of the newest checkpoint's meta."""
    shutil.copytree(saved, to)
    path = to / "checkpoints" / "2" / "meta" / "metadata"
    path.write_text(change(path.read_text()))
    return to


def of_json(change):
    """A change of text that is one of the JSON object in it."""

    def changed(text: str) -> str:
        meta = json.loads(text)
        change(meta)
        return json.dumps(meta)

    return changed


DAMAGES = {
    "a field of the model": lambda text: text.replace('"hidden_dim"', '"hidden_dIm"', 1),
    "a seed": of_json(lambda meta: meta["experiment"]["train"].update(seed=1)),
    "the fingerprint": lambda text: text.replace('"fingerprint"', '"fingerprynt"'),
    "the name of a key": lambda text: text.replace('"checksums"', '"checksuns"'),
    "the name of its checksum": lambda text: text.replace('"checksum"', '"checksul"'),
    "its checksum": of_json(lambda meta: meta.update(checksum="0" * 64)),
    "its checksum's type": of_json(lambda meta: meta.update(checksum=None)),
    "a key lost": of_json(lambda meta: meta.pop("experiment")),
    "a key lost, from before there was a checksum": of_json(lambda meta: (meta.pop("checksum"), meta.pop("checksums"))),
    "a type, from before": of_json(lambda meta: (meta.pop("checksum"), meta.update(checksums=[1]))),
    "a part lost, from before": of_json(lambda meta: (meta.pop("checksum"), meta["experiment"].pop("train"))),
    "no object": lambda text: f"[{text}]",
    "no JSON": lambda text: text[:100],
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_damaged_meta_is_damage_not_another_experiment(saved, tmp_path, p, change):
    """The checkpoint is named and the one before it used; the tools refuse it in one line."""
    workdir = copy_with_meta(saved, tmp_path / "run", change)
    with pytest.raises(UserError, match=r"2 is damaged|experiment: field 'train' is missing"):
        checkpoint.read_params(workdir)
    step, said = restored(workdir, p)
    assert step == 1 and f"checkpoint {workdir / 'checkpoints' / '2'} is damaged" in said
    assert (workdir / "damaged" / "2").is_dir()


def test_a_checkpoint_from_before_meta_had_a_checksum_is_read(saved, tmp_path, p):
    """Without the key it is believed, as it always was."""
    workdir = copy_with_meta(saved, tmp_path / "run", of_json(lambda meta: meta.pop("checksum")))
    assert restored(workdir, p) == (2, "")
    assert checkpoint.read_params(workdir)[1] == 2


def test_sound_checkpoints_of_other_data_are_refused(saved, tmp_path, p):
    """That is no damage: nothing is passed over or moved."""
    shutil.copytree(saved, tmp_path / "run")
    with pytest.raises(CheckpointError, match="is of another experiment: the prepared data changed"):
        restored(tmp_path / "run", p, "others")
    assert kept(tmp_path / "run") == [1, 2]


def test_fields_that_came_and_went_are_differences_not_damage(saved, tmp_path, p):
    """Where an experiment of another version has a model's field that is gone and lacks training fields that came later, a line
    names the first; nothing is moved, and no default is taken for a difference."""

    def older(meta: dict) -> None:
        meta["experiment"]["model"]["retired"] = 7
        for field in ("lora", "freeze_layers"):
            del meta["experiment"]["train"]["finetune"][field]
        del meta["checksum"]

    workdir = copy_with_meta(saved, tmp_path / "run", of_json(older))
    with pytest.raises(CheckpointError, match=r"another experiment: model\.retired: 7 -> -; choose another"):
        restored(workdir, p)
    assert kept(workdir) == [1, 2]


# --- what is not the checkpoint's fault ----------------------------------------------------------------------------


def raises(error: Exception):
    """A function that raises it, whatever it is given."""

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    return function


STORES = [
    OSError(errno.EIO, "Input/output error"),
    ConnectionResetError("reset by peer"),
    ValueError("UNAVAILABLE: CURL error Couldn't resolve host name"),
    ValueError("RESOURCE_EXHAUSTED: rate limit"),
]


@pytest.mark.parametrize("error", STORES, ids=str)
@pytest.mark.parametrize("place", ["restore", "item_metadata"])
def test_a_store_that_fails_for_now_is_no_damage(saved, tmp_path, p, monkeypatch, place, error):
    """Neither a run nor the tools call a checkpoint damaged that cannot be reached: nothing is moved, and the same command, which
    the exit code asks for, goes on from it."""
    shutil.copytree(saved, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Manager, place, raises(error))
        with pytest.raises(StoreReadError, match="2 cannot be read for now") as refused:
            restored(tmp_path / "run", p)
        assert refused.value.exit_code == runlog.PREEMPTED
        if place == "restore":
            with pytest.raises(StoreReadError, match="2 cannot be read for now"):
                checkpoint.read_params(tmp_path / "run")
    assert restored(tmp_path / "run", p) == (2, "") and not (tmp_path / "run" / "damaged").exists()


def test_an_error_of_tensorstore_below_another_is_recognised(saved, tmp_path, p, monkeypatch):
    """Orbax raises an Exception without a class for an array that it cannot read: its cause says whether that is damage."""
    for text, kind in (("UNAVAILABLE: later", checkpoint.Unread), ("DATA_LOSS: checksum", checkpoint.Damaged)):
        error = Exception("Encountered error while reading array index")
        error.__cause__ = ValueError(text)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.Manager, "restore", raises(error))
            result = checkpoint.read(checkpoint.folder_of(saved), 2, p, "fingerprint")
        assert isinstance(result, kind)


@pytest.mark.parametrize("place", ["mismatches", "other_shapes", "to_tree"])
def test_a_bug_is_no_damage(saved, tmp_path, p, monkeypatch, place):
    """An exception of this project's own code keeps its class, though it is one that damage has too; nothing is moved."""
    shutil.copytree(saved, tmp_path / "run")
    monkeypatch.setattr(checkpoint, place, raises(TypeError("a bug")))
    with pytest.raises(TypeError, match="a bug"):
        restored(tmp_path / "run", p)
    assert kept(tmp_path / "run") == [1, 2]


def test_a_run_without_a_checkpoint_says_what_is_the_case(saved, tmp_path):
    """Before the first save, while one is under way, and of another step: the error says which, and what to do."""
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint yet: its run has not come to its first save, or ended before"):
        checkpoint.read_params(tmp_path)
    (tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp").mkdir()
    for step in (None, 7):
        with pytest.raises(CheckpointError, match="the save of step 7 is under way, or was cut off"):
            checkpoint.read_params(tmp_path, step)
    with pytest.raises(CheckpointError, match=r"no checkpoint 9 in .*; there are 1, 2$"):
        checkpoint.read_params(saved, 9)
    with pytest.raises(CheckpointError, match=r"no checkpoints in .*a run writes them under"):
        checkpoint.read_params(tmp_path / "elsewhere")


def test_the_writing_of_the_last_checkpoint_is_shown(tmp_path, p, fresh, monkeypatch):
    """A save that the end of a run waits for has a bar; one in the middle of it has none."""
    shown = []

    @contextlib.contextmanager
    def bar(what: str, total: float, unit: str):
        shown.append((what, total, unit))
        yield lambda amount: None

    monkeypatch.setattr(progress, "bar", bar)
    monkeypatch.setattr(progress, "shown", lambda: True)
    checkpoints = open_checkpoints(tmp_path, p)
    save(checkpoints, p, fresh, 1)
    assert not shown
    checkpoints.save(p, dataclasses.replace(fresh, step=jnp.full_like(fresh.step, 2)), "fingerprint", final=True)
    ((what, total, unit),) = shown
    assert (what, unit) == ("saving checkpoint 2", "B") and total == sum(x.nbytes for x in jax.tree.leaves(fresh))
    checkpoints.close()
