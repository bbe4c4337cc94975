"""Supervises a run on the nodes of the SLURM job in whose batch script this runs: `python -m scripts.launching.on_slurm < PLAN`.

Each node's process is a step of its own, so that the loss of one is seen at once and the others need not wait until SLURM gives
up the node. A node whose step was killed, hung or failed is used again once a trivial step has run there: SLURM's commands end
with 1, as a fault of the run does, on a node that has died.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from scripts.launching.local import Local
from scripts.launching.supervisor import AGAIN, GIVEN_UP, Supervised, supervise

# Where its node dies, a step ends, although the job is one of --no-kill.
_STEP = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--kill-on-bad-exit=1", "--no-kill=off")
# Srun ends with 0 too if its node dies. So a task that ends with 0 says _DONE; a signal to the step reaches the shell as well.
_DONE = 100
_SAYS_DONE = ("sh", "-c", f'trap : TERM INT; "$@"; code=$?; [ $code = 0 ] && exit {_DONE}; exit $code', "sh")
_AGAIN, _HANGS = 2.0, 20.0  # seconds until the next probe after one that failed, and after which one that still runs is given up


class Nodes(Local):
    """The nodes of this SLURM job."""

    def __init__(self):
        super().__init__(0)
        self.job = os.environ["SLURM_JOB_ID"]
        self.names = _lines("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"])
        self._probes: dict[str, tuple[subprocess.Popen, float]] = {}
        self._failed: set[str] = set()  # nodes of this start that are probed since their step failed

    def start(self, hosts: Sequence[str], command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._failed = set()
        super().start(hosts, command, variables)

    def popen(self, host: str, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen:
        command = [*_STEP, f"--nodelist={host}", *_SAYS_DONE, *command]
        return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)

    def address(self, host: str) -> str:
        return host

    def codes(self) -> dict[str, int | None]:
        """Returns the tasks' codes by those of srun, which reports a signal as a shell does, by 128 and the signal's number."""
        codes = {host: code if code is None else _task_code(code) for host, code in super().codes().items()}
        failed = {host for host, code in codes.items() if code not in (None, 0, AGAIN)} - self._failed
        self._failed |= failed
        self.lost(sorted(failed))
        return codes

    def signal(self, number: int) -> None:
        """Sends a signal to the tasks of all steps. Srun itself would take SIGTERM for its own end, kill them and end with 0."""
        ids = _lines("squeue", "--steps", "-h", "-j", self.job, "-o", "%i")
        steps = [step for step in ids if step.split(".")[-1].isdigit()]  # not the batch script
        how = [] if number == signal.SIGKILL else [f"--signal={signal.Signals(number).name.removeprefix('SIG')}"]
        if steps:
            subprocess.run(["scancel", *how, *steps], check=False)
        if number == signal.SIGKILL:
            super().signal(number)

    def lost(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            if host not in self._probes:
                self._probe(host)

    def at_hand(self) -> list[str]:
        for host, (probe, began) in list(self._probes.items()):
            code, seconds = probe.poll(), self._clock() - began
            if code == 0:
                del self._probes[host]
            elif seconds > (_HANGS if code is None else _AGAIN):
                probe.kill()
                probe.wait()
                self._probe(host)
        return [host for host in self.names if host not in self._probes]

    def _probe(self, host: str) -> None:
        command = [*_STEP, f"--nodelist={host}", "true"]
        quiet = subprocess.DEVNULL
        self._probes[host] = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet), self._clock()


def _task_code(code: int) -> int:
    """Returns the exit code of a task by srun's; of one that was lost with its node, as if it had been killed."""
    known = {_DONE: 0, 0: -signal.SIGKILL}
    return known[code] if code in known else 128 - code if code > 128 else code


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


if __name__ == "__main__":
    sys.exit(supervise(Supervised.from_json(sys.stdin.read()), Nodes(), GIVEN_UP))
