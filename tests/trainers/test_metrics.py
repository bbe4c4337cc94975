"""A run's logs: a broken line costs that line, never the run; a full disk ends the run in one line."""

import itertools
import json
import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import masked_crc32c

from tests.helpers.runs import fill_disk_of
from trainers import runlog
from trainers.monitoring import metrics

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


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def board_events(workdir: Path) -> list[Event]:
    """The events of a run's only file of TensorBoard's, whose checksums are right."""
    (path,) = (workdir / "tensorboard").iterdir()
    content, at, events = path.read_bytes(), 0, []
    while at < len(content):
        length, checksum = struct.unpack_from("<QI", content, at)
        record = content[at + 12 : at + 12 + length]
        assert checksum == masked_crc32c(content[at : at + 8])
        assert struct.unpack_from("<I", content, at + 12 + length) == (masked_crc32c(record),)
        events.append(Event.FromString(record))
        at += length + 16
    return events


def test_tensorboard_has_what_was_logged_as_soon_as_it_is_logged(tmp_path):
    """Before the writer is closed its file has the scalars and histograms; what is not finite is left out of histograms alone."""
    writer = metrics.MetricWriter(tmp_path, 4)
    writer.write(5, {"loss": 2.5, "moe/load": [0.25, 0.5, 0.25, float("nan")], "moe/lost": [float("nan")]})
    version, start, *logged = board_events(tmp_path)
    assert (version.file_version, start.step, start.session_log.status) == ("brain.Event:2", 5, start.session_log.START)
    values = {event.summary.value[0].tag: (event.step, event.summary.value[0]) for event in logged}
    assert values.keys() == {"loss", "moe/load"} and all(step == 5 for step, _ in values.values())
    assert values["loss"][1].simple_value == 2.5
    load = values["moe/load"][1].histo
    assert (load.num, load.min, load.max, load.sum) == (3, 0.25, 0.5, 1.0)
    assert [count for count in load.bucket if count] == [2, 1]
    writer.close()


# --- disks that are full ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_a_full_disk_is_named_by_the_first_write_that_fails(tmp_path, name):
    """The error has the file's path and the code of runs that cannot write; so has that of closing it, and none of them waits."""
    writer = metrics.MetricWriter(tmp_path, 0)
    writer.write(1, {"loss": 2.0})
    fill_disk_of(tmp_path / name)
    for call in (lambda: writer.write(2, {"loss": 1.0}), writer.close):
        with pytest.raises(runlog.StoreError, match=rf"{name}.* cannot be written: No space left on device") as refused:
            call()
        assert refused.value.exit_code == 74
    again = metrics.MetricWriter(tmp_path, 1)
    again.write(2, {"loss": 1.0})
    again.close()
    assert metrics.read(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]


def test_an_event_behind_half_a_line_is_a_line_of_its_own(tmp_path):
    """Wherever a kill or a full disk has cut the line of a stop, the next start is read, and so is all before the cut line."""
    for name in ("start", "stop"):
        runlog.append(tmp_path, name, step=1)
    content = (tmp_path / "run.jsonl").read_bytes()
    first = content.index(b"\n") + 1
    for length in itertools.chain(range(first + 1, len(content)), [0]):
        (tmp_path / "run.jsonl").write_bytes(content[:length])
        runlog.append(tmp_path, "start", step=2)
        events = [(event["event"], event["step"]) for event in runlog.events(tmp_path)]
        whole = length == len(content) - 1  # the line break alone is lost
        assert events == [("start", 1)] * bool(length) + [("stop", 1)] * whole + [("start", 2)]


def test_half_a_line_that_a_full_disk_leaves_costs_no_other(tmp_path):
    """The disk is full within the line of a step: the line is not read, and a run that goes on writes it again."""
    writer = metrics.MetricWriter(tmp_path, 0)
    writer.write(1, {"loss": 2.0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "lo')
    writer.close()
    again = metrics.MetricWriter(tmp_path, 1)
    again.write(2, {"loss": 1.0})
    again.close()
    assert metrics.read(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
