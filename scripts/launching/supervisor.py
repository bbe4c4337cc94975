"""Keeps a run going while its hosts come and go: starts it, notices what is lost, and starts it again on what is left.

It is a loop of plain Python that knows neither JAX nor the engine: `Hosts` starts a process on each host and says which are at
hand. Where a process is lost, the others are ended too, since they would wait for it, and the run begins again at its newest
checkpoint, on as many hosts as there are and its layout can use. Hosts that come back are taken in at the next save. Everything
that it does is a line on standard output and an object in WORKDIR/supervisor.jsonl.
"""

import contextlib
import dataclasses
import datetime
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

LOG = "supervisor.jsonl"
AGAIN = 75  # the exit code of a run that is to be started again (trainers.runlog.PREEMPTED)
STUCK = 8
"""So many starts in a row without a new checkpoint end the supervision: a fault would otherwise come back for ever."""

_POLL = 0.05  # seconds
_KILLED, _ENDED = 2.0, 10.0  # seconds that the others get after a process was killed, and after one has ended by itself
_PAUSE = 30.0  # seconds, the longest, before a start that follows several without a new checkpoint


class Hosts(Protocol):
    """Hosts of one engine."""

    def at_hand(self) -> list[str]:
        """Returns the names of the hosts on which a process can be started now, in a fixed order."""
        ...

    def start(self, hosts: Sequence[str], command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Starts the command on these hosts, which then are one run."""
        ...

    def codes(self) -> dict[str, int | None]:
        """Returns by host the exit code of the process that was started there: None while it runs, negative for a signal."""
        ...

    def signal(self, number: int) -> None:
        """Sends a signal to every process that still runs."""
        ...

    def lost(self, hosts: Sequence[str]) -> None:
        """Takes note that the processes of these hosts died or hung: a host is at hand again once the engine finds it sound."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised:
    """A run, and how it is started on each number of hosts.

    Attributes:
      workdir: the run's folder.
      checkpoints: the folder whose entries with a number as their name are complete checkpoints.
      commands: the train command, by the number of hosts.
      meshes: what the layout's mesh is on so many hosts, in words.
      variables: the environment of the command.
      final: exit codes after which the run is over.
      restarts: how often the run is started again after a loss, at most.
      saves: the run saves at an interval, so that hosts that come back need not be taken in at once.
      grace: seconds in which a run that was asked to stop must have saved.
    """

    workdir: str
    checkpoints: str
    commands: Mapping[int, Sequence[str]]
    meshes: Mapping[int, str]
    variables: Mapping[str, str]
    final: Sequence[int]
    restarts: int
    saves: bool = True
    grace: float = 300

    def usable(self, hosts: int) -> int:
        """Returns how many of so many hosts a run can use: 0 where there are too few."""
        return max((n for n in self.commands if n <= hosts), default=0)

    def newest(self) -> int:
        """Returns the step of the newest complete checkpoint; -1 where there is none."""
        with contextlib.suppress(OSError):
            return max((int(path.name) for path in Path(self.checkpoints).iterdir() if path.name.isdigit()), default=-1)
        return -1

    def reached(self) -> int:
        """Returns the step that the run is known to go on from: that of its newest checkpoint, or the one that its last start
        restored, which may have been a local one, of the hosts alone."""
        restored = -1
        with contextlib.suppress(OSError), (Path(self.workdir) / "run.jsonl").open(errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # cut off, or a start from nothing
                    event = json.loads(line)
                    restored = int(event["restored"]) if event.get("event") == "start" else restored
        return max(self.newest(), restored)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "Supervised":
        fields = json.loads(text)
        for name in ("commands", "meshes"):
            fields[name] = {int(hosts): value for hosts, value in fields[name].items()}
        return Supervised(**fields)


class Supervisor:
    """Supervises one run; see the module.

    Args:
      clock, sleep: seconds that pass, and waiting for so many; tests replace them.
    """

    def __init__(
        self,
        run: Supervised,
        hosts: Hosts,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ):
        self.run, self.hosts, self.clock, self.sleep = run, hosts, clock, sleep
        self.stopping = False  # set by a signal to the supervisor
        self.noticed: float | None = None  # when the last loss was noticed, until the run is started again

    def supervise(self) -> int:
        """Returns the run's last exit code, once it is over, asked to stop, or out of restarts."""
        restarts = stuck = 0
        while hosts := self._wait_for_hosts():
            reached = self.run.reached()
            code, grown = self._one_start(hosts)
            if code in self.run.final or self.stopping:
                return code
            stuck = 0 if self.run.reached() > reached else stuck + 1
            restarts += not grown
            if stuck >= STUCK or restarts > self.run.restarts:
                why = f"{stuck} starts in a row saved nothing" if stuck >= STUCK else f"{self.run.restarts} restarts are used up"
                self._note("given up", f"giving up with exit code {code}: {why}", exit_code=code)
                return code
            if stuck > 1:
                self._wait(min(_PAUSE, 2.0 ** (stuck - 2)))
        return AGAIN

    def _wait_for_hosts(self) -> list[str]:
        """Returns the hosts of the next start, once there are enough; none where the supervisor is asked to stop."""
        waiting = False
        while not self.stopping:
            hosts = self.hosts.at_hand()
            if number := self.run.usable(len(hosts)):
                return hosts[:number]
            if not waiting:
                least = min(self.run.commands)
                self._note("waiting", f"waiting for hosts: {len(hosts)} at hand, {least} needed", at_hand=len(hosts))
            waiting = True
            self.sleep(10 * _POLL)
        return []

    def _one_start(self, hosts: Sequence[str]) -> tuple[int, bool]:
        """Runs the command on these hosts until it has ended on all of them.

        Returns:
          Its exit code, and whether it was stopped to take in more hosts.
        """
        number, mesh = len(hosts), self.run.meshes[len(hosts)]
        self.hosts.start(hosts, self.run.commands[number], self.run.variables)
        after = {} if self.noticed is None else {"seconds": round(self.clock() - self.noticed, 3)}
        self.noticed = None
        since = f", {after['seconds']:.1f} s after the loss" if after else ""
        from_step = self.run.newest()
        self._note("start", f"started on {number} hosts, {mesh}{since}", hosts=[*hosts], mesh=mesh, newest=from_step, **after)
        codes, grown = self._watch(number)
        ended = {code for code in codes.values() if code is not None}
        failed = [*(code for code in self.run.final if code and code in ended), *sorted(ended - {0, AGAIN}, reverse=True)]
        code = 0 if ended == {0} else failed[0] if failed and failed[0] > 0 else AGAIN
        self._note("end", f"ended with exit code {code}", exit_code=code, codes=codes, newest=self.run.newest())
        return code, grown and self.noticed is None

    def _watch(self, number: int) -> tuple[dict[str, int | None], bool]:
        """Waits for the end of a start, which it brings about where a process is lost or more hosts can be taken in.

        Returns:
          The exit codes by host, and whether the run was asked to stop, to take in more hosts.
        """
        deadline, asked, save, killed = None, False, None, False
        while True:
            codes = self.hosts.codes()
            running = [host for host, code in codes.items() if code is None]
            bad = {host: code for host, code in codes.items() if code}
            now = self.clock()
            if bad and deadline is None:
                killed = min(bad.values()) < 0
                self._lost(bad, [host for host, code in bad.items() if code < 0])
                deadline = now + (_KILLED if killed else _ENDED)
            if not running:
                return codes, asked and not self.stopping
            if deadline is None:
                save, more = self._more(number, save)
                if self.stopping or more:
                    asked, deadline = True, now + self.run.grace
                    self.hosts.signal(signal.SIGTERM)
            elif now > deadline:
                if not killed:  # they outlived the others, and do not end by themselves: stopped, or on a host that has gone
                    self._lost(bad, running)
                    killed = True
                self.hosts.signal(signal.SIGKILL)
            self.sleep(_POLL)

    def _more(self, number: int, save: int | None) -> tuple[int | None, bool]:
        """Returns the newest checkpoint when more hosts were first seen, None without any; and whether to take them in now."""
        at_hand = self.hosts.at_hand()
        if self.run.usable(len(at_hand)) <= number:
            return None, False
        if save is None:
            save = self.run.newest()
            self._note("more", f"{len(at_hand)} hosts are at hand, to be taken in at the next save", at_hand=len(at_hand))
        return save, not self.run.saves or self.run.newest() > save

    def _lost(self, ended: Mapping[str, int], hosts: Sequence[str]) -> None:
        """Notes a loss: the exit codes so far, and the hosts that are held to be lost."""
        self.noticed = self.clock() if self.noticed is None else self.noticed
        said = [*(f"{host} ended with {code}" for host, code in ended.items()), *(f"{h} hangs" for h in hosts if h not in ended)]
        self._note("lost", ", ".join(said), codes=dict(ended), hosts=[*hosts])
        self.hosts.lost(hosts)

    def _wait(self, seconds: float) -> None:
        until = self.clock() + seconds
        while not self.stopping and self.clock() < until:
            self.sleep(_POLL)

    def _note(self, event: str, said: str, **fields: Any) -> None:
        """Prints a line, and appends it to the log with what is known."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        print(f"supervisor: {said}", flush=True)
        folder = Path(self.run.workdir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("a") as file:
            file.write(json.dumps({"event": event, "time": now} | fields) + "\n")


def supervise(run: Supervised, hosts: Hosts) -> int:
    """Supervises a run on these hosts; returns its last exit code."""
    supervisor = Supervisor(run, hosts)
    with stopped_by_signals(supervisor):
        return supervisor.supervise()


@contextlib.contextmanager
def stopped_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """Has SIGTERM and SIGINT to this process stop the run: it saves, and the supervisor ends with its code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        del number, frame
        supervisor.stopping = True

    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
