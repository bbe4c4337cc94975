"""Commands, run as a user runs them: what they print, what they refuse, in one line."""

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configs import registry
from configs.optimizers import Cosine
from configs.overrides import override
from data.paths import ROOT
from data.prepare import settings_from
from data.reading.caches import read_manifest
from models.errors import UserError
from scripts import cli, show
from scripts import train as train_script
from scripts.prepare_data import own_options
from tests.helpers.compiling import CHEAP
from trainers.hlo import tables


def command(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `python -m scripts....` without the tests' number of devices; compiles as cheaply."""
    env = os.environ | {"XLA_FLAGS": CHEAP}
    return subprocess.run([sys.executable, "-m", *args], capture_output=True, text=True, check=False, env=env, input=stdin)


def refused(*args: str) -> str:
    """The one line that a bad call prints; checks that it is one line and the exit code 2."""
    done = command(*args)
    assert done.returncode == 2, done
    (line,) = done.stderr.strip().splitlines()
    assert not done.stdout
    return line


@pytest.mark.integration
def test_a_misspelt_experiment_is_refused(tmp_path):
    line = refused("scripts.train", "gshard_m4.quickstrat", "--workdir", str(tmp_path / "w"))
    assert "did you mean 'gshard_m4.quickstart'?" in line
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "hint"),
    [
        ("quickstart", [], r"no experiment 'quickstart'; choose from bert\.quickstart, clip\.quickstart, .*"),
        ("gpt.quickstart", ["--learning_rate", "1e-3"], r"--learning_rate; did you mean 'optimizer\.schedule\.peak'\?"),
        ("gpt.quickstart", ["--hidden_dim", "8"], r"--hidden_dim; did you mean 'model\.feed_forward\.hidden_dim'\?"),
        ("gpt.quickstart", ["--model.num_heads", "8"], r"--model\.num_heads; did you mean 'model\.attention\.heads'\?"),
        ("gpt.quickstart", ["--train.steps", "abc"], "--train.steps 'abc': expected a whole number"),
        ("gpt.quickstart", ["--optimizer.schedule.peak", "x"], "--optimizer.schedule.peak 'x': expected a number"),
    ],
)
def test_names_of_other_programs_and_last_parts_of_names_are_understood(name, arguments, hint):
    """An error names the field that is meant, and what a value should be."""
    with pytest.raises(UserError, match=f"{hint}$"):
        override(registry.load(name), arguments)


def test_unknown_data_names_the_nearest(tmp_path, monkeypatch):
    """A cache that nothing prepares is a misspelt name; one that can be prepared names the command; a source must be there."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"gpt_smal; did you mean 'gpt_small'\?$"):
        read_manifest(tmp_path / "caches" / "gpt_smal")
    with pytest.raises(UserError, match=r"; run: python -m scripts\.prepare_data gpt_small, or scripts\.train with --prepare$"):
        read_manifest(tmp_path / "caches" / "gpt_small")
    with pytest.raises(UserError, match=r"^'/nonexistent': no such file or folder$"):
        settings_from("/nonexistent")


class Built(Exception):
    """A command has built its parser."""


def parsers(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[argparse.ArgumentParser]:
    """The parser of a command, and those of its subcommands."""

    def stop(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise Built(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
    monkeypatch.setattr(sys, "argv", [str(path)])
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    with pytest.raises(Built) as built:
        module.main()
    (parser,) = built.value.args
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *itertools.chain(*(action.choices.values() for action in below))]


COMMANDS = [path for path in sorted((ROOT / "scripts").glob("**/*.py")) if ".add_argument(" in path.read_text()]
COMMANDS.remove(ROOT / "scripts" / "cli.py")
SWITCHES_ON = """all beam calibrate check checkpoint columns compare experiment file from hlo image key like mlperf
mlperf-target out paper
page plan plot profile system topology vocabulary watch zone"""
"""Options with a value without which something is not done."""


@pytest.mark.parametrize("path", COMMANDS, ids=[str(path.relative_to(ROOT / "scripts").with_suffix("")) for path in COMMANDS])
def test_every_option_says_what_it_is_and_what_is_taken_without_it(path, monkeypatch):
    """--help has a line about each argument, with its default: the value, or in words."""
    for parser in parsers(path, monkeypatch):
        formatter = parser._get_formatter()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                assert all(choice.help for choice in action._choices_actions)
                continue
            assert action.help, action
            shown, names = formatter._expand_help(action), {option.lstrip("-") for option in action.option_strings}
            if not names or action.required or action.nargs == 0 or names & {*SWITCHES_ON.split()}:
                continue
            assert shown.count("default") == 1, shown


def test_prepare_data_lists_what_own_data_takes_further():
    """Beside the parser's own options: the fields of each kind, with their defaults."""
    options = own_options()
    for option in ("--seconds 16.0", "--variables ()", "--test 0.1", "--reference ''", "--channels 3", "--selection.event 0.0"):
        assert option in options


