"""A process that dies, stops or is slow is named by the others, which end and ask for a restart; two and four processes."""

import dataclasses
import signal
import subprocess
import sys

import jax
import pytest

from models.errors import UNSAVED
from tests.helpers.launched import Run, Starter
from trainers import runlog
from trainers.monitoring import stalls
from trainers.monitoring.stalls import ENDED, EVALUATING, READING, STARTING, STEPPING, Sighting, culprit, is_of_a_collective

STALL = 10  # seconds, which a loaded machine needs between two signs of life
# Dropout is off, and the mesh has eight devices: any number of processes computes the same.
COMMAND = [
    "gpt.quickstart",
    "--tiny",
    "--layout",
    "fully_sharded:2x4",
    "--train.steps",
    "100000",
    "--train.checkpoint.every",
    "2",
    "--train.faults.stall_seconds",
    str(STALL),
    "--train.log_every",
    "1",
]


def test_the_process_for_which_the_others_wait_is_named():
    """Silence comes before slowness; who is behind is the one at the earliest step, and there at the earliest part of it."""
    waiting = Sighting(7, STEPPING, silent=1, still=12)
    assert culprit([waiting, dataclasses.replace(waiting, silent=11)], 10) == (
        1,
        "process 1 gives no sign of life for 11 s (it was stepping at step 7)",
    )
    behind = Sighting(7, READING, still=12)
    assert culprit([waiting, waiting, behind, waiting], 10) == (
        2,
        "process 2 is behind: it has been reading data at step 7 for 12 s, for which the others wait",
    )
    assert culprit([waiting, dataclasses.replace(waiting, step=6)], 10) == (
        1,
        "process 1 is behind: it has been stepping at step 6 for 12 s, for which the others wait",
    )
    assert culprit([waiting, waiting], 10) == (None, "no process is behind, but step 7 has not ended for 12 s")


def test_who_moves_starts_evaluates_or_has_ended_is_left_alone():
    """Nobody is named while a process moves, while one still compiles or has not spoken for a while, or while all evaluate, which
    may take long; nor is one that has ended, while the others still close their files."""
    waiting = Sighting(7, STEPPING, still=12)
    assert culprit([waiting, Sighting(7, READING, still=9)], 10) is None
    assert culprit([waiting, Sighting(0, STARTING, still=1000)], 10) is None
    assert culprit([waiting, Sighting(6, STEPPING, silent=9, still=12)], 10) is None  # stopped rather than slow, perhaps
    assert culprit([Sighting(7, EVALUATING, still=1000)] * 2, 10) is None
    assert culprit([waiting, Sighting(8, ENDED, silent=1000, still=1000)], 10) is None


def test_a_failure_is_named_before_what_follows_from_it():
    """A process whose collective failed has lost another; one with an error of its own is the cause."""
    lost = Sighting(7, STEPPING, failure="JaxRuntimeError: connection closed", lost=True)
    failed = Sighting(7, READING, failure="ValueError: a broken row")
    assert culprit([lost, failed], 10) == (1, "process 1 failed at step 7: ValueError: a broken row")
    assert culprit([lost, Sighting(7, STEPPING)], 10) is None


ABORTED = """
import os, sys, threading, time
from pathlib import Path
from trainers.monitoring import stalls

watch = stalls.Watch(Path(sys.argv[1]), 10, last_words)
stalls._on_abort(watch._aborted)
threading.Thread(target=watch._last, args=(1, "process 1 is behind", 75)).start()
ending.wait()
os.abort()
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
        (ValueError("operands could not be broadcast together"), False),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
    ],
)
def test_a_collectives_failure_is_told_from_an_own_one(error, expected):
    """A collective fails as one of two exceptions; an error of the process itself, or memory that is missing, is its own."""
    assert is_of_a_collective(error) is expected


class Full:
    """Standard error on a disk without room."""

    def write(self, text: str) -> None:
        raise OSError(28, "No space left on device")

    flush = write


def test_a_process_ends_although_nothing_can_be_written(tmp_path, monkeypatch):
    """Neither standard error nor the run's log, which a full disk may hold both."""
    ended = []

    def refused(*args: object, **fields: object) -> None:
        raise runlog.StoreError("no space")

    monkeypatch.setattr(stalls.os, "_exit", ended.append)
    monkeypatch.setattr(stalls.sys, "stderr", Full())
    monkeypatch.setattr(stalls.runlog, "append", refused)
    stalls.Watch(tmp_path, 0.1)._last(0, "process 1 is behind", 75)
    assert ended == [75]


@pytest.mark.parametrize(("first", "logged"), [({"failure": "a fault of its own"}, []), ({}, ["process 0 is lost"])])
def test_the_second_process_logs_the_end_of_a_first_that_cannot(tmp_path, monkeypatch, first, logged):
    """A first process that failed by itself has logged why, and the code of that."""
    lines = []
    monkeypatch.setattr(stalls.runlog, "append", lambda workdir, event, **fields: lines.append(fields["error"]))
    watch = stalls.Watch(tmp_path, 1.0)
    watch._me, watch._others = 1, {0: (first, 0.0, 0.0)}
    watch._log_end(0, "process 0 is lost", 75)
    assert lines == logged


