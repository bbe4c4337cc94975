"""The second tier of checkpoints over two processes that are really killed, each with files of its own on one host."""

import signal

import pytest
from numpy.testing import assert_allclose

from tests.helpers.launched import Run, Starter
from trainers import runlog

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STEPS = 50
ROUNDING = 1e-10  # relative, in float64, over all steps


def newest_whole(run: Run) -> int:
    """Returns the newest step of which both processes' files are there."""
    files = [path.name.split(".") for path in (run.workdir.parent / "host").glob("*/[0-9]*.npz")]
    return max(int(step) for step, start, process, end in files if process == "0" and [step, start, "1", end] in files)


def test_what_two_processes_kept_two_and_one_go_on_from(tmp_path):
    """One of two is killed: the other names its newest local state. Both go on from the newest that both have, and are killed;
    one process goes on from the pieces of both. All losses are those of a run that nothing stopped."""
    local = ["--train.checkpoint.every", "0", "--train.checkpoint.local.every", "2"]
    local += ["--train.checkpoint.local.folder", str(tmp_path / "host")]
    arguments = [
        "gpt.quickstart",
        "--tiny",
        "--layout",
        "fully_sharded:2x4",
        "--train.steps",
        str(STEPS),
        "--train.log_every",
        "1",
    ]
    arguments += ["--execution.dtype", "float64", "--train.master_dtype", "float64"]
    with Starter(tmp_path) as start:
        whole = start("whole", 1, *arguments)
        assert whole.end() == [runlog.DONE]

        killed = start("killed", 2, *arguments, *local)
        killed.wait_for("step 8/")
        killed.processes[1].kill()
        assert killed.end() == [runlog.PREEMPTED, -signal.SIGKILL]
        assert "the last checkpoint is none; the last local one of this process is " in killed.complained(0)
        first = newest_whole(killed)
        assert first >= 6

        killed = start("killed", 2, *arguments, *local)
        killed.wait_for(f"step {first + 6}/")
        assert f"starting at step {first} from a local checkpoint" in killed.said(0)
        killed.kill()
        second = newest_whole(killed)
        assert second >= first + 4

        killed = start("killed", 1, *arguments, *local)
        assert killed.end() == [runlog.DONE], killed.complained(0)
        assert f"starting at step {second} from a local checkpoint" in killed.said(0)
        assert not list((tmp_path / "host").iterdir())

    got, wanted = (run.losses() for run in (killed, whole))
    assert [line["step"] for line in got] == [line["step"] for line in wanted] == list(range(1, STEPS + 1))
    assert_allclose([line["loss"] for line in got], [line["loss"] for line in wanted], rtol=ROUNDING)
