"""The command of the cost curves: a picture of a report, and what it refuses, in one line."""

import re
import sys

import pytest

from configs.registry import ConfigError
from scripts import cli
from scripts.lab import scaling
from trainers.measure.growth import CURVES


def test_curves_are_drawn(tmp_path):
    """Five curves, or one, become a picture in the format of the file's name, and nothing else is left beside it."""
    result = {
        name: {"points": [dict.fromkeys(c.columns, 1.0) | {"size": n, "goal": 2.0} for n in c.sizes]}
        for name, c in CURVES.items()
    }
    scaling.plot({"curves": result}, tmp_path / "all.png")
    scaling.plot({"curves": {"batch": result["batch"]}}, tmp_path / "one.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.png", "one.svg"]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG") and "<svg" in (tmp_path / "one.svg").read_text()


def test_curves_are_chosen_in_order():
    """Names come in the curves' own order, once each."""
    assert cli.names("--curves", "devices, batch,devices", CURVES) == ["batch", "devices"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--curves", "batch,layer"], "--curves 'layer' is not known; did you mean 'layers'?"),
        (["--rounds", "0"], "--rounds 0: at least 1 must be measured"),
        (["--plot", "curves.docx"], "no pictures in format '.docx'; choose from "),
    ],
)
def test_bad_arguments_are_refused(monkeypatch, tmp_path, arguments, message):
    """The line names the option, its value and what would do; nothing is measured or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")  # put back after main has changed it
    monkeypatch.setattr(sys, "argv", ["scaling", *arguments])
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        scaling.main()
    assert len(str(caught.value).splitlines()) == 1 and not list(tmp_path.iterdir())
