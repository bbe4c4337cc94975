"""TensorFlow's set-up: its libraries' lines are dropped, and errors are not."""

import io
import subprocess
import sys
import threading

import numpy as np
import pytest
import soundfile

from data import stages
from data.speech import sound


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


def test_what_threads_write_is_dropped_until_the_last_has_ended(capfd):
    """Blocks that overlap put standard error back once, also where one of them fails."""
    inside, over = threading.Barrier(2), threading.Barrier(2)

    def other() -> None:
        with stages.output_dropped():
            inside.wait()
            over.wait()
            _write("dropped")

    thread = threading.Thread(target=other)
    with pytest.raises(ValueError), stages.output_dropped():
        thread.start()
        inside.wait()
        _write("dropped too")
        raise ValueError
    _write("still dropped")
    over.wait()
    thread.join()
    _write("after")
    assert capfd.readouterr().err == "after\n"


def test_a_damaged_mp3_is_read_without_the_reader_s_notes(capfd):
    """The library says where it finds no frame, and how far a length is off; its errors are exceptions."""
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, 16_000), 16_000, format="MP3")
    whole = file.getvalue()
    half = len(whole) // 2
    assert len(sound.read(whole[:half] + bytes(500) + whole[half:]))
    with pytest.raises(sound.SoundError, match="cut short"):
        sound.read(whole[: half + 300])
    assert capfd.readouterr().err == ""


def _write(line: str) -> None:
    """As a library does, past `sys.stderr`."""
    with open(2, "w", closefd=False) as stderr:
        print(line, file=stderr)
