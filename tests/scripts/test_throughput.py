"""scripts.throughput as a user runs it: one report of several processes, without TensorFlow; what it refuses, in one line."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from configs.registry import ConfigError
from scripts import throughput
from tests.helpers.compiling import CHEAP
from tests.helpers.waiting import HANGS

ALONE = """
import sys
from scripts import throughput
throughput.main()
heavy = {"tensorflow", "seqio", "tensorflow_datasets", "jinja2", "qwix"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.integration
@pytest.mark.slow
def test_two_processes_report_once_without_tensorflow():
    """Two processes measure one run: the first prints one report, of both; random tokens import no TensorFlow in either."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = ["gpt.quickstart", "--tiny", "--model.layers", "1", "--layout", "data_parallel:2x1", "--steps", "2", "--json"]
    env = os.environ | {"XLA_FLAGS": CHEAP}
    together = env | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ALONE, *line],
            env=together | {"JAX_PROCESS_ID": str(n)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for n in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=HANGS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "{" not in outputs[1][0]
    result = json.loads(outputs[0][0][outputs[0][0].index("{\n") :])
    assert result["processes"] == result["devices"] == 2 and result["tokens"] == 16 * 16 and result["steps"] == 2
    assert result["tokens_per_s_per_chip"] == pytest.approx(result["tokens_per_s"] / 2) and result["peak_flops"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps 0: at least 1 must be counted"),
        (["--steps", "few"], "argument --steps: invalid int value: 'few'"),
        (["--setps", "3"], "--setps; did you mean 'steps'?"),
        (["--compare", "zer1:2x4"], "--compare 'zer1:2x4': no such layout or experiment; did you mean 'zero1'?"),
        (["--compare", "zero1:2"], "zero1 needs a mesh of 2 sizes"),
        (["--compare", "zero1", "--profile", "x"], "choose one of them"),
        (["--compare", "zero1", "--mlperf", "x"], "choose one of them"),
        (["--compare", "bert.quickstart", "--model.buckts", "2"], "no field or option --model.buckts"),
    ],
)
def test_bad_arguments_are_refused(monkeypatch, tmp_path, arguments, message):
    """The line names the option, its value and what would do; nothing is compiled or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["throughput", "gpt.quickstart", "--synthetic", *arguments])
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        throughput.main()
    assert len(str(caught.value).splitlines()) == 1 and not list(tmp_path.iterdir())
