"""A SLURM of two nodes on this machine: slurmctld, two slurmd and munged, from Debian's packages."""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import psutil

from tests.helpers.waiting import wait_until

HOST = socket.gethostname().split(".")[0]
NODES = (HOST, f"{HOST}z")  # JAX's coordinator is on the first node, by its name
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
_CONFIG = """
ClusterName=zoo
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
MpiDefault=none
SlurmdTimeout=10
KillWait=5
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:2
PartitionName=all Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Returns why SLURM cannot run here, "" if it can."""
    if not os.environ.get("SHARDZOO_SLURM"):  # its limits of time hold on an idle machine alone
        return "set SHARDZOO_SLURM=1 to run it, with nothing beside it"
    absent = [name for name in _PROGRAMS if not shutil.which(name)]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian's slurmctld, slurmd, slurm-client, munge)"
    return "" if os.geteuid() == 0 else "slurmd must be started by root"


class Cluster:
    """The daemons; `close` ends all of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.chmod(0o755)  # munged wants no folder that others can write
        (folder / "state").mkdir()
        config = folder / "slurm.conf"
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in range(3)]
            for free in sockets:
                free.bind(("127.0.0.1", 0))
            ports = [free.getsockname()[1] for free in sockets]
        config.write_text(_CONFIG.format(host=HOST, nodes=NODES, folder=folder, ports=ports))
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")  # in name alone
        self.environment = os.environ | {"SLURM_CONF": str(config), "JAX_ENABLE_X64": "1"}
        self.daemons: dict[str, subprocess.Popen] = {}
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        try:
            self._start_all(config, key)
        except BaseException:
            self.close()
            raise

    def _start_all(self, config: Path, key: Path) -> None:
        socket_file = self.folder / "munge.socket"
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={socket_file}",
            f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        wait_until(socket_file.exists, "munged does not answer")
        self._start("slurmctld", "-D", "-f", str(config))
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: self.states() == {"idle"}, "two nodes are not idle")

    def _start(self, name: str, *arguments: str, program: str = "") -> None:
        log = (self.folder / f"{name}.out").open("a")
        with log:
            self.daemons[name] = subprocess.Popen(
                [program or name, *arguments], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def start_node(self, node: str) -> None:
        self._start(node, "-D", "-N", node, "-f", str(self.folder / "slurm.conf"), program="slurmd")

    def kill_node(self, node: str) -> None:
        """Kills everything that runs on a node, as a power cut does."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        tasks = self.tasks(node)
        # A step's slurmstepd, which reports how its tasks end, is no child of slurmd.
        steps = [p for task in tasks if (p := task.parent()) and p.name().startswith("slurmstepd")]
        for process in [*steps, *tasks]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def tasks(self, node: str) -> list[psutil.Process]:
        """Returns the processes of steps that run on a node."""
        return [process for process in psutil.process_iter() if self._is_on(node, process)]

    def _is_on(self, node: str, process: psutil.Process) -> bool:
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            return False
        ours = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]
        return ours and environment.get("SLURMD_NODENAME") == node

    def run(self, *command: str, input: str | None = None) -> str:
        """Returns the output of one of SLURM's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, input=input)
        assert done.returncode == 0, done
        return done.stdout.strip() or done.stderr.strip()

    def states(self) -> set[str]:
        lines = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%t"], env=self.environment, capture_output=True, text=True, check=False
        )
        return set(lines.stdout.split())

    def close(self) -> None:
        for node in self.daemons.keys() & set(NODES):
            self.kill_node(node)
        for daemon in self.daemons.values():
            if daemon.poll() is None:
                daemon.terminate()
                daemon.wait()
