"""metrics.jsonl: a broken line costs that line, never the run."""

import json

import pytest

from trainers import metrics

FIRST, SECOND, THIRD = ({"step": n, "loss": 4.0 / n} for n in (1, 2, 3))


def line(values) -> bytes:
    return json.dumps(values).encode() + b"\n"


BROKEN = [
    pytest.param(b"\0" * 16 + b"\n", id="NULs of a power cut"),
    pytest.param(b'{"step": 2, "loss": \xff}\n', id="no UTF-8"),
    pytest.param(b'{"step": 2, "lo\n', id="half a line"),
    pytest.param(b"[" * 100_000 + b"\n", id="too deep"),
    pytest.param(b"[1, 2]\n", id="no object"),
    pytest.param(b'{"loss": 2.0}\n', id="no step"),
    pytest.param(b'{"step": "2"}\n', id="step that is no number"),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_line_is_left_out_and_counted(tmp_path, capsys, broken):
    """Readers get the sound lines, and one line on standard error says how many were not."""
    (tmp_path / "metrics.jsonl").write_bytes(line(FIRST) + broken + line(THIRD))
    assert metrics.read(tmp_path) == [FIRST, THIRD]
    captured = capsys.readouterr()
    assert captured.err == f"{tmp_path / 'metrics.jsonl'}: 1 of 3 lines are broken and left out\n" and not captured.out


@pytest.mark.parametrize("broken", BROKEN)
def test_a_run_goes_on_after_a_broken_line(tmp_path, capsys, broken):
    """Resumed at step 1, the log keeps that step's line with its very bytes, and the next line follows it."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(FIRST) + broken + line(THIRD))
    writer = metrics.MetricWriter(tmp_path, 1)
    assert "1 of 3 lines are broken" in capsys.readouterr().err
    writer.write(2, {"loss": 2.0})
    writer.close()
    assert path.read_bytes() == line(FIRST) + line(SECOND)
    assert metrics.read(tmp_path) == [FIRST, SECOND]
    assert not capsys.readouterr().err


def test_half_of_a_last_line_is_what_a_kill_leaves(tmp_path, capsys):
    """It is left out without a word: a resumed run writes that step again."""
    (tmp_path / "metrics.jsonl").write_bytes(line(FIRST) + line(SECOND)[:9])
    assert metrics.read(tmp_path) == [FIRST]
    assert not capsys.readouterr().err
