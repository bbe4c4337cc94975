"""Runs that go on with fewer hosts: the commands for each number of hosts, under SLURM's commands, and with real training."""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading

import pytest

from configs.registry import ConfigError
from scripts import cli, launch
from scripts.lab import losses as lab
from scripts.launching import elastic, job, slurm, supervisor
from scripts.launching.local import Local
from tests.helpers.runs import run, with_train
from tests.helpers.waiting import HANGS, wait_until
from trainers import trainer


def asked(topology: str, layout: str, workdir: str = "/shared/runs/mine", *overrides: str) -> job.Job:
    parser = cli.parser("")
    cli.add_experiment(parser)
    arguments = ["gpt.quickstart", "--layout", layout, *overrides]
    args, given = parser.parse_known_args(arguments)
    return job.Job(cli.chosen(args, given), tuple(arguments), job.machines_of(topology), workdir, "", restarts=3)


def test_fewer_hosts_have_a_smaller_mesh():
    """The command for all hosts is as it was; for fewer, an override of the mesh is added, and it is one that the layout has."""
    run = elastic.supervised(asked("cpu:4x2", "fully_sharded:4x2"))
    assert run.meshes == {1: "data 1 x model 2", 2: "data 2 x model 2", 4: "data 4 x model 2"}
    assert "--layout.mesh" not in run.commands[4]
    at = run.commands[2].index("--layout.mesh")
    assert run.commands[2][at : at + 5] == ["--layout.mesh", "data", "2", "model", "2"]
    assert [run.usable(n) for n in range(5)] == [0, 1, 2, 2, 4]
    parser = cli.parser("")
    cli.add_experiment(parser)
    args, given = parser.parse_known_args(run.commands[2][3:-2])
    assert cli.chosen(args, given).layout.mesh == (("data", 2), ("model", 2))


@pytest.mark.parametrize(
    ("topology", "layout", "hosts"),
    [
        ("gpu:4x4", "tensor_parallel:4x4", [1, 2, 4]),  # the tensor-parallel axis lies within a host, and stays
        ("gpu:4x4", "tensor_parallel:2x8", [2, 4]),
        ("gpu:4x4", "tensor_parallel:1x16", [4]),
        ("cpu:3x1", "data_parallel:3x1", [1, 2, 3]),  # two divides the eight rows
        ("v4:2x2x2", "fully_sharded:2x4", [2]),  # a slice is whole or of no use
    ],
)
def test_a_run_goes_on_with_the_numbers_of_hosts_that_its_layout_can_use(topology, layout, hosts):
    assert sorted(elastic.supervised(asked(topology, layout)).commands) == hosts


