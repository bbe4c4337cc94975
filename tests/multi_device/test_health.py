"""A process whose rows come late is marked on the page of a real run of two processes."""

import pytest

from scripts import report
from tests.helpers.launched import Starter
from trainers import runlog
from trainers.monitoring import health, history
from trainers.monitoring.goodput import WAITING

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STEPS = 4


def test_a_process_that_reads_slowly_is_marked(tmp_path):
    """Its devices are without rows in every step; the other process waits for as long, which its goodput calls waiting. There is
    nothing about the devices' memory, which CPUs do not tell, and a lateness of each of the eight devices."""
    arguments = [
        "gpt.quickstart",
        "--tiny",
        "--layout",
        "fully_sharded:2x4",
        "--train.steps",
        str(STEPS),
        "--train.log_every",
        "2",
    ]
    with Starter(tmp_path) as start:
        run = start("run", 2, *arguments, through="tests.multi_device.lagging")
        assert run.end() == [runlog.DONE] * 2, run.complained(0)
    h = history.read(run.workdir)
    quick, slow = health.processes_of(h.host_lines, 2)
    assert slow.slow and not quick.slow
    assert slow.idle > quick.waited > quick.idle and slow.waited == 0
    assert h.goodput is not None and h.goodput.seconds[WAITING] > 0.9 * quick.waited
    devices = health.devices_of(h.host_lines, 2)
    assert [device.process for device in devices] == [0] * 4 + [1] * 4
    assert all(device.gib is None and device.late is not None for device in devices)
    text = report.write(run.workdir).read_text()
    _, page = text.split("<h2>Processes</h2>")
    first, second = page.split("<tr>")[2:4]
    assert '<td class="n">1</td>' in first and ">slow<" in first and ">slow<" not in second
    assert "goodput" in run.said(0) and "goodput" not in run.said(1)
