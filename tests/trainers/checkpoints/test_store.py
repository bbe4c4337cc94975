"""Checkpoints in a bucket: a server on loopback, which stalls, refuses and is left in the middle of a save.

TensorStore, TensorFlow's files and Google's client ask it as they ask Google Cloud Storage; requirements-gs.lock has the client.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from scripts.launching import supervisor
from tests.helpers import buckets
from tests.helpers.runs import changed_steps, curve, run, with_train
from tests.helpers.waiting import HANGS
from trainers import runlog, trainer
from trainers.audit import checks
from trainers.checkpoints import bucket, checkpoint, manager

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not bucket._installed("google.cloud.storage"), reason="needs Google's client: make setup DEVICE=gs"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[buckets.Bucket]:
    """One for all tests, since the libraries note its address once."""
    from orbax.checkpoint._src.path import gcs_utils

    with pytest.MonkeyPatch.context() as patch, buckets.serving(tmp_path_factory.mktemp("store")) as server:
        for name, value in server.variables().items():
            patch.setenv(name, value)
        yield server
    bucket._bucket.cache_clear()
    gcs_utils.get_bucket.cache_clear()


@pytest.fixture(autouse=True)
def as_it_was(store) -> Iterator[None]:
    """Lets every request pass again after a test."""
    yield
    store.refuses = lambda method, name: 0


def wait_for_the_save_under_way() -> None:
    """Until the thread of a save has ended, which it does once the store has answered, or has failed for good."""
    for thread in threading.enumerate():
        if thread.name == "save_finalize":
            thread.join()


def test_a_run_whose_store_stalls_goes_on_and_is_found_again(small, tmp_path, store, monkeypatch, capsys):
    """While the store does not answer, from step 5 to 11, saves are left out by name and steps go on; once it does, a save
    succeeds. The run goes on from there later, with the numbers of a run on a local disk, and its weights are read from there."""
    monkeypatch.setattr(manager, "SLOW", 0.2)
    e = with_train(small, steps=16, log_every=1, checkpoint={"every": 2, "max_failures": 5})
    assert run(e, tmp_path / "local") == trainer.DONE
    answering = threading.Event()
    answering.set()
    store.refuses = lambda method, name: not answering.wait(HANGS)

    def stalls(call: int, state: Any, values: Any) -> Any:
        if call == 5:
            answering.clear()
        if call == 11:
            answering.set()
            wait_for_the_save_under_way()
        return state, values

    remote = with_train(e, steps=12, checkpoint={"folder": "gs://bucket/mine"})
    with monkeypatch.context() as patch:
        changed_steps(patch, stalls)
        assert run(remote, tmp_path / "remote") == trainer.DONE
    said = capsys.readouterr().out
    assert "is left out, since the one before it is not written" in said and "gs://bucket/mine" in said
    assert run(with_train(remote, steps=16), tmp_path / "remote") == trainer.DONE
    assert "starting at step 12 from a checkpoint" in capsys.readouterr().out
    assert curve(tmp_path / "remote") == curve(tmp_path / "local")
    log = tmp_path / "remote" / "audit.jsonl"
    assert max(supervisor._logged(log, "gs://bucket/mine/", log.stat().st_size)) == 16
    params, wanted = (checkpoint.read_params(tmp_path / name)[2] for name in ("remote", "local"))
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.asarray(params[name]), np.asarray(array))


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(("POST", "PUT"), id="writes"),
        pytest.param(("GET", "POST", "PUT", "DELETE"), id="everything", marks=pytest.mark.nightly),  # a minute of retries
    ],
)
def test_a_run_that_loses_its_permissions_ends_with_its_code(small, tmp_path, store, monkeypatch, capsys, refused):
    """They are taken away in the middle: the run ends after as many saves as it may lose, and is found again. A store that
    refuses everything has not lost its folder."""
    e = with_train(
        small, steps=12, log_every=1, checkpoint={"every": 2, "max_failures": 1, "folder": f"gs://bucket/lost{len(refused)}"}
    )

    def taken_away(call: int, state: Any, values: Any) -> Any:
        if call == 5:
            wait_for_the_save_under_way()
            store.refuses = lambda method, name: 403 * (method in refused)
        return state, values

    with monkeypatch.context() as patch:
        changed_steps(patch, taken_away)
        with pytest.raises(runlog.StoreError, match=r"gs://bucket/lost.*in a row were not written"):
            run(e, tmp_path / "run")
    if "GET" in refused:
        for read in (checkpoint.newest_step, checkpoint.begun, checkpoint.read_params):
            with pytest.raises(bucket.StoreReadError, match=r"gs://bucket/lost4 cannot be read for now"):
                read(tmp_path / "run")
    with pytest.raises(bucket.BucketError, match=r"gs://bucket/lost\d: may not write and delete objects"):
        run(e, tmp_path / "run")  # before a step
    store.refuses = lambda method, name: 0
    assert checkpoint.newest_step(tmp_path / "run") == 4
    assert run(e, tmp_path / "run") == trainer.DONE
    assert "starting at step 4 from a checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "refused", "line"),
    [
        ("gs://bucket/new", ("POST", "PUT"), r"may not write and delete objects.* roles/storage.objectUser"),
        ("gs://bucket/new", ("DELETE",), r"may not write and delete objects.* roles/storage.objectUser"),
        ("gs://other/new", (), r"gs://other/new: there is no such bucket"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_refused_before_anything_is_made(small, tmp_path, store, place, refused, line):
    store.refuses = lambda method, name: 403 * (method in refused)
    with pytest.raises(bucket.BucketError, match=line):
        run(with_train(small, steps=2, checkpoint={"folder": place}), tmp_path / "run")
    assert not (tmp_path / "run").exists() and not store.steps("new")


def test_a_damaged_checkpoint_is_deleted_there_and_the_one_before_it_used(small, tmp_path, store, capsys):
    e = with_train(small, steps=4, log_every=1, checkpoint={"every": 2, "folder": "gs://bucket/damaged"})
    assert run(e, tmp_path / "run") == trainer.DONE
    assert not checks.check(tmp_path / "run", arrays=True).problems
    largest = max((name for name in store.objects if name.startswith("damaged/4/")), key=lambda name: len(store.objects[name][0]))
    content, generation = store.objects[largest]
    store.objects[largest] = content[: len(content) // 2], generation
    (problem,) = checks.check(tmp_path / "run", arrays=True).problems
    assert "gs://bucket/damaged/4 is damaged" in problem
    assert run(e, tmp_path / "run") == trainer.DONE
    assert "starting at step 2 from a checkpoint" in capsys.readouterr().out
    assert not checks.check(tmp_path / "run", arrays=True).problems


def test_a_run_killed_in_a_save_goes_on_from_the_checkpoint_before(tmp_path, store):
    """Before the first object of a checkpoint, in its arrays, and before the last object, which completes it."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "scripts.train", "gpt.quickstart", "--tiny", "--layout", "data_parallel:1x1"]
    command += ["--workdir", str(folder), "--train.checkpoint.every", "2", "--train.log-every", "1"]
    command += ["--train.checkpoint.folder", "gs://bucket/killed", "--train.steps", "12"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    for step, name in ((4, "_CHECKPOINT_METADATA"), (4, "state/_METADATA"), (8, bucket.COMMITTED)):
        _killed_at(store, command, environment, f"killed/{step}/{name}")
        assert store.steps("killed")[-1] == step and checkpoint.newest_step(folder) == step - 2
        assert not checks.check(folder, arrays=True).problems
    subprocess.run(command, env=environment, check=True, timeout=HANGS)
    assert checkpoint.newest_step(folder) == 12
    assert [line["step"] for line in curve(folder)] == list(range(1, 13))
    assert not checks.check(folder, arrays=True).problems


def _killed_at(store: buckets.Bucket, command: list[str], environment: dict[str, str], name: str) -> None:
    """Runs a command until it asks to write an object of this name, and kills it before that."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def kills(method: str, asked: str) -> int:
        if method == "POST" and asked == name:
            process.kill()
            process.wait()
            return 503
        return 0

    store.refuses = kills
    assert process.wait(HANGS) == -signal.SIGKILL
    store.refuses = lambda method, name: 0
