"""Keeps a run going while its hosts come and go: starts it, notices what is lost, and starts it again on what is left.

It is a loop of plain Python that knows neither JAX nor the engine: `Hosts` starts a process on each host and says which are at
hand. Where a process is lost, the others are ended too, since they would wait for it, and the run begins again at its newest
checkpoint, on as many hosts as there are and its layout can use. Hosts that come back are taken in at the next save. Everything
that it does is a line on standard output and an object in WORKDIR/supervisor.jsonl; where neither can be written, it goes on.
"""

import contextlib
import dataclasses
import datetime
import errno
import functools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from data.paths import is_address
from scripts.launching import alive

LOG = "supervisor.jsonl"
AGAIN = 75  # the exit code of a run that is to be started again (trainers.runlog.PREEMPTED)
GIVEN_UP = 78  # the exit code of a supervisor that starts the run no more, where a batch script would start it again
REFUSED = 2  # the exit code of a start whose settings do not fit (scripts.launching.job.BAD_ARGUMENT)
STUCK = 8
"""So many starts in a row without a new checkpoint end the supervision: a fault would otherwise come back for ever."""

_AUDIT = "audit.jsonl"  # the run's own log of its checkpoints (trainers/audit/saved.py)
_ALIVE = "alive"  # the folder of signs of life
_META = "/meta/metadata"  # the file of a checkpoint that this log names
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
      checkpoints: the folder whose entries with a number as their name are complete checkpoints, or its address.
      commands: the train command, by the number of hosts.
      meshes: what the layout's mesh is on so many hosts, in words.
      variables: the environment of the command.
      final: exit codes after which the run is over.
      restarts: how often the run is started again after a loss, at most.
      saves: the run saves at an interval, so that hosts that come back need not be taken in at once.
      grace: seconds in which a run that was asked to stop must have saved.
      unproven: numbers of hosts whose mesh may turn out not to fit the model.
      silence: seconds without a sign of life after which a process is lost; 0 waits for ever.
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
    unproven: Sequence[int] = ()
    silence: float = 0

    def usable(self, hosts: int) -> int:
        """Returns how many of so many hosts a run can use: 0 where there are too few."""
        return max((n for n in self.commands if n <= hosts), default=0)

    def newest(self) -> int:
        """Returns the step of the newest complete checkpoint; -1 where there is none.

        A store is not asked, since it may not answer: the run's own log has its checkpoints, each by the next save at the latest.
        """
        with contextlib.suppress(OSError):
            if is_address(self.checkpoints):
                log = Path(self.workdir) / _AUDIT
                return max(_logged(log, self.checkpoints.rstrip("/") + "/", log.stat().st_size), default=-1)
            return max((int(path.name) for path in Path(self.checkpoints).iterdir() if path.name.isdigit()), default=-1)
        return -1

    def reached(self) -> int:
        """Returns the step that the run is known to go on from: that of its newest checkpoint, or the one that its last start
        restored, which may have been a local one, of the hosts alone."""
        starts = (event.get("restored") for event in _events(Path(self.workdir) / "run.jsonl") if event.get("event") == "start")
        restored = [-1, *(step for step in starts if isinstance(step, int))]  # no number where it began from nothing
        return max(self.newest(), restored[-1])

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "Supervised":
        fields = json.loads(text)
        for name in ("commands", "meshes"):
            fields[name] = {int(hosts): value for hosts, value in fields[name].items()}
        return Supervised(**fields)


