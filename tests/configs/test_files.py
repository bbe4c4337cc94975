"""Experiments in a user's own files: found anywhere, refused in one line, and opened again from what a run has stored."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import files, registry
from models.errors import UserError
from models.families import FAMILIES
from scripts import show as show_script
from tests.helpers import own

MINE = '''
import dataclasses

from configs import gpt
from configs.experiment import Experiment
from mine_too import LAYERS


def small() -> Experiment:
    """A page of its own."""
    return dataclasses.replace(gpt.quickstart(), model=dataclasses.replace(gpt.quickstart().model, layers=LAYERS))


def number() -> int:
    return 3


def misspelt() -> Experiment:
    return dataclasses.replace(gpt.quickstart(), modle=3)


def impossible() -> Experiment:
    return dataclasses.replace(gpt.quickstart(), model=dataclasses.replace(gpt.quickstart().model, layers=-1))
'''


@pytest.fixture(autouse=True)
def as_before(tmp_path, monkeypatch) -> Iterator[None]:
    """Nothing of the tests' files stays; classes are noted in a data folder of the test's own."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    with own.forgotten(tmp_path):
        yield


@pytest.fixture
def mine(tmp_path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine_too.py").write_text("LAYERS = 2\n")
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text("import mine_too\n\nx = mine_too.NONE\n")
    (folder / "odd.py").write_text("def f(:\n")
    return folder / "mine.py"


def test_a_function_of_a_file_anywhere(mine, monkeypatch):
    """The file imports what lies beside it; the experiment is named without folders; a path is the working folder's."""
    e = registry.load(f"{mine}:small")
    assert e.name == "mine.py:small" and e.model == dataclasses.replace(registry.load("gpt.quickstart").model, layers=2)
    assert registry.page(e.name) == "A page of its own."
    monkeypatch.chdir(mine.parent.parent)
    assert registry.load("elsewhere/mine.py:small") == e
    assert files.absolute("elsewhere/mine.py:small") == f"{mine}:small"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mine.py:smal", "{}/mine.py: no experiment 'smal'; did you mean 'small'?"),
        ("mine.py", "{}/mine.py: which of its experiments? {}/mine.py:NAME with NAME from small, misspelt, impossible"),
        ("mind.py:small", "no file {}/mind.py; did you mean 'mine.py'?"),
        ("none/mine.py:small", "no file {}/none/mine.py"),
        ("mine_too.py:x", "{}/mine_too.py has no function that returns an Experiment"),
        ("mine.py:number", "{}/mine.py:number returns a value of type int, and an Experiment is needed"),
        ("mine.py:misspelt", "{}/mine.py:19: TypeError: Experiment.__init__() got an unexpected keyword argument 'modle'"),
        ("mine.py:impossible", "{}/mine.py:23: "),
        ("broken.py:x", "{}/broken.py:3: AttributeError: module 'mine_too' has no attribute 'NONE'"),
        ("odd.py:x", "{}/odd.py:1: SyntaxError: "),
        ("mine.json", "no file {}/mine.json"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(mine, name, line):
    """No file, no function, no experiment, or an exception, which names its place in the file."""
    with pytest.raises(UserError) as caught:
        registry.load(f"{mine.parent}/{name}")
    message = str(caught.value)
    assert message.startswith(line.format(*[mine.parent] * 4)) and len(message.splitlines()) == 1


def test_a_file_does_not_hide_a_module(tmp_path):
    """A file that is named as a module which Python finds first is refused by its name, and the other one is named."""
    (tmp_path / "json.py").write_text(MINE)
    with pytest.raises(UserError, match=r"/json\.py: there is another module 'json' \(.*/json/__init__\.py\); rename the file"):
        registry.load(f"{tmp_path}/json.py:small")
    for name in ("abc", "time"):  # frozen, and built in
        (tmp_path / f"{name}.py").write_text(MINE)
        with pytest.raises(
            UserError, match=rf"/{name}\.py: there is another module '{name}' \(of Python's own\); rename the file"
        ):
            registry.load(f"{tmp_path}/{name}.py:small")


def test_json_that_is_printed_is_read_exactly(tmp_path, monkeypatch, capsys):
    """`scripts.show NAME --json > mine.json` gives the experiment back, changed fields and all, whole or its part alone."""
    monkeypatch.setattr(sys, "argv", ["show", "gshard_m4.quickstart", "--train.steps", "70", "--layout", "mixed:2x4", "--json"])
    assert not show_script.main()
    printed = json.loads(capsys.readouterr().out)
    e = registry.load("gshard_m4.quickstart").with_steps(70)
    for name, values in (("whole.json", printed), ("part.json", printed["experiment"])):
        (tmp_path / name).write_text(json.dumps(values))
        read = registry.load(str(tmp_path / name))
        assert read.layout.name == "mixed" and read == dataclasses.replace(e, name=name, layout=read.layout)
    values["model"]["moe"]["expert"] = {}
    (tmp_path / "part.json").write_text(json.dumps(values))
    with pytest.raises(
        UserError, match=r"/part\.json: experiment\.model\.moe: unknown field 'expert'; did you mean 'experts'\?$"
    ):
        registry.load(str(tmp_path / "part.json"))


def test_a_class_of_a_file_is_found_again(tmp_path):
    """A stored experiment whose family a file has registered opens the file, once a command was given it, while it is there."""
    package = tmp_path / "abacus"
    package.mkdir()
    (package / "__init__.py").write_text("from models.families import FAMILIES\n\nFAMILIES['abacus'] = 'abacus'\n")
    (package / "config.py").write_text(
        "import dataclasses\nfrom typing import ClassVar\n\n\n@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class AbacusConfig:\n    family: ClassVar[str] = 'abacus'\n    beads: int = 10\n\n\nCONFIG = AbacusConfig\n"
    )
    (package / "experiments.py").write_text(
        "import dataclasses\n\nfrom abacus.config import AbacusConfig\nfrom configs import gpt\n\n\n"
        "def small():\n    return dataclasses.replace(gpt.quickstart(), model=AbacusConfig(beads=5))\n"
    )
    e = registry.load(f"{package}/experiments.py:small")
    assert e.name == "abacus/experiments.py:small"
    stored = registry.to_json(e)
    for _ in range(2):  # as in a process that was not given the file
        own.forget(tmp_path)
        assert registry.to_json(registry.from_json(stored)) == stored and "abacus" in FAMILIES
    own.forget(tmp_path)
    (package / "experiments.py").unlink()
    gone = rf"^experiment\.model: AbacusConfig is a class of {package}/experiments\.py, which is not there any more$"
    with pytest.raises(UserError, match=gone):
        registry.from_json(stored)
    (tmp_path / "data" / files.NOTED).unlink()
    with pytest.raises(UserError, match=r"'AbacusConfig' unknown.*is known after scripts\.show FILE\.py:NAME$"):
        registry.from_json(stored)
