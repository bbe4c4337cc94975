"""Hosts for `Supervisor` that start a process each: on this machine, or through a command that takes them elsewhere."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


class Local:
    """Processes of this machine, of which each stands for a host.

    Args:
      hosts: how many there are.
      returns_after: a host whose process was lost is at hand again after so many seconds.
    """

    def __init__(self, hosts: int, returns_after: float = 0, clock: Callable[[], float] = time.monotonic):
        self.names = [f"host{number}" for number in range(hosts)]
        self.returns_after, self._clock = returns_after, clock
        self.processes: dict[str, subprocess.Popen] = {}
        self.gone: dict[str, float] = {}  # hosts that are not at hand, and until when

    def at_hand(self) -> list[str]:
        now = self._clock()
        return [name for name in self.names if self.gone.get(name, now) <= now]

    def start(self, hosts: Sequence[str], command: Sequence[str], variables: Mapping[str, str]) -> None:
        sys.stdout.flush()
        self.processes = {}
        address = f"{self.address(hosts[0])}:{free_port()}"
        for number, host in enumerate(hosts):
            several = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": len(hosts), "JAX_PROCESS_ID": number}
            several = {name: str(value) for name, value in several.items()} if len(hosts) > 1 else {}
            self.processes[host] = self.popen(host, command, os.environ | variables | several)

    def popen(self, host: str, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen:
        """Starts the command on a host."""
        del host
        return subprocess.Popen([*command], env=variables)

    def address(self, host: str) -> str:
        """Returns the name by which the other hosts reach a host."""
        del host
        return "127.0.0.1"

    def codes(self) -> dict[str, int | None]:
        return {host: process.poll() for host, process in self.processes.items()}

    def signal(self, number: int) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def lost(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            self.gone[host] = self._clock() + self.returns_after


def free_port() -> int:
    """Returns a port of this machine that nothing listens at."""
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]
