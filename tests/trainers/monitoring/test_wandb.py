"""Metrics on Weights & Biases, with a client of the same form in its place: the real one is not among the locked packages."""

import json
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import pytest

from configs import registry
from configs.registry import ConfigError
from tests.helpers.runs import with_train
from trainers import trainer
from trainers.monitoring import metrics, wandb
from trainers.monitoring.observer import Logged


class Client(ModuleType):
    """Keeps what it is sent, by run."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.started: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.ended: list[int] = []
        self.Settings, self.Histogram = SimpleNamespace, tuple

    def init(self, **settings: Any) -> Any:
        self.started.append(settings)
        return SimpleNamespace(offline=True, log=self.log, finish=self.finish, define_metric=lambda name, step_metric: None)

    def log(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


@pytest.fixture
def client(monkeypatch):
    made = Client()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setenv(wandb.PROJECT, "zoo")
    return made


def opened(tmp_path, say=print, leader=True) -> Any:
    return wandb.open_run(registry.load("gpt.quickstart"), tmp_path, leader, say)


@pytest.mark.integration
def test_a_run_and_its_resumption_send_what_the_log_has(small, tmp_path, client):
    """The same numbers at the same steps as in metrics.jsonl; a resumed run goes on under the same identity."""
    for steps in (2, 3):
        e = with_train(small, steps=steps, log_every=1)
        assert trainer.train(e, tmp_path, devices=jax.devices()[:1]) == 0
    written = [line for line in metrics.read(tmp_path) if "loss" in line]
    sent = [line for line in client.lines if "loss" in line]
    assert [line["step"] for line in sent] == [1, 2, 3]
    assert [line["loss"] for line in sent] == [line["loss"] for line in written]
    first, second = client.started
    assert first["id"] == second["id"] and first["project"] == "zoo" and first["resume"] == "allow"
    assert json.dumps(first["config"]) and client.ended == [0, 0]


@pytest.mark.integration
def test_the_real_client_goes_on_with_the_identity_and_the_steps(tmp_path, monkeypatch):
    """Offline each start has a folder, named by the one identity that the run's folder keeps, with the steps of the run."""
    pytest.importorskip("wandb", reason="the client of W&B is not installed; it is not among the locked packages")
    for name, value in {wandb.PROJECT: "zoo", "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, value)
    for steps in ((1, 2), (3, 4)):
        with opened(tmp_path) as run:
            for step in steps:
                run.logged(Logged(step, {"loss": 1 / step}, {"tokens": 10.0}, 1.0))
    identity = (tmp_path / wandb.IDENTITY).read_text().strip()
    files = sorted(
        (tmp_path / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb"), key=lambda file: file.stat().st_mtime
    )
    # A value in the client's file is its name, the tag of field 16, its length and its text.
    stored = [[int(text) for text in re.findall(rb"\x04step\x82\x01.(\d+)", file.read_bytes())] for file in files]
    assert [sorted(set(steps)) for steps in stored] == [[1, 2], [3, 4]]


def test_numbers_that_are_not_finite_are_left_out(tmp_path, client):
    """Lists are histograms of the finite ones; a run that fails ends with a code."""
    with pytest.raises(KeyError), opened(tmp_path) as run:
        run.logged(Logged(4, {"loss": float("nan"), "gradient_norm": 2.0, "load": [1.0, float("inf")]}, {"tokens": 10.0}, 2.0))
        run.evaluated(5, {"eval/loss": 3.0}, more=True)
        raise KeyError
    logged, evaluated = client.lines
    assert logged == {"step": 4, "gradient_norm": 2.0, "load": (1.0,), "tokens_per_s": 5.0}
    assert evaluated == {"step": 5, "eval/loss": 3.0}
    assert client.ended == [1]


def test_a_client_that_fails_ends_no_run(tmp_path, client, monkeypatch):
    """A line says so once; later metrics are not tried."""
    said: list[str] = []
    with opened(tmp_path, said.append) as run:
        monkeypatch.setattr(run.run, "log", lambda line: 1 / 0)
        run.evaluated(1, {"eval/loss": 3.0}, more=True)
        run.evaluated(2, {"eval/loss": 3.0}, more=True)
    assert said == ["W&B takes no more metrics (division by zero); training goes on without it"]


def test_it_is_asked_for_by_its_variable(tmp_path, monkeypatch, client):
    """Without a project, and in other processes than the first, nothing is begun; a missing client is one line."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ConfigError, match=r"^WANDB_PROJECT='zoo' .* \(.*wandb.*\): run .* pip install wandb`, or unset WANDB_PROJECT$"
    ):
        opened(tmp_path)
    opened(tmp_path, leader=False).evaluated(1, {}, more=True)
    monkeypatch.delenv(wandb.PROJECT)
    with opened(tmp_path) as run:
        run.evaluated(1, {}, more=True)
    assert not client.started and not list(tmp_path.iterdir())


def test_a_client_that_cannot_begin_is_a_line(tmp_path, client, monkeypatch):
    """As without an API key."""
    monkeypatch.setattr(client, "init", lambda **settings: 1 / 0)
    with pytest.raises(ConfigError, match=r"W&B cannot begin: .*division by zero; WANDB_MODE=offline needs no network$"):
        opened(tmp_path)
