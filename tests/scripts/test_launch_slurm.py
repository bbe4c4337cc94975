"""scripts.launch under a real SLURM with two nodes on this machine."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import slurm
from tests.helpers.waiting import wait_until
from trainers import runlog
from trainers.monitoring import history, metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(bool(slurm.missing()), reason=f"no SLURM: {slurm.missing()}"),
]
VARYING = re.compile("memory_gib|.*_per_s")
STEPS = "400"
EXACT = ("--execution.dtype", "float64", "--train.master_dtype", "float64", "--model.dropout", "0", "--train.steps", "240")
ONE_NODE = ("--topology", "cpu:1x2")
RUN = [
    "gpt.quickstart",
    "--tiny",
    "--layout",
    "fully_sharded:2x1",
    "--topology",
    "cpu:2x1",
    "--train.steps",
    STEPS,
    "--train.checkpoint.every",
    "20",
    "--train.log_every",
    "5",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    running = slurm.Cluster(tmp_path_factory.mktemp("slurm"))
    yield running
    running.close()


def launch(cluster: slurm.Cluster, *arguments: str) -> str:
    return cluster.run(sys.executable, "-m", "scripts.launch", *arguments, "--on", "slurm")


@dataclasses.dataclass
class Submitted:
    """A job of RUN, submitted as a user does."""

    cluster: slurm.Cluster
    workdir: Path
    more: tuple[str, ...] = ()

    def __post_init__(self):
        self.number = launch(self.cluster, *RUN, *self.more, "--workdir", str(self.workdir)).split()[-1]

    @property
    def state(self) -> str:
        return self.cluster.run("squeue", "-h", "--states=all", "-j", self.number, "-o", "%T")

    @property
    def output(self) -> str:
        return (self.workdir / f"slurm-{self.number}.out").read_text()

    def wait_for_a_save(self) -> None:
        """Until there is a newer checkpoint than now."""
        newest = self._newest()
        wait_until(lambda: self._newest() > newest, f"a save after step {newest} has not happened")

    def _newest(self) -> int:
        folder = self.workdir / "checkpoints"
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=0)

    def kill_task(self, node: str) -> None:
        """Kills the training on a node, of this job's latest step there."""
        wait_until(lambda: self._tasks(node), f"no task on {node}")
        for process in self._tasks(node):
            process.kill()

    def _tasks(self, node: str) -> list[psutil.Process]:
        trains = [p for p in self.cluster.tasks(node) if "scripts.train" in p.cmdline() and p.name().startswith("python")]
        return [process for process in trains if str(self.workdir) in process.cmdline()]

    def start_again(self) -> None:
        """Lets the requeued job start soon: SLURM itself waits for two minutes. A node refuses a job that comes back within the
        second in which it was taken away ("Job credential revoked"), and SLURM then ends it."""
        wait_until(lambda: self.state == "PENDING", "the job's return to the queue has not happened")
        self.cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now+5")

    def end(self) -> str:
        wait_until(lambda: self.state in ("COMPLETED", "FAILED"), "the job's end has not happened")
        return self.output

    def losses(self) -> list[dict[str, float]]:
        return [{k: v for k, v in line.items() if not VARYING.fullmatch(k)} for line in metrics.read(self.workdir)]

    def checksums(self) -> dict[str, str]:
        return json.loads((self.workdir / "checkpoints" / STEPS / "meta" / "metadata").read_text())["checksums"]

    def codes(self) -> list[int | None]:
        """The exit codes in run.jsonl; None for a start without an end."""
        codes = []
        for line in (self.workdir / "run.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "start":
                codes.append(None)
            else:
                codes[-1] = event["exit_code"]
        return codes


def test_a_preempted_run_whose_node_then_dies_ends_as_one_that_was_left_alone(cluster, tmp_path):
    """SIGTERM saves and requeues; a node's death requeues; the losses and the last arrays are those of an uninterrupted run."""
    whole = Submitted(cluster, tmp_path / "whole")
    assert "exit code 0, restart 0" in whole.end()
    cut = Submitted(cluster, tmp_path / "cut")
    cut.wait_for_a_save()
    cluster.run("scancel", "--signal=TERM", cut.number)
    cut.start_again()
    assert f"exit code {runlog.PREEMPTED}, restart 0" in cut.output
    cut.wait_for_a_save()
    cluster.kill_node(slurm.NODES[1])
    wait_until(lambda: cut.state == "PENDING", "the job's return to the queue has not happened")
    cluster.start_node(slurm.NODES[1])
    cut.start_again()
    assert "exit code 0, restart 2" in cut.end()
    preempted, killed, last = cut.codes()
    assert (preempted, last) == (runlog.PREEMPTED, runlog.DONE) and killed != runlog.DONE
    assert cut.losses() == whole.losses() and len(whole.losses()) == int(STEPS) // 5
    assert cut.checksums() == whole.checksums()
    preempted, killed, last = history.read(cut.workdir).starts
    assert preempted.lost == 0 and killed.restored == preempted.last
    assert last.restored > killed.restored and killed.lost == killed.last - last.restored


def test_what_would_end_the_same_way_is_not_started_again(cluster, tmp_path):
    """A run whose restarts are used up, and one that is refused because the folder holds another run."""
    run = Submitted(cluster, tmp_path / "run", ("--restarts", "0"))
    run.wait_for_a_save()
    cluster.run("scancel", "--signal=TERM", run.number)
    assert f"exit code {runlog.PREEMPTED}, restart 0" in run.end() and run.state == "FAILED"
    other = Submitted(cluster, tmp_path / "run", ("--train.seed", "1"))
    output = other.end()
    assert "exit code 2, restart 0" in output and "seed" in output and other.state == "FAILED"


def test_an_elastic_run_goes_on_without_a_node_and_with_all_again(cluster, tmp_path):
    """A process is killed, and both nodes go on, now or after a save; a node dies, and the other goes on alone; SIGTERM to the
    batch script saves and requeues, and both nodes end the run. The losses are those of a run that was left alone."""
    whole = Submitted(cluster, tmp_path / "whole", (*EXACT, *ONE_NODE))
    assert "exit code 0, restart 0" in whole.end()
    cut = Submitted(cluster, tmp_path / "cut", ("--elastic", *EXACT))
    cut.wait_for_a_save()
    cut.kill_task(slurm.NODES[1])
    wait_until(lambda: cut.output.count("started on 2 hosts") == 2, lambda: cut.output)
    assert f"{slurm.NODES[1]} ended with -9" in cut.output
    cut.wait_for_a_save()
    cluster.kill_node(slurm.NODES[1])
    wait_until(lambda: "started on 1 hosts" in cut.output.rpartition("started on 2 hosts")[2], lambda: cut.output)
    cut.wait_for_a_save()
    cluster.run("scancel", "--batch", "--signal=TERM", cut.number)
    wait_until(lambda: cut.state == "PENDING", lambda: cut.output)
    assert f"exit code {runlog.PREEMPTED}, restart 0" in cut.output
    cluster.start_node(slurm.NODES[1])
    cut.start_again()
    assert "exit code 0, restart 1" in cut.end()
    assert "started on 2 hosts" in cut.output.rpartition("restart 0")[2]
    assert [line["step"] for line in cut.losses()] == [line["step"] for line in whole.losses()]
    assert [line["loss"] for line in cut.losses()] == pytest.approx([line["loss"] for line in whole.losses()], rel=1e-6)


@pytest.mark.parametrize(
    ("experiment", "layout", "topology"),
    [("gpt.quickstart", "fully_sharded:2x2", "gpu:2x2"), ("gpt.quickstart", "fully_sharded:2x4", "v4:2x2x2")],
)
def test_slurm_accepts_the_script(cluster, tmp_path, experiment, layout, topology):
    """`sbatch --test-only` finds nodes for it."""
    arguments = [experiment, "--layout", layout, "--topology", topology, "--workdir", str(tmp_path / "run")]
    script = launch(cluster, *arguments, "--dry-run")
    result = cluster.run("sbatch", "--test-only", input=script)
    tasks = 4 if topology.startswith("gpu") else 2
    assert f"using {tasks} processors on nodes {','.join(slurm.NODES)}" in result
    assert not (tmp_path / "run").exists()