def test_a_process_has_all_gpus_of_its_host():
    """Under SLURM JAX gives a process the one of its task's number, and a step of one task would have the first alone."""
    assert elastic.supervised(asked("gpu:2x4", "fully_sharded:2x4")).variables == {"JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}
    assert "JAX_LOCAL_DEVICE_IDS" not in elastic.supervised(asked("cpu:2x4", "fully_sharded:2x4")).variables


ROWS = ["--data.batch_size", "24", "--eval.batch_size", "24"]


def test_three_of_four_hosts_go_on_where_rows_divide():
    """The command has the mesh, and pads what three does not divide."""
    run = elastic.supervised(asked("cpu:4x2", "fully_sharded:4x2", "/shared/runs/mine", *ROWS))
    assert sorted(run.commands) == [1, 2, 3, 4] and run.unproven == [3] and run.meshes[3] == "data 3 x model 2"
    parser = cli.parser("")
    cli.add_experiment(parser)
    args, given = parser.parse_known_args([*run.commands[3][3:-2]])
    layout = cli.chosen(args, given).layout
    assert layout.mesh == (("data", 3), ("model", 2)) and layout.pad == ("embed",)


@pytest.mark.parametrize(
    ("option", "value", "three"),
    [
        ("--train.microbatches", "2", True),  # of 12 rows
        ("--train.microbatches", "3", False),  # of 8 rows
        ("--data.batch_size", "16", False),
        ("--eval.batch_size", "16", False),  # held-out rows
    ],
)
def test_three_of_four_hosts_are_left_out_where_something_does_not_divide(option, value, three):
    run = elastic.supervised(asked("cpu:4x1", "fully_sharded:4x1", "/shared/runs/mine", *ROWS, option, value))
    assert (3 in run.commands) == three and {1, 2, 4} <= {*run.commands}


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (
            lambda: elastic.supervised(asked("cpu:2x1", "fully_sharded:2x1", "gs://b/x")),
            ["gs://b/x", "--train.checkpoint.folder"],
        ),
        (lambda: elastic.run_here(asked("gpu:2x2", "fully_sharded:2x2"), 0), ["gpu:2x2", "as cpu:4x2"]),
    ],
)
def test_what_cannot_be_supervised_is_refused(write, parts):
    with pytest.raises(ConfigError) as caught:
        write()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_dry_run_prints_the_plan_and_starts_nothing(monkeypatch, capsys, tmp_path):
    arguments = ["gpt.quickstart", "--layout", "fully_sharded:2x1", "--topology", "cpu:2x1", "--on", "local", "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["launch", *arguments, "--workdir", str(tmp_path / "run")])
    assert launch.main() == 0
    plan = supervisor.Supervised.from_json(capsys.readouterr().out)
    assert sorted(plan.commands) == [1, 2] and plan.final == list(job.FINAL) and not (tmp_path / "run").exists()


SRUN = """#!/bin/bash
# Runs the command here, as if on the node; a node that is down refuses it. SIGTERM ends it and its task, with code 0.
while [[ $1 == --* ]]; do case $1 in --nodelist=*) node=${1#*=} ;; esac; shift; done
[ -e $STATE/down.$node ] && exit 1
set -m  # a signal reaches all processes of a step
NODE=$node "$@" &
child=$!
echo $child > $STATE/step.7.$child
trap 'kill -KILL -- -$child; exit 0' TERM
wait $child
code=$?
rm $STATE/step.7.$child
exit $code
"""
SQUEUE = """#!/bin/bash
echo 7.batch
ls $STATE | sed -n 's/^step[.]//p'
"""
SCANCEL = """#!/bin/bash
signal=KILL
for step; do case $step in --signal=*) signal=${step#*=} ;; *) kill -$signal -- -$(cat $STATE/step.$step) ;; esac; done
"""
SCONTROL = """#!/bin/bash
echo "$*" >> $STATE/calls
case $1 in show) echo alpha; echo beta ;; esac
"""
# Stands for the training: process 0 counts steps from the newest save and saves each tenth, the other waits for its end.
TRAIN = """
import os, pathlib, signal, sys, time
folder, state = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ["STATE"])
me, step = int(os.environ.get("JAX_PROCESS_ID", 0)), 0
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
(state / ("pid." + os.environ.get("NODE", str(me)))).write_text(str(os.getpid()))
saves = folder / "checkpoints"
saves.mkdir(parents=True, exist_ok=True)
step = max((int(path.name) for path in saves.iterdir()), default=0)
while not (state / "done").exists():
    if stop:
        if me == 0:
            (saves / str(step)).mkdir(exist_ok=True)
        sys.exit(75)
    time.sleep(0.02)
    if me == 0:
        step += 1
        if step % 10 == 0 and not (state / "hold").exists():
            (saves / str(step)).mkdir(exist_ok=True)
"""


@pytest.mark.integration
def test_the_batch_script_goes_on_without_a_node_and_takes_it_in_again(tmp_path):
    """With stand-ins for SLURM's commands: a node dies, one goes on; the node answers again and is taken in after a save; SIGTERM
    to the batch script saves, ends with 75 and puts the job back into the queue."""
    tools, state, workdir = tmp_path / "bin", tmp_path / "state", tmp_path / "run"
    for folder in (tools, state):
        folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    text = slurm.script(asked("cpu:2x1", "fully_sharded:2x1", str(workdir)), elastic=True)
    assert "#SBATCH --no-kill" in text and "#SBATCH --signal=B:TERM@300" in text
    plan = re.search(r"<<'PLAN' &\n(.*)\nPLAN\n", text, re.DOTALL)
    assert plan
    fields = json.loads(plan[1])
    fields["commands"] = {hosts: [sys.executable, "-c", TRAIN, str(workdir)] for hosts in ("1", "2")}
    script = text.replace(plan[1], json.dumps(fields))
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "STATE": str(state),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "[alpha,beta]",
    }
    output = tmp_path / "out"
    with output.open("w") as file:
        batch = subprocess.Popen(["bash", "-c", script], env=environment, stdout=file, stderr=file)
    try:
        run = supervisor.Supervised.from_json(json.dumps(fields))
        wait_until(lambda: run.newest() >= 10 and (state / "pid.beta").exists(), output.read_text)
        (state / "down.beta").touch()
        os.kill(int((state / "pid.beta").read_text()), signal.SIGKILL)
        wait_until(lambda: "started on 1 hosts" in output.read_text(), output.read_text)
        (state / "down.beta").unlink()
        wait_until(lambda: output.read_text().count("started on 2 hosts") == 2, output.read_text)
        newest = run.newest()
        wait_until(lambda: run.newest() > newest, output.read_text)
        batch.send_signal(signal.SIGTERM)
        assert batch.wait(HANGS) == 0, output.read_text()
    finally:
        (state / "done").touch()
        batch.kill()
    said = output.read_text()
    assert "beta ended with -9" in said and "2 hosts are at hand, to be taken in at the next save" in said
    assert "exit code 75, restart 0" in said and (state / "calls").read_text().splitlines()[-1] == "requeue 7"
    events = [json.loads(line) for line in (workdir / supervisor.LOG).read_text().splitlines()]
    assert [event["hosts"] for event in events if event["event"] == "start"] == [["alpha", "beta"], ["alpha"], ["alpha", "beta"]]


