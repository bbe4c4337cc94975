"""docs/TUTORIAL.md tells the truth: its code is run as a reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from data.paths import ROOT
from tests.helpers import libtpu
from tests.helpers.waiting import HANGS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the tutorial's files; session.py holds the blocks that are typed, in order."""
    made = tmp_path_factory.mktemp("tutorial")
    session = []
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "TUTORIAL.md").read_text(), re.M | re.S):
        if name := re.match(r"# (\S+\.py)\n", block):
            path = made / name[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
        else:
            session.append(block)
    (made / "session.py").write_text("\n".join(session))
    return made


def run(folder: Path, *arguments: str, **more: str) -> str:
    """Runs one of the files in the folder, or another with arguments, and returns what it prints."""
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path} | more
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_session_runs(folder):
    """The model trains, each layout sends what the text says, and what is printed stands in the tutorial."""
    printed = run(folder, "session.py", XLA_FLAGS="--xla_force_host_platform_device_count=8").splitlines()
    page = (ROOT / "docs" / "TUTORIAL.md").read_text()
    lines = {" ".join(line.split()) for line in page.splitlines()}
    parameters = [" ".join(line.split()) for line in printed if line.endswith(" bytes")]
    assert len(parameters) == 4 and set(parameters) <= lines
    (refusal,) = (line for line in printed if "is not divisible" in line)
    assert refusal in " ".join(page.split())  # the page breaks the line


def test_the_commands_take_the_package(folder, tmp_path):
    """Its experiments are named by their file, and the package registers its family."""
    shown = run(
        tmp_path,
        str(ROOT / "scripts" / "__main__.py"),
        "show",
        f"{folder}/adder/experiments.py:small",
        SHARDZOO_DATA=str(tmp_path),
    )
    assert "layers.wi" in shown and "Learns to add in a few seconds" in shown


@libtpu.NEEDED
@pytest.mark.slow
def test_the_plan_runs(folder):
    """The TPU compiler takes the tutorial's model, and the report gives a modelled step time."""
    assert "modelled" in run(folder, "plan_adder.py", XLA_FLAGS="")