def _events(log: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a log that can be read; none of one that is not there."""
    with contextlib.suppress(OSError), log.open(errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):  # cut off
                if isinstance(event := json.loads(line), dict):
                    yield event


@functools.lru_cache(maxsize=1)
def _logged(log: Path, folder: str, size: int) -> frozenset[int]:
    """Returns the steps of the checkpoints that a run's log has in this folder, and has not lost again.

    Args:
      size: of the log, in bytes: it is read again only once that has changed.
    """
    del size
    steps: dict[int, bool] = {}
    for event in _events(log):
        for name, digest in event["files"].items() if isinstance(event.get("files"), dict) else ():
            step = name.removeprefix(folder).removesuffix(_META)
            if step.isdigit() and name == f"{folder}{step}{_META}":
                steps[int(step)] = bool(digest)
    return frozenset(step for step, there in steps.items() if there)


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
        self.gave_up = False
        self.noticed: float | None = None  # when the last loss was noticed, until the run is started again
        self._fitting: set[int] = set()  # numbers of hosts on which the run got further
        self._unwritten: list[str] = []  # lines of the log that wait for a disk with space

    def supervise(self) -> int:
        """Returns the run's last exit code, once it is over, asked to stop, or out of restarts."""
        restarts = stuck = 0
        while hosts := self._wait_for_hosts():
            reached = self.run.reached()
            code, grown = self._one_start(hosts)
            further = self.run.reached() > reached
            stuck = 0 if further else stuck + 1
            self._fitting |= {len(hosts)} if further else set()
            if not self.stopping and self._misfits(len(hosts), code, stuck):
                stuck = 0
                continue
            if code in self.run.final or self.stopping:
                return code
            restarts += not grown
            if stuck >= STUCK or restarts > self.run.restarts:
                why = f"{stuck} starts in a row saved nothing" if stuck >= STUCK else f"{self.run.restarts} restarts are used up"
                self.gave_up = True
                self._note("given up", f"giving up with exit code {code}: {why}", exit_code=code)
                return code
            if stuck > 1:
                self._wait(min(_PAUSE, 2.0 ** (stuck - 2)))
        return AGAIN

    def _misfits(self, number: int, code: int, stuck: int) -> bool:
        """Returns whether the mesh of so many hosts turns out not to fit, and leaves it out from now on.

        It is refused, after the first save too, where held-out rows do not fit; or it has never got further, and neither have
        the last two starts.
        """
        fails = stuck > 1 and code not in self.run.final and number not in self._fitting
        if number not in self.run.unproven or not (code == REFUSED or fails):
            return False
        mesh = self.run.meshes[number]
        self._note("refused", f"{mesh} does not fit: {number} hosts are not tried again", exit_code=code, mesh=mesh)
        commands = {hosts: command for hosts, command in self.run.commands.items() if hosts != number}
        self.run = dataclasses.replace(self.run, commands=commands)
        return True

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
        folder = Path(self.run.workdir).absolute() / _ALIVE
        signs = alive.Signs(folder, number) if self.run.silence else None
        variables = {**self.run.variables, **({alive.VARIABLE: str(folder)} if signs else {})}
        self.hosts.start(hosts, self.run.commands[number], variables)
        after = {} if self.noticed is None else {"seconds": round(self.clock() - self.noticed, 3)}
        self.noticed = None
        since = f", {after['seconds']:.1f} s after the loss" if after else ""
        from_step = self.run.newest()
        self._note("start", f"started on {number} hosts, {mesh}{since}", hosts=[*hosts], mesh=mesh, newest=from_step, **after)
        codes, grown = self._watch(hosts, signs)
        if signs:
            signs.close()
        ended = {code for code in codes.values() if code is not None}
        failed = [*(code for code in self.run.final if code and code in ended), *sorted(ended - {0, AGAIN}, reverse=True)]
        code = 0 if ended == {0} else failed[0] if failed and failed[0] > 0 else AGAIN
        self._note("end", f"ended with exit code {code}", exit_code=code, codes=codes, newest=self.run.newest())
        return code, grown and self.noticed is None

    def _watch(self, hosts: Sequence[str], signs: alive.Signs | None) -> tuple[dict[str, int | None], bool]:
        """Waits for the end of a start, which it brings about where a process is lost or more hosts can be taken in.

        A process is lost that was killed, ended with another code than 0, or gives no sign of life.

        Returns:
          The exit codes by host, and whether the run was asked to stop, to take in more hosts.
        """
        deadline, asked, save, killed, before = math.inf, False, None, False, self.clock()
        while True:
            codes = self.hosts.codes()
            running = [host for host, code in codes.items() if code is None]
            bad = {host: code for host, code in codes.items() if code}
            now = self.clock()
            gone = self._gone(hosts, codes, signs, now - before, asked)
            before = now
            if (deadline == math.inf and (bad or gone)) or (asked and gone and not killed):
                killed = bool(gone)
                self._lost(bad, gone)
                deadline = min(deadline, now + (_KILLED if killed else _ENDED))
            if not running:
                return codes, asked and not self.stopping
            if deadline == math.inf:
                save, more = self._more(len(hosts), save)
                if self.stopping or more:
                    asked, deadline = True, now + self.run.grace
                    self.hosts.signal(signal.SIGTERM)
            elif now > deadline:
                if not killed:  # they outlived the others, and do not end by themselves: stopped, or on a host that has gone
                    self._lost(bad, running)
                    killed = True
                self.hosts.signal(signal.SIGKILL)
            self.sleep(_POLL)

    def _gone(
        self, hosts: Sequence[str], codes: Mapping[str, int | None], signs: alive.Signs | None, seconds: float, asked: bool
    ) -> list[str]:
        """Returns the hosts whose process was killed, or runs and gives no sign of life; seconds have passed since the last call.

        Args:
          asked: all were asked to end, by a signal of which one that is still starting dies.
        """
        own = -signal.SIGTERM if asked else 0
        killed = [host for host, code in codes.items() if code is not None and code < 0 and code != own]
        if not signs:
            return killed
        running = [(host, number) for number, host in enumerate(hosts) if codes[host] is None]
        return [*killed, *(host for host, number in running if signs.silent(number, seconds) > self.run.silence)]

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
        """Prints a line, and appends it to the log with what is known; lines that cannot be written wait for the next one."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        lines = [f"supervisor: {said}"]
        self._unwritten.append(json.dumps({"event": event, "time": now} | fields) + "\n")
        try:
            self._append("".join(self._unwritten))
        except OSError as error:
            if len(self._unwritten) == 1:  # said once, not with each line
                why = f"{LOG} cannot be written ({error.strerror or error}); the run goes on"
                lines.insert(0, f"supervisor: warning: {why}")
        else:
            self._unwritten.clear()
        with contextlib.suppress(OSError):  # standard output may be a file on the same disk
            print(*lines, sep="\n", flush=True)

    def _append(self, text: str) -> None:
        """Appends a text to the log, all of it or nothing; raises OSError."""
        folder = Path(self.run.workdir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("ab", buffering=0) as file:
            size = file.tell()
            try:
                data = text.encode()
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise


def supervise(run: Supervised, hosts: Hosts, given_up: int | None = None) -> int:
    """Supervises a run on these hosts; returns its last exit code, or, where it is given up, another one if there is."""
    supervisor = Supervisor(run, hosts)
    with stopped_by_signals(supervisor):
        code = supervisor.supervise()
    return code if given_up is None or not supervisor.gave_up else given_up


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