@pytest.mark.integration
def test_processes_go_on_as_two_where_three_are_refused(tmp_path):
    """One of four processes is killed; the start of three ends with 2, and two go on."""
    state, workdir = tmp_path / "state", tmp_path / "run"
    state.mkdir()
    train = [sys.executable, "-c", TRAIN, str(workdir)]
    run = dataclasses.replace(
        elastic.supervised(asked("cpu:4x1", "fully_sharded:4x1", str(workdir), *ROWS)),
        commands={1: train, 2: train, 3: [sys.executable, "-c", "raise SystemExit(2)"], 4: train},
        variables={"STATE": str(state)},
    )
    hosts, codes = Local(4, returns_after=HANGS), []
    thread = threading.Thread(target=lambda: codes.append(supervisor.supervise(run, hosts)))
    thread.start()
    log = workdir / supervisor.LOG
    try:
        wait_until(lambda: run.newest() >= 10, "no save")
        hosts.processes["host1"].kill()
        wait_until(lambda: log.read_text().count('"start"') == 3, log.read_text)
        newest = run.newest()
        wait_until(lambda: run.newest() > newest, log.read_text)
    finally:
        (state / "done").touch()
        thread.join()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert codes == [0] and [len(event["hosts"]) for event in events if event["event"] == "start"] == [4, 3, 2]
    assert [event["exit_code"] for event in events if event["event"] == "refused"] == [2]


@pytest.mark.integration
def test_a_run_logs_its_checkpoints_as_the_supervisor_reads_them(small, tmp_path):
    """In another folder than the run's, as those at an address are."""
    e = with_train(small, steps=6, checkpoint={"every": 2, "keep": 2, "folder": str(tmp_path / "store")})
    assert run(e, tmp_path / "run") == trainer.DONE
    log = tmp_path / "run" / "audit.jsonl"
    assert supervisor._logged(log, f"{tmp_path / 'store'}/", log.stat().st_size) == {4, 6}


def test_a_step_is_new_when_this_start_has_logged_it(tmp_path):
    """A start writes the log anew, cut back to its checkpoint: what was there before, or is copied, is not its own."""
    hosts, log = lab.Hunted(tmp_path, 4, 0, (), random.Random(0)), tmp_path / "metrics.jsonl"

    def write(*steps: int) -> None:
        new = tmp_path / "new"
        new.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))
        new.replace(log)

    assert hosts._new_step() is None
    write()
    assert hosts._new_step() is None
    with log.open("a") as file:
        file.write('{"step": 5}\n{"step": 10}\n{"st')
    assert hosts._new_step() == 10
    hosts._restarted()
    assert hosts._new_step() is None
    write(5)
    assert hosts._new_step() is None
    with log.open("a") as file:
        file.write('{"step": 10}\n')
    assert hosts._new_step() == 10


def lost(*options: str) -> dict:
    """Returns the report of scripts.lab.losses."""
    command = [sys.executable, "-m", "scripts.lab.losses", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.slow
@pytest.mark.integration
def test_random_losses_of_one_of_four_processes_change_no_loss():
    """SIGKILL at random moments; the three that are left go on, whose number divides neither the mesh's axis nor the weights, and
    all once the lost one is back. What is logged equals an uninterrupted run's to 1e-6."""
    report = lost("--hosts", "4", "--losses", "5", "--steps", "100", "--returns-after", "5")
    assert (report["losses"], report["steps"], report["logged_steps_equal"]) == (5, 100, True)
    assert report["largest_relative_difference"] < 1e-6 and report["starts"] > 5


@pytest.mark.parametrize("hosts", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.integration
def test_a_process_that_hangs_is_missed_and_changes_no_bit(hosts):
    """SIGSTOP, with nobody beside it to miss it, or with one that waits for it: what is left is killed, and as many go on."""
    options = ["--losses", "1", "--steps", "40", "--returns-after", "0", "--stop", "15"]
    report = lost("--hosts", str(hosts), *options)
    assert (report["losses"], report["bit_for_bit"]) == (1, True) and report["starts"] >= 2
