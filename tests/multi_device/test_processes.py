"""Several processes train as one: two, with four simulated devices each, that talk over loopback, as a user starts them."""

import fcntl
import json
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs.registry import ConfigError
from models.sharding.component import make_mesh
from models.sharding.layout import Layout, LayoutError
from models.sharding.layouts import fully_sharded
from scripts import cli
from tests.helpers.compiling import CHEAP
from tests.helpers.launched import Run, Starter
from tests.helpers.runs import damage
from trainers import runlog

OBSERVED = "tests.multi_device.observed"
ROUNDING = 1e-12  # relative, in float64; measured: 3e-16
EXACT = ["--execution.dtype", "float64", "--train.master_dtype", "float64"]
# Weights are cut along the mesh axis that spans the processes, and gathered over it; rows are cut over all devices.
GPT = [
    "gpt.quickstart",
    "--tiny",
    "--layout",
    "fully_sharded:2x4",
    *EXACT,
    "--data.cache",
    "toy",
    "--model.vocab",
    "300",
    "--eval.split",
    "test",
    "--eval.batch_size",
    "8",
    "--train.eval_every",
    "2",
    "--train.checkpoint.best",
    "eval/cross_entropy",
]
# One expert a device: tokens travel between the processes by all-to-all.
MOE = ["gshard_m4.quickstart", "--tiny", "--layout", "expert_fully_sharded:1x8", "--model.dropout", "0", *EXACT]
# Stacks in different modes, a tensor-parallel encoder under an expert-parallel decoder, over all devices of both processes.
MIXED = ["gshard_m4.quickstart", "--tiny", "--layout", "mixed:2x4", *EXACT]
# Towers in different modes: stages of the audio tower, and copies of the experts, lie in different processes.
TOWERS = ["multimodal.pod", "--tiny", "--layout", "towers:2x2x2", *EXACT]
STEPS, ROWS = 4, 16  # of a GPT run, and of each of its batches


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with Starter(tmp_path_factory.mktemp("processes")) as starter:
        yield starter


def whole(start: Starter, **processes: int) -> list[Run]:
    """GPT runs of these names side by side, to step 4, with checkpoints at 2 and 4, observed."""
    runs = [start(name, n, *GPT, "--train.steps", str(STEPS), through=OBSERVED) for name, n in processes.items()]
    for run in runs:
        assert set(run.end()) == {runlog.DONE}, run.complained(0)
    return runs


@pytest.fixture(scope="module")
def both(start) -> list[Run]:
    return whole(start, one=1, two=2)


@pytest.fixture(scope="module")
def one(both) -> Run:
    """One process with eight devices."""
    return both[0]


@pytest.fixture(scope="module")
def two(both) -> Run:
    """Two processes with four devices each."""
    return both[1]


@pytest.fixture(scope="module")
def one_then_two(start, one, two) -> Run:
    """Two processes in the folder of one, whose last checkpoint is now one of two processes of which the second cannot read
    its pieces; the second gets SIGTERM before the first step is compiled."""
    folder = start.root / "one_then_two"
    shutil.copytree(one.workdir, folder)
    last = folder / "checkpoints" / str(STEPS)
    shutil.rmtree(last)
    shutil.copytree(two.workdir / "checkpoints" / str(STEPS), last)
    damage(last / "state" / "ocdbt.process_1")
    run = start(folder.name, 2, *GPT, "--train.steps", "100000", "--train.checkpoint.every", "0", through=OBSERVED)
    run.wait_for("starting at step 2 from a checkpoint")
    run.processes[1].send_signal(signal.SIGTERM)
    run.end()
    return run


def assert_losses_equal(run: Run, reference: Run, steps: int) -> None:
    """All that both logged of the steps up to this one is equal to rounding."""
    lines, wanted = ([line for line in r.losses() if line["step"] <= steps] for r in (run, reference))
    assert [line["step"] for line in lines] == [line["step"] for line in wanted] and lines[-1]["step"] == steps
    for got, want in zip(lines, wanted, strict=True):
        assert got.keys() == want.keys()
        for key in got:
            rtol = 1e-6 if key.startswith("moe/") else ROUNDING  # routing is counted in float32
            assert_allclose(got[key], want[key], rtol=rtol, atol=1e-14, err_msg=f"{key} of step {got['step']}")


