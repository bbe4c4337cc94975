"""The command `shardzoo`, which runs the others from any folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs import registry
from data.paths import ROOT
from scripts import __main__ as shardzoo
from tests.helpers.compiling import CHEAP

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The program as `make setup` writes it into an environment, whose Python is that of the tests."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    written = environment / "bin" / "shardzoo"
    subprocess.run(["make", "--silent", f"VENV={environment}", str(written)], cwd=ROOT, check=True)
    return written


MINE = """
import dataclasses

from configs import from_data, registry
from configs.experiment import Experiment
from models.parts.nested import changed
from models.sharding.layout import Layout, rules
from sizes import LAYERS


def experiment() -> Experiment:
    e = changed(registry.tiny(registry.load("gpt.quickstart")), {"data.cache": "songs", "model.layers": LAYERS})
    layout = Layout(name="mine", mesh=(("rows", 1), ("hidden", 2)), rules=rules(batch="rows", mlp="hidden", act_mlp="hidden"))
    return from_data.fit(dataclasses.replace(e, layout=layout))[0]
"""


def run(program: Path, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run([str(program), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_command_runs_in_the_folder_of_the_user(program, tmp_path):
    """Paths are relative to that folder, modules in it do not come before the checkout's, and its exit code is the command's."""
    (tmp_path / "models.py").write_text("raise SystemExit('the wrong module')\n")
    done = run(program, "new", "my_experiment", "--like", "gpt.quickstart", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "my_experiment.py").is_file(), done.stderr
    done = run(program, "train", "my_experiment.py:my_experimint", "--workdir", "runs/mine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: my_experiment.py: no experiment 'my_experimint'; did you mean 'my_experiment'?\n"
    e, parent = registry.load(f"{tmp_path}/my_experiment.py:my_experiment"), registry.load("gpt.quickstart")
    assert registry.differences(e, parent) == ['name: "my_experiment.py:my_experiment" -> "gpt.quickstart"']


def test_a_file_with_its_own_data_and_layout(program, tmp_path):
    """A file far from the checkout takes a cache of the user's own, whose sizes it fits, and a layout of its own; the run goes on
    from what it has stored when the file is broken, which is one line with its place."""
    (folder := tmp_path / "work").mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "sizes.py").write_text("LAYERS = 2\n")
    (folder / "songs.txt").write_text("\n\n".join(f"The {n} old dog saw {n + 1} cats and a bird." for n in range(200)))

    def shardzoo(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(program, *arguments, cwd=folder, SHARDZOO_DATA=str(tmp_path / "data"), XLA_FLAGS=CHEAP)

    train = ("train", "mine.py:experiment", "--workdir", "runs/mine", "--train.steps")
    done = shardzoo(*train, "2")
    assert done.returncode == 2 and "mine.py:14: " in done.stderr and "no prepared data at" in done.stderr
    done = shardzoo("prepare_data", "songs", "--from", "songs.txt", "--vocabulary-size", "300", "--length", "16")
    assert done.returncode == 0, done.stderr
    done = shardzoo(*train, "2")
    assert done.returncode == 0 and "layout 'mine' on rows 1 x hidden 2 cpu devices" in done.stdout, done
    assert "not evaluated: split 'validation' of cache 'songs' holds no examples" in done.stdout  # of a single document
    (folder / "sizes.py").write_text("LAYERS = 2 / 0\n")
    done = shardzoo(*train, "4")
    assert (done.returncode, done.stderr) == (2, "error: sizes.py:1: ZeroDivisionError: division by zero\n")
    done = shardzoo("train", "runs/mine/experiment.json", "--workdir", "runs/mine", "--train.steps", "4")
    assert done.returncode == 0 and "starting at step 2 from a checkpoint" in done.stdout, done
    e = registry.load(str(folder / "runs/mine/experiment.json"))
    assert (e.layout.name, e.data.cache, e.train.steps, e.data.stored()["tokens"].shape) == ("mine", "songs", 4, (16,))


def test_without_a_command_it_lists_them(program, tmp_path):
    """Each stands with the first line of its page; no command is imported for that."""
    lines = run(program, cwd=tmp_path).stdout.splitlines()
    assert f"{'train':15} Trains an experiment, or continues the run in its workdir." in lines
    listed = {line.split()[0] for line in lines[2:]}
    assert listed == set(shardzoo.commands()) >= {"new", "show", "prepare_data"} and "cli" not in listed
    assert all(shardzoo.commands().values())


@pytest.mark.parametrize(("name", "line"), [("tran", "did you mean 'train'?"), ("cli", ""), ("../new", "did you mean 'new'?")])
def test_an_unknown_command_names_the_nearest(program, tmp_path, name, line):
    done = run(program, name, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(f"error: no command '{name}'; ") and line in done.stderr


def test_dashes_stand_for_underscores(program, tmp_path):
    done = run(program, "prepare-data", "--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: shardzoo prepare_data ")


HELP = """
import contextlib, importlib, io, sys
for name in sys.argv[1:]:
    sys.argv, page = [f"scripts/{name}.py", "--help"], io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(page):
        importlib.import_module(f"scripts.{name}").main()
    assert page.getvalue().startswith(f"usage: shardzoo {name} "), page.getvalue()
    heavy = {"jax", "tensorflow", "orbax", "seqio", "matplotlib", "mlperf_logging", "numpy", "tqdm"} & {*sys.modules}
    assert not heavy, (name, heavy)
"""


def test_help_imports_no_library():
    """--help is printed at once: neither NumPy, which takes as long as all of a command's own modules, nor JAX is imported.
    Only prepare_data, which lists the settings of all kinds of data, imports more."""
    names = [name for name in shardzoo.commands() if name != "prepare_data"]
    assert len(names) > 20
    done = subprocess.run([sys.executable, "-c", HELP, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
