"""README's commands, run as they stand there, and a plan and a reproduction as docs/ has them.

`.ci/run` runs this file with the newest Python beside the suite of the first."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from data.paths import ROOT
from tests.helpers import libtpu
from tests.helpers.layouts import GAVE_UP

PYTHON = ".venv/bin/python -m "
LINES = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"    {PYTHON}")]
COMMANDS = [re.sub(r"\s+#.*", "", line.removeprefix(PYTHON)) for line in LINES]

# The beginning of a command, and what it prints.
RUN = {
    "scripts.train gshard_m4.quickstart --synthetic": r"step 20/20  loss \d",
    "scripts.show gshard_m4.moe_2048e_36l": r"619,399,180,288",
    "scripts.show gshard_m4.quickstart --collectives": (
        r"decoder +all-to-all +expert +once +6 +6 (.*\n)+ +encoder +all-to-all +expert +once +6 +6 .*\n"
        r" +all-gathers of expert weights or dispatched tokens: 0"
    ),
    "scripts.show gpt.quickstart --layout two_d:2x4": r"embed 1 +4 +\| 5 +\| 6 +\| 7",
    "scripts.show": r"gshard_m4\.quickstart .*\n",
    "scripts.layouts gpt.quickstart": r"two_d_sequence",
}
# Minutes of what tests/multi_device/test_gpt_layouts.py compares; tests/toy/test_toy.py has the command.
NIGHTLY = ("scripts.layouts gpt.quickstart",)
LEFT_OUT = {  # with the reason
    "scripts.train gpt.quickstart": "fetches its text, and trains for minutes",
    "scripts.generate": "continues that run",
    "scripts.prepare_data whisper_base": "fetches weights",
    "scripts.transcribe": "needs them, and a sound",
}


def known(command: str) -> str:
    """Returns the key of RUN or LEFT_OUT that a command begins with, the longest; "" if there is none."""
    return max((key for key in RUN | LEFT_OUT if command.startswith(key)), key=len, default="")


def test_every_command_is_run_or_left_out_for_a_reason():
    """A command that is added to README has a line here, and no line is left of one that is gone."""
    assert len(COMMANDS) > 8
    assert {known(command) for command in COMMANDS} == RUN.keys() | LEFT_OUT.keys()


def run(command: str, folder: Path) -> str:
    """Returns what a command prints in this folder, with a user's settings."""
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    assert not any(text in done.stderr for text in ("Traceback", "warning: jax", GAVE_UP)), done.stderr
    return done.stdout


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.nightly if known(command) in NIGHTLY else pytest.mark.slow)
        for command in COMMANDS
        if known(command) in RUN
    ],
)
def test_a_command_of_the_readme_runs(command, tmp_path):
    """It ends well, and prints what it is for."""
    assert re.search(RUN[known(command)], run(command, tmp_path))


@pytest.mark.integration
@pytest.mark.slow
def test_an_entry_of_reproductions_runs(tmp_path):
    """PaLM's utilisation, for which the FLOPs of models are counted, as printed in the paper."""
    printed = run(f"scripts.reproduce decoders.palm_mfu --pages {tmp_path} --workdir {tmp_path}", tmp_path)
    assert "decoders.palm_mfu" in printed


@libtpu.NEEDED
@pytest.mark.integration
@pytest.mark.slow
def test_a_plan_runs(tmp_path):
    """A small slice, compiled by the TPU compiler and priced."""
    plan = "scripts.plan gpt.quickstart --layout fully_sharded:2x2 --topology v4:2x2x1"
    assert "modelled" in run(plan, tmp_path)
