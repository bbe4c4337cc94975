"""Experiments, families and kinds of data of a user's own: what scripts.new writes runs as it is, and so do runs of it later."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import registry
from configs.optimizers import Cosine
from data.paths import ROOT
from models.errors import UserError
from models.sharding.layouts import data_parallel
from scripts import launch
from scripts import new as new_script
from scripts import throughput as throughput_script
from scripts import train as train_script
from tests.helpers import own
from tests.helpers.compiling import CHEAP
from tests.helpers.runs import run, with_train
from trainers import trainer
from trainers.monitoring import metrics


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """The working folder, with a data folder of its own."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with own.forgotten(tmp_path):
        yield tmp_path


def new(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["new", *arguments])
    assert not new_script.main()


def command(name: str, *arguments: object, cwd: Path) -> str:
    """Returns what a command prints, run as a user runs it in a folder of his."""
    environment = os.environ | {"XLA_FLAGS": CHEAP}
    arguments = (sys.executable, ROOT / "scripts" / "__main__.py", name, *arguments)
    done = subprocess.run([*map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("like", ["gpt.quickstart", "vit.moe_quickstart", "metnet2.quickstart", "whisper.tiny"])
def test_an_experiment_like_another_is_the_same_at_first(folder, monkeypatch, like):
    """All fields are the other's until the file is changed; another can be derived from the file in turn."""
    new(monkeypatch, "mine", "--like", like)
    assert dataclasses.replace(registry.load("mine.py:mine"), name=like) == registry.load(like)
    new(monkeypatch, "further", "--like", "mine.py:mine")
    assert dataclasses.replace(registry.load("further.py:further"), name=like) == registry.load(like)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["here", "--like", "gpt.quickstart"], "here.py exists, and nothing is replaced"),
        (["here", "--family"], "here.py exists, and nothing is replaced"),
        (["linked", "--kind"], "linked exists, and nothing is replaced"),
        (["gpt", "--family"], "'gpt' is the name of another module, family or kind of data"),
        (["json", "--kind"], "'json' is the name of another module, family or kind of data"),
        (["registry", "--like", "gpt.quickstart"], "'registry' is the name of another module, family or kind of data"),
        (["my-model", "--family"], "'my-model' is no name of a Python module"),
        (["mine", "--like", "gpt.quickstrat"], "no experiment 'gpt.quickstrat'; did you mean 'gpt.quickstart'?"),
        (["mine"], "one of the arguments --like --family --kind is required"),
    ],
)
def test_nothing_is_replaced(folder, monkeypatch, arguments, line):
    """A file, a folder or a link of this name stays as it is, and a name that Python would find elsewhere is refused."""
    (folder / "here.py").write_text("mine = 1\n")
    (folder / "linked").symlink_to(folder / "nowhere")
    with pytest.raises(UserError) as caught:
        new(monkeypatch, *arguments)
    assert str(caught.value).startswith(line)
    assert sorted(path.name for path in folder.iterdir()) == ["here.py", "linked"]
    assert (folder / "here.py").read_text() == "mine = 1\n"


@pytest.mark.integration
def test_a_family_runs_as_it_is(folder, monkeypatch):
    """It learns, on one device and on eight, with the same losses."""
    new(monkeypatch, "abacus", "--family")
    for name in ("small", "eight"):
        e = registry.load(f"abacus/experiments.py:{name}").with_steps(40)
        assert run(e, folder / name) == trainer.DONE
    one, eight = ([line["loss"] for line in metrics.read(folder / name) if "loss" in line] for name in ("small", "eight"))
    assert one[-1] < 0.2 < 1 < one[0] and one == pytest.approx(eight, abs=1e-3)


@pytest.mark.slow
@pytest.mark.integration
def test_a_kind_runs_as_it_is(folder, monkeypatch):
    """It is prepared and learned, and a command that is not given the file, in another folder, scores the run."""
    new(monkeypatch, "colours", "--kind")
    steps = ["--train.steps", 25, "--train.workers", 1]
    printed = command("train", "colours/experiments.py:sample", "--prepare", "--workdir", "runs/c", *steps, cwd=folder)
    assert "colours/experiments.py:sample: " in printed
    (folder / "other").mkdir()
    scores = json.loads(command("evaluate", "--checkpoint", "../runs/c", "--json", cwd=folder / "other"))
    assert scores["all"]["accuracy"] > 0.9 and scores["experiment"] == "colours/experiments.py:sample"


@pytest.mark.integration
def test_a_run_keeps_its_schedule(folder, small, capsys):
    """A run whose steps another command changes goes on with the schedule that it has stored, unless the command sets it."""
    small = dataclasses.replace(with_train(small, steps=2), layout=data_parallel(1, 1))
    assert isinstance(small.optimizer.schedule, Cosine)
    assert run(small, folder / "run") == trainer.DONE
    longer = with_train(small, steps=4)
    moved = dataclasses.replace(
        longer, optimizer=dataclasses.replace(small.optimizer, schedule=Cosine(peak=1e-3, steps=4, warmup=1, floor=0.1))
    )
    kept = train_script.as_begun(moved, folder / "run", ["--train.steps", "4"])
    assert kept.optimizer.schedule == Cosine(peak=1e-3, steps=600, warmup=40, floor=0.1) and kept.train.steps == 4
    assert "keeps its schedule: --optimizer.schedule.steps=600 --optimizer.schedule.warmup=40" in capsys.readouterr().err
    assert train_script.as_begun(moved, folder / "run", ["--optimizer.schedule.steps", "4"]) == moved
    assert train_script.as_begun(longer, folder / "run", []) == longer
    assert train_script.as_begun(moved, folder / "none", []) == moved
    assert not capsys.readouterr().err


def test_hosts_are_given_a_file_that_they_have(folder, monkeypatch):
    """Nodes of SLURM share the file by its whole path; others have the checkout alone."""
    assert launch.name_there("gpt.quickstart", "gke") == "gpt.quickstart"
    assert launch.name_there("mine.py:mine", "slurm") == f"{folder}/mine.py:mine"
    assert launch.name_there(f"{ROOT}/own/mine.py:mine", "tpu-vm") == "own/mine.py:mine"
    with pytest.raises(UserError, match=r"^--on gke: mine\.py:mine is not on the hosts"):
        launch.name_there("mine.py:mine", "gke")


def test_speeds_are_compared_with_a_file(folder, monkeypatch):
    new(monkeypatch, "mine", "--like", "gpt.bench_42m")
    parser = throughput_script.cli.parser("")
    throughput_script.cli.add_experiment(parser)
    parser.add_argument("--compare", help="another")
    args, overrides = parser.parse_known_args(["gpt.quickstart", "--compare", "mine.py:mine"])
    assert throughput_script.other(args, overrides, registry.load("gpt.quickstart")).name == "mine.py:mine"