def assert_same_bits(arrays: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert arrays.keys() == wanted.keys() and {"step", "skipped"} < arrays.keys()
    assert {name.split(".")[0] for name in arrays} == {"step", "skipped", "params", "optimizer"}
    for name, array in arrays.items():
        assert array.dtype == wanted[name].dtype and array.tobytes() == wanted[name].tobytes(), name


@pytest.mark.integration
def test_losses_are_those_of_one_process(one, two):
    """Losses, gradient norms and evaluation scores of two processes equal those of one with as many devices, to 1e-12."""
    assert "fully_sharded' on data 2 x model 4" in one.said(0) and "starting at step 0" in two.said(0)
    assert_losses_equal(two, one, STEPS)
    lines = two.losses()
    assert len({line["loss"] for line in lines if "loss" in line}) == STEPS
    assert [line["step"] for line in lines if "eval/cross_entropy" in line] == [2, 4]


@pytest.mark.integration
def test_each_process_reads_its_own_rows(one, two):
    """The first process reads the first half of every batch and the second the second, each row once; one reads them all."""

    def rows(run: Run, number: int) -> list[int]:
        read = [int(line) for line in (run.notes / f"rows.{number}").read_text().splitlines()]
        assert max(read) < (STEPS + 1) * ROWS  # the next batch is read ahead
        assert len(set(read)) == len(read)
        return sorted(i for i in read if i < STEPS * ROWS)

    halves = [[i for i in range(STEPS * ROWS) if i % ROWS // (ROWS // 2) == half] for half in (0, 1)]
    assert [rows(two, 0), rows(two, 1)] == halves
    assert rows(one, 0) == sorted(halves[0] + halves[1])


@pytest.mark.integration
def test_only_the_first_process_writes(two):
    """The second writes nothing but its pieces of the checkpoints, and prints nothing; a step is logged once."""

    def written(number: int) -> set[str]:
        paths = {Path(line) for line in (two.notes / f"writes.{number}").read_text().splitlines()}
        inside = [p.relative_to(two.workdir) for p in paths if p.is_relative_to(two.workdir)]
        return {p.parts[0] if p.parts else "." for p in inside}

    assert written(0) >= {".", ".lock", "metrics.jsonl", "run.jsonl", "tensorboard", "checkpoints"}
    assert written(1) <= {"checkpoints"}
    words = set(re.findall("[A-Za-z]+", two.said(1)))  # the library that carries the collectives prints a line of its own
    assert words <= {"Gloo", "Rank", "is", "connected", "to", "peer", "ranks", "Expected", "number", "of"}
    assert [int(n) for n in re.findall(r"^step (\d+)/4", two.said(0), re.MULTILINE)] == [1, 2, 3, 4]
    start, *_, stop = two.events()
    assert start["pid"] == stop["pid"] == two.processes[0].pid and stop["exit_code"] == runlog.DONE
    assert len(list((two.workdir / "tensorboard").iterdir())) == 1


@pytest.mark.integration
def test_what_two_processes_save_one_restores(start, one, two):
    """Parameters, optimizer state and step come back with the same bits, and the run goes on with the same losses."""
    folder = start.root / "two_then_one"
    shutil.copytree(two.workdir, folder)
    shutil.rmtree(folder / "checkpoints" / str(STEPS))
    (run,) = whole(start, **{folder.name: 1})
    assert "starting at step 2 from a checkpoint" in run.said(0)
    assert_same_bits(run.state("restored-2"), two.state("saved-2"))
    assert_losses_equal(run, one, STEPS)


@pytest.mark.slow
@pytest.mark.integration
def test_what_one_process_saves_two_restore(one, one_then_two):
    """Parameters, optimizer state and step come back with the same bits, and the run goes on with the same losses."""
    assert_same_bits(one_then_two.state("restored-2"), one.state("saved-2"))
    losses, wanted = ([line["loss"] for line in run.losses() if "loss" in line] for run in (one_then_two, one))
    common = min(len(losses), STEPS)
    assert common > 2
    assert_allclose(losses[:common], wanted[:common], rtol=ROUNDING)


@pytest.mark.slow
@pytest.mark.integration
def test_damage_that_one_process_finds_is_known_to_all(one_then_two):
    """A checkpoint of which one process alone cannot read its pieces is passed over by both, and moved aside."""
    last = one_then_two.workdir / "checkpoints" / str(STEPS)
    assert f"checkpoint {last} is damaged (on another process); trying the one before it" in one_then_two.said(0)
    assert (one_then_two.workdir / "damaged" / str(STEPS)).is_dir()


@pytest.mark.slow
@pytest.mark.integration
def test_sigterm_to_one_process_stops_both(one_then_two):
    """Both save once, after the same step, and exit with 75; the signal is not lost though no step had begun."""
    assert [p.returncode for p in one_then_two.processes] == [runlog.PREEMPTED] * 2, one_then_two.complained(1)
    stop = one_then_two.events()[-1]
    assert f"stopping at step {stop['step']} by a signal" in one_then_two.said(0)
    assert stop["exit_code"] == runlog.PREEMPTED and one_then_two.checkpoints() == [2, stop["step"]]
    assert 3 <= stop["step"] == one_then_two.losses()[-1]["step"]


@pytest.mark.integration
@pytest.mark.slow
def test_experts_over_two_processes_and_ctrl_c(start):
    """Routed to experts of both processes, the losses are those of one process to 1e-12; SIGINT to the first saves once and
    ends both with 75."""
    alone = start("experts_one", 1, *MOE, "--train.steps", "3")
    run = start("experts_two", 2, *MOE, "--train.steps", "100000", "--train.checkpoint.every", "0")
    run.wait_for("step 3/")
    run.processes[0].send_signal(signal.SIGINT)
    assert run.end() == [runlog.PREEMPTED] * 2, run.complained(0)
    assert alone.end() == [runlog.DONE], alone.complained(0)
    assert_losses_equal(run, alone, 3)
    stop = run.events()[-1]
    assert stop["exit_code"] == runlog.PREEMPTED and run.checkpoints() == [stop["step"]]


@pytest.mark.parametrize(("name", "run"), [("mixed", MIXED), ("towers", TOWERS)])
@pytest.mark.integration
@pytest.mark.nightly
def test_parts_in_different_modes_over_two_processes(start, name, run):
    """Stacks, or towers of pictures and sounds: losses are those of one process, to 1e-12."""
    runs = []
    for n in (1, 2):  # one after the other: three processes would compile on two cores
        runs.append(start(f"{name}_{n}", n, *run, "--train.steps", "3"))
        assert set(runs[-1].end()) == {runlog.DONE}, runs[-1].complained(0)
    assert_losses_equal(runs[1], runs[0], 3)


def assert_refused(run: Run, line: str) -> None:
    """Every process says this line and nothing else, ends with 2, and no folder was made."""
    assert run.end() == [2, 2]
    assert [run.complained(n).strip() for n in (0, 1)] == [f"error: {line}"] * 2
    assert not run.workdir.exists()


def test_a_mesh_of_another_size_than_all_devices_is_refused():
    """The line names the mesh, the devices of all processes, and what would do."""
    devices = [SimpleNamespace(process_index=n // 4) for n in range(8)]
    want = (
        "layout 'fully_sharded' needs 4 devices for mesh {'data': 2, 'model': 2}, but 8 are here, over 2 processes; "
        "choose a mesh whose product is 8"
    )
    with pytest.raises(LayoutError, match=re.escape(want)):
        make_mesh(fully_sharded(2, 2), devices)


@pytest.mark.integration
def test_processes_with_other_settings_are_refused(start):
    """Where settings differ, every process names them before the first step; else they would train together, or hang at the
    first save of one of them. Random numbers and the compiler are set by variables too, and a process that has others would train
    to the end, or fail in the middle of a step. How much a process says is its own affair."""
    variables = {"JAX_RANDOM_SEED_OFFSET": "{number}", "JAX_THREEFRY_PARTITIONABLE": "{number}"}
    variables |= {"XLA_FLAGS": f"{CHEAP} --xla_cpu_enable_fast_math={{number}}", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "{number}"}
    settings = ["--train.seed", "{number}", "--train.checkpoint.every", "{number}"]
    run = start("settings", 2, *GPT, "--train.steps", "4", *settings, **variables)
    assert_refused(
        run,
        "the processes of this run differ: process 1 has XLA_FLAGS --xla_cpu_enable_fast_math=1, process 0 has 0; "
        "process 1 has jax_random_seed_offset=1, process 0 has 0; "
        "process 1 has jax_threefry_partitionable=True, process 0 has False; "
        "process 1 has train.checkpoint.every=1, process 0 has 0; and 1 more",  # train.seed: four are named
    )


@pytest.mark.slow
@pytest.mark.integration
def test_processes_with_other_data_are_refused(start):
    """Where a host has data of its own, prepared differently, every process names the two fingerprints."""
    for number in (0, 1):
        shutil.copytree(start.root / "data" / "caches", start.root / f"data{number}" / "caches")
    path = start.root / "data1" / "caches" / "toy" / "manifest.json"
    manifest = json.loads(path.read_text())
    ours, theirs = manifest["fingerprint"], "0" * 64
    path.write_text(json.dumps(manifest | {"fingerprint": theirs}))
    run = start("data_differ", 2, *GPT, "--train.steps", "4", SHARDZOO_DATA=str(start.root / "data{number}"))
    assert run.end() == [2, 2]
    for number in (0, 1):
        (line,) = run.complained(number).strip().splitlines()
        assert line.startswith(f"error: the processes of this run differ: process 1 has the data's fingerprint={theirs}")
        assert f", process 0 has {ours}" in line
    assert not run.workdir.exists()


@pytest.mark.integration
@pytest.mark.slow
def test_a_folder_in_use_is_refused_by_all_processes(start):
    """Where another run holds the folder, the first process says so, and the second does not wait for it."""
    workdir = start.root / "taken"
    workdir.mkdir()
    with (workdir / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = start("taken", 2, "gpt.quickstart", "--tiny", "--layout", "fully_sharded:2x4")
        assert run.end() == [2, 2]
    assert f"another process is training in {workdir}" in run.complained(0)
    assert [len(run.complained(n).strip().splitlines()) for n in (0, 1)] == [1, 1]


def test_processes_that_cannot_be_joined_ask_for_another_start(monkeypatch):
    """They may be late or lost: the line is not that of a wrong argument, after which nobody starts a run again."""

    def refuses(*_, **__):
        raise RuntimeError("DEADLINE_EXCEEDED: Barrier timed out.\nAdditional information")

    monkeypatch.setattr(jax.distributed, "initialize", refuses)
    variables = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    line = "cannot join the other processes: DEADLINE_EXCEEDED: Barrier timed out.; run the same command again"
    with pytest.raises(cli.JoinError, match=f"^{line}$") as caught:
        cli.use_devices_of_all(Layout(name="rows", mesh=(("all", 8),)), detect=False)
    assert caught.value.exit_code == runlog.PREEMPTED


def test_processes_that_cannot_be_found_are_refused(monkeypatch):
    """Without a pod, a job or all three variables, the line says which to set."""

    def found_nothing(*_, **__):
        raise ValueError("coordinator_address should be defined.")  # what JAX says then

    monkeypatch.setattr(jax.distributed, "initialize", found_nothing)
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    line = "no TPU pod, Slurm or Open MPI job is found here: set JAX_NUM_PROCESSES, JAX_PROCESS_ID"
    with pytest.raises(ConfigError, match=f"^{line}$"):
        cli.use_devices_of_all(Layout(name="rows", mesh=(("all", 8),)), detect=True)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two' is not a whole number from 1 on"),
        ({"JAX_NUM_PROCESSES": "0"}, "JAX_NUM_PROCESSES='0' is not a whole number from 1 on"),
        ({"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID='-1' is not a whole number from 0 on"),
        ({"JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID=2 must be below JAX_NUM_PROCESSES=2"),
        ({"JAX_COORDINATOR_ADDRESS": "host"}, "JAX_COORDINATOR_ADDRESS='host' is not of the form HOST:PORT"),
    ],
)
def test_senseless_variables_are_refused(monkeypatch, variables, said):
    """The line names the variable, its value and what it should be; nothing is joined."""
    right = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    for name, value in (right | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=re.escape(said)):
        cli.use_devices_of_all(Layout(name="rows", mesh=(("all", 8),)), detect=False)
