"""TensorFlow's set-up: its libraries' lines are dropped, and errors are not."""

import subprocess
import sys

import pytest

from data import stages


@pytest.mark.integration
def test_tensorflow_is_imported_without_a_word():
    """A preparation prints its own lines alone, also where JAX, which sets a level of logging, was imported before."""
    program = "import jax\nfrom data import stages\nstages.quiet_tensorflow()\nimport tensorflow_text"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_held_back_is_shown_where_the_block_fails(capfd):
    """Lines are dropped after success, shown before an error, and come as always behind the block."""
    with stages.output_held_back():
        _write("dropped")
    with pytest.raises(ValueError), stages.output_held_back():
        _write("why")
        raise ValueError
    _write("after")
    assert capfd.readouterr().err == "why\nafter\n"


def _write(line: str) -> None:
    """As a library does, past `sys.stderr`."""
    with open(2, "w", closefd=False) as stderr:
        print(line, file=stderr)