@pytest.mark.integration
def test_an_mlperf_target_is_for_a_log(tmp_path):
    line = refused("scripts.train", "gshard_m4.quickstart", "--workdir", str(tmp_path / "w"), "--mlperf-target", "20")
    assert "--mlperf-target 20 is for a log, which only --mlperf DIR writes" in line


@pytest.mark.integration
def test_a_misspelt_override_is_refused(tmp_path):
    line = refused("scripts.train", "gshard_m4.quickstart", "--workdir", str(tmp_path / "w"), "--train.stesp", "5")
    assert "--train.stesp" in line and "did you mean 'train.steps'?" in line
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--train.steps", "many"], ["--train.steps", "'many': expected a whole number"]),
        (["--execution.dispatch", "einsam"], ["--execution.dispatch", "'einsam'", "did you mean 'einsum'?"]),
        (["--model.layers", "6"], ["layers=6", "nearest are 4 and 8"]),
        (["--layout", "tensor_paralel"], ["no layout 'tensor_paralel'", "did you mean 'tensor_parallel'?"]),
        (["--layout", "tensor_parallel:2by4"], ["'tensor_parallel:2by4'", "a mesh of 2 sizes", "tensor_parallel:2x4"]),
        (["--steps", "3"], ["--steps; choose from optimizer.schedule.steps, train.steps"]),
        (["--optimizer.schedule.warmup", "9999"], ["optimizer.schedule: warmup=9999", "below steps=500", "nearest is 499"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_bad_values_are_refused(arguments, parts):
    """Typed values, choices, impossible sizes, layouts: the line names the field, the value and what would do."""
    p = cli.parser("")
    cli.add_experiment(p)
    args, overrides = p.parse_known_args(["gshard_m4.quickstart", *arguments])
    with pytest.raises(ValueError) as caught:
        cli.chosen(args, overrides)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("address", ["s3://runs/mine", "file:///runs/mine", "GS://runs/mine", "gs:/runs/mine"])
@pytest.mark.parametrize("option", ["--train.checkpoint.folder", "--workdir"])
def test_an_address_that_cannot_be_written_is_refused(option, address, tmp_path, monkeypatch):
    """Before anything is made: neither the run's folder nor a tree "s3:/runs/mine" below this one."""
    monkeypatch.chdir(tmp_path)
    arguments = {"--workdir": "run"} | {option: address}
    monkeypatch.setattr(sys, "argv", ["train", "gpt.quickstart", "--tiny", *itertools.chain(*arguments.items())])
    with pytest.raises(UserError) as caught:
        train_script.main()
    message = str(caught.value)
    assert option.lstrip("-") in message and repr(address) in message and "path" in message
    assert ("gs://BUCKET/FOLDER" in message) == (option == "--train.checkpoint.folder")
    assert not list(tmp_path.iterdir())


def test_overrides_are_typed():
    """Numbers, choices, members of unions and layouts arrive as what they are."""
    p = cli.parser("")
    cli.add_experiment(p)
    line = "gshard_m4.quickstart --layout mixed:2x4 --execution.dispatch einsum --train.clip-norm 1 --optimizer.schedule.warmup 7"
    e = cli.chosen(*p.parse_known_args(line.split()))
    assert e.execution.dispatch == "einsum"
    assert e.train.clip_norm == 1.0 and e.optimizer == dataclasses.replace(
        e.optimizer, schedule=Cosine(peak=0.03, steps=500, warmup=7, floor=0.02)
    )
    assert e.layout.name == "mixed" and dict(e.layout.mesh) == {"data": 2, "model": 4}
    two = cli.named_layout(e, "2xmixed:2x2")
    assert dict(two.mesh) == {"slice": 2, "data": 2, "model": 2}
    assert cli.named_layout(dataclasses.replace(e, layout=two), "mixed") == two  # on the experiment's own mesh


@pytest.mark.integration
def test_show_lists_the_experiments():
    """Without a name, every experiment stands with the first line of its page."""
    done = command("scripts.show", "--json")
    listed = json.loads(done.stdout)
    assert list(listed) == registry.names() and all(listed.values())
    assert not any(line.startswith("The same") for line in listed.values())  # each is read by itself


@pytest.mark.integration
def test_show_prints_a_giant_without_arrays():
    """The 600B model: totals, components and every tensor's shape, names, spec and bytes on one of 2048 chips."""
    result = json.loads(command("scripts.show", "gshard_m4.moe_2048e_36l", "--json").stdout)
    assert {"experiment", "parameters", "components", "tensors"} <= result.keys()
    assert result["parameters"] == 619_399_180_288 == sum(result["components"].values())
    wi = next(t for t in result["tensors"] if t["name"] == "encoder.sparse.ffn.wi")
    assert wi["shape"] == [9, 2048, 1024, 8192] and wi["spec"] == "(-, data*expert, -, -)"
    assert wi["bytes_per_device"] == 9 * 1024 * 8192 * 4  # one expert a chip


def test_a_description_begins_at_the_margin():
    """The text of an experiment is printed alike by each Python: from 3.13 on, docstrings come without their indentation."""
    e = registry.load("gpt.quickstart")
    lines = tables.as_text(e, tables.describe(e)).partition("\nConfig\n")[0].splitlines()
    assert len(lines) > 2 and not any(line.startswith(" ") for line in lines)


@pytest.mark.integration
@pytest.mark.nightly
def test_show_counts_collectives():
    """The quickstart's step exchanges tokens by all-to-all and gathers no expert: read off the compiled program."""
    done = command("scripts.show", "gshard_m4.quickstart", "--synthetic", "--collectives", "--json")
    result = json.loads(done.stdout)["collectives"]
    exchanges = [row for row in result["rows"] if row["kind"] == "all-to-all"]
    assert {row["component"]: row["count"] for row in exchanges} == {"encoder": 6, "decoder": 6}
    assert all(row["axes"] == ["expert"] for row in exchanges) and result["expert_gathers"] == 0


@pytest.mark.integration
def test_help_is_the_command_s_page():
    """--help prints the module's docstring with its examples."""
    done = command("scripts.train", "--help")
    assert done.returncode == 0
    assert (train_script.__doc__ or "").strip().splitlines()[0] in done.stdout and "Exit codes" in done.stdout


@pytest.mark.integration
def test_no_checkpoint_is_said_so(tmp_path):
    """A folder that is neither a run nor a release is named, with what was looked for."""
    line = refused("scripts.translate", "--checkpoint", str(tmp_path), "--from", "de", "Hallo")
    assert str(tmp_path) in line and "checkpoints/" in line and "SHA256SUMS" in line


def test_every_command_of_the_readme_exists():
    """The README and the documents name modules that are there."""
    import re

    root = Path(__file__).parents[2]
    named = {
        (page, module)
        for page in [root / "README.md", *(root / "docs").glob("*.md")]
        for module in [
            *re.findall(r"python -m (scripts(?:\.\w+)+)", page.read_text()),
            *(f"scripts.{name}" for name in re.findall(r"^ +(?:\.venv/bin/)?shardzoo (\w+)", page.read_text(), re.MULTILINE)),
        ]
    }
    assert len(named) > 8
    for page, module in named:
        assert (root / (module.replace(".", "/") + ".py")).exists(), (page, module)


def test_show_lists_the_fields(monkeypatch, capsys):
    """Each field stands with its type, its value and its meaning; a layout and overrides are in the values."""
    monkeypatch.setattr(sys, "argv", ["show", "gpt.quickstart", "--fields", "--train.steps", "7"])
    assert show.main() == 0
    out = capsys.readouterr().out
    assert "\n--train.steps int\n    = 7\n    optimizer steps of the whole run.\n" in out
    assert '\n--train.finetune.init_from str\n    = ""\n' in out
