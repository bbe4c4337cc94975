"""The versions of Python and JAX that the zoo takes, and how it says so."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from data.paths import ROOT
from scripts import versions
from tests.helpers.compiling import known_flags

LOCK = """
jax==0.10.2 ; python_full_version < '3.12' \\
    --hash=sha256:0
jax==0.12.0.1 ; python_full_version >= '3.12' \\
jaxlib==0.13.0 \\
"""
RANGE = "than requirements.lock has packages for (3.11 to 3.13): name one of these, as PYTHON=python3"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ((3, 10), f"error: Python 3.10 is older {RANGE}.11"),
        ((3, 11), ""),
        ((3, 13), ""),
        ((3, 14), f"error: Python 3.14 is newer {RANGE}.13"),
    ],
)
def test_a_python_without_packages_is_refused_in_one_line(version, message):
    """The line names the version, those that can be, and what to type."""
    assert versions.python_refusal(version) == message


@pytest.mark.parametrize(("installed", "known"), [("0.10.2", True), ("0.12.1", True), ("0.11.0", False), ("0.13.0", False)])
def test_a_release_of_jax_that_was_not_tested_is_named(installed, known):
    """One of the lock's, up to its last number, is taken without a word; another gives a line, and no refusal."""
    line = versions.jax_warning(installed, LOCK)
    assert not line if known else f"jax {installed} is installed, and this was tested with 0.10.2 and 0.12.0.1" in line


def test_the_installed_jax_is_one_of_the_lock():
    """The suite runs on a JAX that no command warns of."""
    assert not versions.jax_warning(importlib.metadata.version("jax"), versions.LOCK.read_text())


@pytest.mark.integration
def test_every_command_begins_with_the_warning(tmp_path):
    """It goes to standard error, and the command does what it does."""
    program = (
        "import importlib.metadata as m, sys; known = m.version;"
        "m.version = lambda name: '99.1' if name == 'jax' else known(name);"
        "sys.argv = ['show', 'gpt.quickstrat']; from scripts import cli, show; cli.run(show.main)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    warning, error = done.stderr.splitlines()
    assert warning.startswith("warning: jax 99.1 is installed") and "did you mean 'gpt.quickstart'?" in error


@pytest.mark.integration
def test_make_refuses_before_anything_is_installed(tmp_path):
    """An environment's own Python is asked, not the one that would make another; where there is none, PYTHON."""
    lines = (
        f"import sys; sys.version_info = (3, 14); sys.argv = [{str(ROOT / 'scripts/versions.py')!r}]; "
        f"import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    newer = _program(tmp_path / "newer", f'exec {sys.executable} -c "{lines}"')
    installed = _program(tmp_path / "venv/bin/python", "echo $0 $*")
    for environment, code in ((tmp_path / "none", 2), (tmp_path / "venv", 0)):
        command = ["make", "--silent", "setup", f"VENV={environment}", f"PYTHON={newer}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == code, done
        assert ("error: Python 3.14 is newer" in done.stderr) == bool(code)
        assert environment.exists() != bool(code)
    assert str(installed) in done.stdout  # what "installs"


@pytest.mark.integration
def test_the_newest_python_that_runs_is_taken(tmp_path):
    """Newer than the lock's last is passed over, and so is a command that does not run, as pyenv's do where no version was
    chosen; pyenv's own folders come last."""
    path, pyenv = f"{tmp_path / 'a'}:{tmp_path / 'b'}", tmp_path / "pyenv"
    assert versions.newer_python(11, path, pyenv) == ""
    at = {n: _program(tmp_path / "b" / f"python3.{n}", f"echo {n}") for n in (12, 14)}
    assert versions.newer_python(11, path, pyenv) == at[12]
    _program(tmp_path / "a/python3.13", "echo command not found >&2; exit 127")
    assert versions.newer_python(11, path, pyenv) == at[12]
    newest = _program(pyenv / "versions/3.13.0/bin/python3.13", "echo 13")
    assert versions.newer_python(11, path, pyenv) == versions.newer_python(12, path, pyenv) == newest
    assert versions.newer_python(13, path, pyenv) == ""


def _program(path: Path, line: str) -> str:
    """Writes a program of one line of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.integration
def test_flags_that_the_compiler_lacks_are_left_out():
    """XLA ends the process at an unknown flag: only those that the installed release has are set."""
    known, unknown = "--xla_backend_optimization_level=0", "--xla_cpu_no_such_flag=true"
    assert known_flags((known, unknown)) == known
    assert known_flags((unknown,)) == ""