@pytest.mark.parametrize(("unsaved", "code"), [(True, UNSAVED), (False, runlog.PREEMPTED)])
def test_a_process_ends_with_the_code_of_one_that_cannot_write(tmp_path, monkeypatch, capsys, unsaved, code):
    """The first process says that it cannot; any other failure of its own asks for a restart."""
    watch = stalls.Watch(tmp_path, 1000)
    watch._beat = 0.01
    failed = {"step": 3, "doing": STEPPING, "failure": "StoreError: no space", "lost": False, "unsaved": unsaved}
    watch._me, watch._all, watch._others = 1, 2, {0: (failed, 0.0, 0.0), 1: ({"step": 3, "doing": STEPPING}, 0.0, 0.0)}

    def ended(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(stalls.os, "_exit", ended)
    with pytest.raises(SystemExit) as end:
        watch._judge()
    assert end.value.code == code
    said = capsys.readouterr().err
    assert said.startswith("error: process 0 failed at step 3: StoreError") and ("run the same command again" in said) != unsaved


@pytest.mark.integration
@pytest.mark.parametrize("where", ["another thread", "the thread that ends it"])
def test_a_process_that_is_aborted_while_it_ends_keeps_its_code(tmp_path, where):
    """XLA aborts a process whose collective fails: one that already says why it ends goes on with that."""
    last_words = {
        "another thread": "import threading, time\nending = threading.Event()\n"
        "last_words = lambda seconds: [ending.set(), time.sleep(1), 'all is saved'][-1]",
        "the thread that ends it": "import os, threading\nending = threading.Event()\nlast_words = lambda seconds: os.abort()",
    }[where]
    run = subprocess.run([sys.executable, "-c", last_words + ABORTED, str(tmp_path)], capture_output=True, text=True)
    assert run.stderr.startswith("error: process 1 is behind; run the same command again"), run.stderr
    if where == "another thread":
        assert run.returncode == runlog.PREEMPTED and "all is saved" in run.stderr
    else:
        assert run.returncode == -signal.SIGABRT  # and does not wait for itself for ever


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with Starter(tmp_path_factory.mktemp("stalls")) as starter:
        yield starter


def ends(run: Run, lost: int, said: str) -> None:
    """All processes but the lost one say this line and end with the code that asks for a restart, and run.jsonl says so too."""
    left = [n for n in range(len(run.processes)) if n != lost]
    codes = Run([run.processes[n] for n in left], run.workdir, run.notes).end()
    errors = [run.complained(n) for n in left]
    assert codes == [runlog.PREEMPTED] * len(left), errors
    assert all(f"error: {said}" in text and "run the same command again" in text for text in errors), errors
    stop = run.events()[-1]
    assert stop["event"] == "stop" and stop["exit_code"] == runlog.PREEMPTED and stop["process"] == lost
    assert stop["error"].startswith(said)


@pytest.mark.slow
@pytest.mark.integration
def test_killed_stopped_and_slow_processes_are_named_and_fewer_go_on(start):
    """The last of four processes is killed; then of two the second is stopped, then slow, then the first is killed. Every start
    goes on from the last save, and notes that there are fewer processes."""
    run = start("run", 4, *COMMAND)
    run.wait_for("step 5/")
    run.processes[3].kill()
    ends(run, 3, "process 3 gives no sign of life for")
    at = run.checkpoints()[-1]
    assert at >= 2 and f"the last checkpoint is {at}" in run.complained(0)

    run = start("run", 2, *COMMAND)
    run.wait_for(f"step {at + 5}/")
    assert f"starting at step {at} from a checkpoint" in run.said(0)
    assert "going on with 2 processes; the last start had 4" in run.said(0)
    began = [event for event in run.events() if event["event"] == "start"][-1]
    assert (began["restored"], began["processes"], began["processes_before"]) == (at, 2, 4)
    run.processes[1].send_signal(signal.SIGSTOP)
    ends(run, 1, "process 1 gives no sign of life for")
    run.processes[1].send_signal(signal.SIGCONT)
    assert Run(run.processes[1:], run.workdir, run.notes).end() == [runlog.PREEMPTED]
    at = run.checkpoints()[-1]

    run = start("run", 2, *COMMAND)
    run.wait_for(f"step {at + 3}/")
    run.processes[0].kill()
    ends(run, 0, "process 0, which coordinates the others, has ended")

    run = start("slow", 2, *COMMAND, through="tests.multi_device.slowed")
    run.wait_for("step 3/")
    ends(run, 1, "process 1 is behind: it has been reading data at step 4 for")
    assert run.processes[1].wait(2 * STALL) == runlog.PREEMPTED  # it says the same of itself
    assert "process 1 is behind" in run.complained(1)


@pytest.mark.nightly
@pytest.mark.integration
def test_where_one_process_cannot_write_all_end_with_its_code(start):
    """A launcher sees the highest or the first code of many, and must not start a run again that cannot write."""
    run = start("full", 2, *COMMAND, through="tests.multi_device.slowed", FULL=str(start.root / "full"))
    assert run.end() == [UNSAVED, UNSAVED], run.complained(1)
    assert "metrics.jsonl cannot be written: No space left on device" in run.complained(0)
    assert run.complained(1).startswith("error: process 0 failed at step") and "same command again, also" not in run.complained(1)
